"""Placements of one segment: it is all that runs, and its launch costs less than that of one between others.

Where a model runs on one device alone, again and again, threads are awake and caches full. `partition` prices launches
by device, as segments between others have them, which is the dearer case; so what is all on one device is put right
here, among the candidates that were found.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nnadapter.costs.cost_model import CostTable
    from partition.by_cost.latency import Candidate, CheapestPlacement


def with_single_segments(placed: CheapestPlacement, table: CostTable) -> CheapestPlacement:
    """Return the placement found, or a cheaper candidate of one segment, with what such candidates cost.

    Args:
        placed: by the launches of `table.prices`.
        table: with launches of segments that are alone.
    """
    candidates = sorted(
        (_put_right(candidate, table) for candidate in placed.candidates), key=lambda candidate: candidate.cost
    )
    if not candidates:
        return placed
    best = candidates[0]
    return replace(
        placed,
        placement=best.placement,
        cost=best.cost,
        bound=min(placed.bound, best.cost),
        candidates=tuple(candidates),
    )


def _put_right(candidate: Candidate, table: CostTable) -> Candidate:
    devices = set(candidate.placement)
    if len(devices) != 1:
        return candidate
    return replace(candidate, cost=candidate.cost - table.saved_alone(*devices))
