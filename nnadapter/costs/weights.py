"""Bytes of weights, each counted once per device that holds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from partition.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightBytes:
    """Bytes of the constants that a plan's segments read."""

    per_device: Mapping[str, int]
    """A constant that two segments of a device read counts once."""
    total: int
    """Of all constants that are read, each once."""


def weight_bytes(plan: Plan) -> WeightBytes:
    """Return how many bytes of weights each device reads, and how many there are where nothing counts twice.

    Weights are loaded when a segment is compiled, so that they cost a run nothing but reading them on the device.
    """
    nbytes = {name: plan.graph.value(name).nbytes or 0 for step in plan.steps for name in step.constants}
    weights_by_device: dict[str, set[str]] = {}
    for step in plan.steps:
        weights_by_device.setdefault(step.device, set()).update(step.constants)
    return WeightBytes(
        per_device={device: sum(nbytes[name] for name in names) for device, names in weights_by_device.items()},
        total=sum(nbytes.values()),
    )
