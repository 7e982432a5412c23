"""Placement policies and their properties. `nnadapter.planning.settling.PLACERS` implements them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Policy(NamedTuple):
    """Rule for choosing a device for every node."""

    name: str
    description: str
    """Text for the command line's help."""
    weighs: bool = False
    """Costs decide."""
    promises: bool = False
    """Costs must be calibrated or simulated."""
    times: bool = False
    """Several placements are compiled and timed; the fastest is used."""


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
"""Policies by name; the first is the default."""
