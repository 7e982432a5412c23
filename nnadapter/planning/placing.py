"""Placement of atoms on devices, by the session's policy, rules and plan file.

Placements of one segment: it is all that runs, and its launch costs less than that of one between others.

Where a model runs on one device alone, again and again, threads are awake and caches full. `partition` prices launches
by device, as segments between others have them, which is the dearer case; so what is all on one device is put right
here, among the candidates that were found.

Which device gets each atom: by the session's policy, and by what a person says in rules and a plan file.

Rules take verdicts back before anything is placed. A plan file keeps an atom on its device as long as the device takes
it; what it says of other atoms is left to the policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from nnadapter.drivers.capability import ModelForm
from nnadapter.errors import InvalidModelError
from nnadapter.planning.judgment import Judgment, unplaceable_message
from nnadapter.planning.setting import Kept, Setting
from partition.graph import Graph
from partition.segments import place_by_priority

if TYPE_CHECKING:
    from nnadapter.costs.cost_model import CostTable, FusedGraph, Fusion
    from partition.by_cost.latency import Candidate, CheapestPlacement
    from partition.by_cost.pricing import Prices
    from partition.by_cost.repeats import Blocks


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
    return replace(candidate, cost=candidate.cost - table.sole_launch_savings(*devices))


Hashes = Callable[[], Sequence[str]]
"""Works out a hash for every node of a graph: what it is, but for where it stands."""

_ALL_SHARE = "placed as by policy latency: all devices share the processors, so that none works while another one does"
_REPEATED = 4
"""One in so many nodes has to be in repeats of one block, or a graph does not count as repeating itself."""


@dataclass(frozen=True, eq=False)
class Placement:
    """A device for every atom."""

    labels: tuple[str, ...]
    placed: CheapestPlacement | None = None
    """What is known of it, where costs decided. Its atoms are those of `graph`."""
    table: CostTable | None = None
    """The costs that decided."""
    graph: FusedGraph | None = None
    """The graph that was placed: what devices fuse is one atom."""
    note: str = ""
    """Why it is not the cheapest placement found, if it is not."""

    def candidates(self) -> tuple[Candidate, ...]:
        """The placements that were priced, cheapest first, of the atoms that `labels` are of."""
        if self.placed is None or self.graph is None:
            return ()
        return tuple(
            replace(candidate, placement=self.graph.spread(candidate.placement)) for candidate in self.placed.candidates
        )


def place(judgment: Judgment, setting: Setting) -> Placement:
    """Return a device for every atom: by what the person demands, then by the policy.

    Raises:
        InvalidModelError: no device takes some atom.
    """
    support = judgment.support
    if not support.is_complete:
        raise InvalidModelError(unplaceable_message(judgment, setting))
    verdicts = support.verdicts
    kept = {atom: name for atom, name in judgment.demands.kept.items() if verdicts.get(name, {atom: None})[atom]}
    return PLACERS[setting.constraints.policy.name](judgment, setting, kept)


def _by_order(judgment: Judgment, _: Setting, kept: Kept) -> Placement:
    """Every atom on the first device, in the person's order, that takes it."""
    support = judgment.support
    labels = list(place_by_priority(judgment.model.graph, support.devices, support.verdicts))
    for atom, name in kept.items():
        labels[atom] = name
    return Placement(tuple(labels))


def _by_costs(judgment: Judgment, setting: Setting, kept: Kept) -> Placement:
    """The cheapest placement found, and others that were priced; see `partition.by_cost.latency`.

    Blocks that repeat are placed alike where that costs no more.
    """
    from nnadapter.costs.cost_model import cost_table  # for policies that weigh costs alone

    model, verdicts = judgment.model, judgment.support.verdicts
    graph, conversion = model.graph, model.conversion
    fusions = fusions_of(judgment, setting)
    whole = _merged(graph, fusions, kept)
    table = cost_table(whole, conversion, whole.verdicts(verdicts), setting.costs, fusions)
    prices = table.prices
    number_of = {atom: number for number, part in enumerate(whole.parts) for atom in part}
    for atom, name in kept.items():
        others = [row for row, other in enumerate(prices.devices) if other != name]
        if np.isfinite(prices.run[prices.devices.index(name), number_of[atom]]):
            prices.run[others, number_of[atom]] = np.inf
    if setting.constraints.fallback_at("load") == "forbid":
        _leave_only_named(prices, setting)
    from partition.by_cost.latency import place_by_latency  # for policies that weigh costs alone

    placed = place_by_latency(whole.graph, prices, blocks=_repeats(whole.graph, model.hashes))
    placed = with_single_segments(placed, table)
    return Placement(whole.spread(placed.placement), placed, table, whole)


