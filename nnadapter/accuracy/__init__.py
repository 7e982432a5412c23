"""What devices compute, held against the CPU: which part is wrong, and what a session does about it.

`localization` and `excerpts` find the nodes that are wrong, for `compare --layers` and for sessions; `tolerances` says
what is too far, everywhere.
"""

from __future__ import annotations

from nnadapter.process.lazily import lazily

__getattr__ = lazily(
    __name__,
    {
        ".checks": "BETWEEN_FALSE_ALARMS Drift RIGHT WRONG check_step",
        ".tolerances": "BANDS Tolerance deviation",
    },
)
