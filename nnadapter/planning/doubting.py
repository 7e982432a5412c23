"""What a placement promises against how far its costs are off: a promise that is too small is none.

A model that is all on one device runs there as small networks did when that was calibrated. How far the quotient of
what two devices take was off on these networks says how likely it is that the device with the smaller figure is the
faster one: it is taken where that is so in four of seven cases. More certainty costs more than it saves, since to stay
on the CPU where another device is faster is as wrong as to leave it where that is slower. Errors that both devices
share do not count.

A model in pieces is another matter: what stays on the CPU runs without what ONNX Runtime fuses across cuts, and its
threads sleep meanwhile. So all that costs are off by, on both sides, has to be saved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import hypot, log
from typing import TYPE_CHECKING

import numpy as np

from nnadapter.costs.calibration import spread
from nnadapter.costs.device_costs import DeviceCosts
from partition.by_cost.origin import all_on

if TYPE_CHECKING:
    from partition.by_cost.latency import Candidate, CheapestPlacement
    from partition.by_cost.pricing import Prices

FOUR_OF_SEVEN = 0.18
"""Standard deviations by which something is to be above 0 to be so in four of seven cases, of a normal distribution."""


def beyond_doubt(
    placed: CheapestPlacement, prices: Prices, costs: Mapping[str, DeviceCosts]
) -> tuple[CheapestPlacement, str]:
    """Return the cheapest placement that is cheaper than simpler ones as far as is known, and why, if it is another.

    1. The CPU alone is the simplest; then come other devices alone; then what is in pieces.
    2. A placement counts if it saves, against the simpler one that counts, more than is in doubt.

    Args:
        placed: the cheapest placement found.
        prices: of its atoms.
        costs: per device.

    Returns:
        The placement to take, and a sentence without its full stop; an empty one if it is the one given.
    """
    host = prices.host
    cpu = next((candidate for candidate in placed.candidates if candidate.origin == all_on(host)), None)
    if cpu is None or cpu.placement == placed.placement or cpu.cost <= 0:
        return placed, ""
    best, doubt = cpu, 0.0
    for candidate in sorted(placed.candidates, key=_pieces):  # stable: of each sort the cheapest first
        in_doubt = _doubt(candidate, cpu, prices, costs)
        if best.cost - candidate.cost >= in_doubt and candidate.cost < best.cost:
            best = candidate
        if candidate.placement == placed.placement:
            doubt = in_doubt
    if best.placement == placed.placement:
        return placed, ""
    rest = tuple(candidate for candidate in placed.candidates if candidate is not best)
    where = "the CPU" if best is cpu else best.placement[0]
    return (
        replace(placed, placement=best.placement, cost=best.cost, candidates=(best, *rest)),
        f"the cheapest placement found saves {_percent((best.cost - placed.cost) / best.cost)}, less than is in doubt "
        f"({_percent(doubt / best.cost)}), so everything runs on {where}; policy 'measured' can tell which is faster",
    )


def _pieces(candidate: Candidate) -> bool:
    return len(set(candidate.placement)) > 1


def _doubt(candidate: Candidate, cpu: Candidate, prices: Prices, costs: Mapping[str, DeviceCosts]) -> float:
    """Seconds that a placement has to save."""
    host = prices.host
    others = set(candidate.placement) - {host}
    if not _pieces(candidate):
        return max((FOUR_OF_SEVEN * _between(costs[host], costs[name]) * cpu.cost for name in others), default=0.0)
    away = np.array([device != host for device in candidate.placement])
    delegated = candidate.cost - float(prices.run[prices.devices.index(host)][~away].sum())
    return costs[host].off_by * cpu.cost + max(costs[name].off_by for name in others) * delegated


def _between(one: DeviceCosts, other: DeviceCosts) -> float:
    """By how much the quotient of what two devices take is off."""
    both = [(seen, other.networks[name]) for name, seen in one.networks.items() if name in other.networks]
    if not both:
        return hypot(one.off_by, other.off_by)
    return spread(log(mine.quotient / theirs.quotient) for mine, theirs in both if mine.predicted and theirs.predicted)


def _percent(share: float) -> str:
    return f"{100 * share:.{0 if share >= 0.01 else 1}f} %"
