"""Policies: what each goes by when it places nodes. How each places them is `nnadapter.planning.settling.PLACERS`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Policy(NamedTuple):
    """A way of choosing a device for every node."""

    name: str
    description: str
    """How nodes are placed, as the command line says it."""
    weighs: bool = False
    """Costs decide."""
    promises: bool = False
    """It is only as good as its costs, so they have to be calibrated or simulated ones."""
    times: bool = False
    """Some of the placements that costs suggest are compiled and timed; the fastest is kept."""


POLICIES: Mapping[str, Policy] = {
    policy.name: policy
    for policy in (
        Policy(name="priority", description="by the order of devices"),
        Policy(name="latency", description="by what calibrated or simulated costs predict", weighs=True, promises=True),
        Policy(
            name="throughput",
            description="for streams: the busiest device has the least to do, by calibrated or simulated costs",
            weighs=True,
            promises=True,
        ),
        Policy(
            name="measured",
            description="by timing some placements here (once per model, devices and shapes)",
            weighs=True,
            times=True,
        ),
    )
}
"""By name; the first is what a session goes by when nobody says more."""
