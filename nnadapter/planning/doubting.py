"""What a placement promises against how far its costs are off: a promise that is smaller is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from nnadapter.costs.device_costs import DeviceCosts
from partition.by_cost.latency import CheapestPlacement
from partition.by_cost.origin import all_on
from partition.by_cost.pricing import Prices


def on_the_cpu_in_doubt(
    placed: CheapestPlacement, prices: Prices, costs: Mapping[str, DeviceCosts]
) -> tuple[CheapestPlacement, str]:
    """Return the placement on the CPU alone and why, where that is as good as far as is known; else `placed`.

    Costs are off by as much as calibrations found (`DeviceCosts.off_by`): all that the CPU would do alone, since what
    stays there runs in pieces, which fuse less and allocate more; and what devices do, launches and transfers included.
    Both may be off to the same end, so that they add up.

    Args:
        placed: the cheapest placement found.
        prices: of its atoms.
        costs: per device.

    Returns:
        The placement to take, and a sentence without its full stop; an empty one if it is the one given.
    """
    host = prices.host
    alone = next((each for each in placed.candidates if each.origin == all_on(host)), None)
    if alone is None or alone.placement == placed.placement or alone.cost <= 0:
        return placed, ""
    away = np.array([device != host for device in placed.placement])
    there = prices.run[prices.devices.index(host)]
    delegated = placed.cost - float(there[~away].sum())
    worst = max(costs[device].off_by for device in set(placed.placement) - {host})
    doubt = costs[host].off_by * alone.cost + worst * delegated
    saved = alone.cost - placed.cost
    if saved >= doubt:
        return placed, ""
    rest = tuple(each for each in placed.candidates if each is not alone)
    return (
        replace(placed, placement=alone.placement, cost=alone.cost, candidates=(alone, *rest)),
        f"the cheapest placement found saves {_percent(saved / alone.cost)}, less than the costs are off by "
        f"({_percent(doubt / alone.cost)}), so everything runs on the CPU; policy 'measured' can tell which is faster",
    )


def _percent(share: float) -> str:
    return f"{100 * share:.{0 if share >= 0.01 else 1}f} %"
