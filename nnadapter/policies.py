"""Placement policies and their properties. `nnadapter.planning.settling.PLACERS` implements them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Policy(NamedTuple):
    """Rule for choosing a device for every node."""

    name: str
    description: str
    weighs: bool = False
    """True if costs decide on the placement."""
    promises: bool = False
    """True if costs must be calibrated or simulated."""
    times: bool = False
    """True if several placements are compiled and timed, and the fastest is used."""


POLICIES: Mapping[str, Policy] = {
    policy.name: policy
    for policy in (
        Policy(name="priority", description="the first device in the given order that supports the node"),
        Policy(
            name="latency",
            description="the cheapest placement found, by calibrated or simulated costs",
            weighs=True,
            promises=True,
        ),
        Policy(
            name="throughput",
            description="for streams, the least load on the busiest device, by calibrated or simulated costs",
            weighs=True,
            promises=True,
        ),
        Policy(
            name="measured",
            description="the fastest of some placements, timed on this machine once per model, devices and shapes",
            weighs=True,
            times=True,
        ),
    )
}
"""Policies by name; the first is the default."""
