"""Accuracy of devices compared with the CPU.

checks         checks of a session: `Options.verify` and `Options.shadow`
distances      cosine, SQNR and Euclidean distance
localization   search for the nodes that compute wrong values
tolerances     largest acceptable deviations
"""

from __future__ import annotations

from nnadapter.process.lazily import lazily

__getattr__ = lazily(
    __name__,
    {
        ".checks": "BETWEEN_FALSE_ALARMS Drift RIGHT WRONG check_step",
        ".distances": "Distance INFINITE distance distance_per_item",
        ".tolerances": "BANDS Tolerance deviation",
    },
)
