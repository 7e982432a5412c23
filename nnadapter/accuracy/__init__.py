"""What devices compute, held against the CPU: which part is wrong, and what a session does about it.

`cutting`, `trials` and `searching` find the nodes that are wrong, for `compare --layers` (`nnadapter.inference.layers`)
and for sessions; `tolerances` says what is too far, everywhere.
"""