def _by_costs_unless_in_doubt(judgment: Judgment, setting: Setting, kept: Kept) -> Placement:
    """The cheapest placement found, or the CPU alone where that saves less than costs are off by."""
    from nnadapter.planning.pricing import beyond_doubt

    placement = _by_costs(judgment, setting, kept)
    assert placement.placed is not None and placement.table is not None and placement.graph is not None, "costs decided"
    placed, note = beyond_doubt(placement.placed, placement.table.prices, setting.costs)
    return replace(placement, labels=placement.graph.spread(placed.placement), placed=placed, note=note)


def _by_load(judgment: Judgment, setting: Setting, kept: Kept) -> Placement:
    """The placement whose busiest device has the least to do; see `partition.by_cost.throughput`."""
    sharing = [device.name for device in setting.devices if setting.costs[device.name].needs_processors]
    if len(sharing) == len(setting.devices):
        placement = _by_costs_unless_in_doubt(judgment, setting, kept)
        return replace(placement, note="; ".join(filter(None, (_ALL_SHARE, placement.note))))
    cheapest = _by_costs(judgment, setting, kept)
    assert cheapest.placed is not None and cheapest.table is not None and cheapest.graph is not None, "costs decided"
    whole, starts = cheapest.graph, [candidate.placement for candidate in cheapest.placed.candidates]
    from partition.by_cost.throughput import place_by_throughput

    balanced = place_by_throughput(whole.graph, cheapest.table.prices, sharing=sharing, starts=starts)
    busiest = [name for name in balanced.busiest if balanced.loads[name]] or balanced.busiest[:1]  # none has to work
    alone = f"{''.join(busiest)}, the busiest device, takes"
    what = alone if len(busiest) < 2 else f"{' and '.join(busiest)}, which share the processors, take"
    note = (
        f"placed for streams: {what} {balanced.stage * 1e3:.3g} ms of each input, and at least "
        f"{balanced.bound * 1e3:.3g} ms are what the busiest takes in any placement; the fastest single run found "
        f"takes {cheapest.placed.cost * 1e3:.3g} ms"
    )
    return Placement(whole.spread(balanced.placement), None, cheapest.table, whole, note)


PLACERS: Mapping[str, Callable[[Judgment, Setting, Kept], Placement]] = {
    "priority": _by_order,
    "latency": _by_costs_unless_in_doubt,
    "throughput": _by_load,
    "measured": _by_costs,
}
"""How each of `nnadapter.policies.POLICIES` places what nothing keeps elsewhere."""


def fusions_of(judgment: Judgment, setting: Setting) -> dict[str, Fusion]:
    """Return what each device that takes the adapter IR fuses of all that it takes."""
    from nnadapter.costs.cost_model import fused_groups

    model, verdicts = judgment.model, judgment.support.verdicts
    return {
        device.name: fused_groups(model.graph, model.conversion, device.context, verdicts[device.name])
        for device in setting.devices
        if device.name in verdicts and device.accelerates and device.capability.form is ModelForm.IR
    }


def _leave_only_named(prices: Prices, setting: Setting) -> None:
    """Leave nothing to a device that nobody named as long as a named one takes it."""
    rows = np.array([setting.by_name[name].named for name in prices.devices], dtype=bool)
    taken = np.isfinite(prices.run[rows]).any(axis=0)
    prices.run[np.ix_(~rows, taken)] = np.inf


def _merged(graph: Graph, fusions: Mapping[str, Fusion], kept: Kept) -> FusedGraph:
    """The graph with what devices fuse joined, as long as that joins nothing that is kept on different devices."""
    from nnadapter.costs.cost_model import fuse_atoms

    def agrees(atoms: Iterable[int]) -> bool:
        return len({kept[atom] for atom in atoms if atom in kept}) < 2

    allowed = [
        replace(fusion, groups=tuple(group for group in fusion.groups if agrees(graph.atom_of[node] for node in group)))
        for fusion in fusions.values()
    ]
    whole = fuse_atoms(graph, allowed)
    return whole if all(map(agrees, whole.parts)) else fuse_atoms(graph, ())


def _repeats(graph: Graph, hashes: Hashes | None) -> tuple[Blocks, ...]:
    """The blocks that repeat, each in a good part of the graph. Op types alone tell quickly that there are none."""
    least = max(2, len(graph.nodes) // _REPEATED)
    from partition.by_cost.repeats import find_blocks

    if hashes is None or not find_blocks(graph, [(node.domain, node.op_type) for node in graph.nodes], least):
        return ()
    return find_blocks(graph, hashes(), least)
