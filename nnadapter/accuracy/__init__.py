"""What devices compute, held against the CPU: which part is wrong, and what a session does about it.

`localization` and `excerpts` find the nodes that are wrong, for `compare --layers` and for sessions; `tolerances` says
what is too far, everywhere.
"""
