"""Placement by policy, rules and plan file, and the cut into segments that devices admit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from nnadapter.candidates.part import Part
from nnadapter.candidates.segments import DynamicParts, ShapedModel, part_of
from nnadapter.drivers import Admission, DynamicShapes, ModelForm, Reason, Unsupported
from nnadapter.drivers.boundary import ask_admission
from nnadapter.drivers.failures import named_call
from nnadapter.errors import InvalidModelError
from nnadapter.ir.model import Model
from nnadapter.planning.indices import refusals_of_indices
from nnadapter.planning.judgment import Atoms, Judgment, banning, placed_as, unplaceable_message
from nnadapter.planning.setting import DeviceByAtom, SessionDevice, Setting
from nnadapter.process.resources import paused_collection
from nnadapter.records import dataclass, field, replace
from nnadapter.rules import Limits, RuleEffect, SegmentCandidate, SegmentsDroppedByLimits, segments_to_drop
from nnadapter.traces.trace import PLAN
from partition.graph import Graph
from partition.plan import Plan, Segment, Step, cut, halve, make_plan, place_by_priority

if TYPE_CHECKING:
    from nnadapter.costs.cost_model import CostTable, FusedGraph, Fusion
    from nnadapter.planning.pricing import PlanPrice
    from partition.by_cost.latency import Candidate, CheapestPlacement
    from partition.by_cost.pricing import Prices
    from partition.by_cost.repeats import Blocks


def with_single_segments(placed: CheapestPlacement, table: CostTable) -> CheapestPlacement:
    """Return `placed` with its candidates on a single device priced as one segment, cheapest first."""
    candidates = sorted(
        (_with_sole_launch(candidate, table) for candidate in placed.candidates), key=lambda candidate: candidate.cost
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


def _with_sole_launch(candidate: Candidate, table: CostTable) -> Candidate:
    devices = set(candidate.placement)
    if len(devices) != 1:
        return candidate
    return replace(candidate, cost=candidate.cost - table.sole_launch_savings(*devices))


_ALL_SHARE = "placed as by policy latency: all devices share the processors, so they cannot work in parallel"
_REPEATED = 4
"""Divisor: repeated blocks are considered if they cover one in this many nodes."""


@dataclass(frozen=True, eq=False)
class Placement:
    """Device of every atom, with the costs that decided, if any."""

    labels: tuple[str, ...]
    placed: CheapestPlacement | None = None
    """Result of the search by costs, on the atoms of `graph`, if costs decided."""
    table: CostTable | None = None
    graph: FusedGraph | None = None
    note: str = ""
    """Explanation of a placement other than the cheapest one."""

    def candidates(self) -> tuple[Candidate, ...]:
        """Return the priced placements, with a device for each unfused atom, cheapest first."""
        if self.placed is None or self.graph is None:
            return ()
        return tuple(
            replace(candidate, placement=self.graph.spread(candidate.placement)) for candidate in self.placed.candidates
        )


def place(judgment: Judgment, setting: Setting) -> Placement:
    """Place every atom on a device.

    A device that a plan file or complete placement names for an atom is used if it supports the atom. Otherwise the
    policy chooses.

    Raises:
        InvalidModelError: no device takes some atom.
    """
    support = judgment.support
    if not support.is_complete:
        raise InvalidModelError(unplaceable_message(judgment, setting))
    verdicts = support.verdicts
    kept_devices = {
        atom: name for atom, name in judgment.demands.device_by_atom.items() if verdicts.get(name, {atom: None})[atom]
    }
    return PLACERS[setting.constraints.policy.name](judgment, setting, kept_devices)


def _by_order(judgment: Judgment, _: Setting, kept_devices: DeviceByAtom) -> Placement:
    support = judgment.support
    labels = list(place_by_priority(judgment.model.graph, support.devices, support.verdicts))
    for atom, name in kept_devices.items():
        labels[atom] = name
    return Placement(tuple(labels))


def _search(
    judgment: Judgment, setting: Setting, kept_devices: DeviceByAtom
) -> tuple[CheapestPlacement, CostTable, FusedGraph]:
    """Return the cheapest placement found, with its costs and graph.

    Repeated blocks get equal placements if that costs no more.
    """
    from nnadapter.costs.cost_model import cost_table  # only for policies that use costs

    model, verdicts = judgment.model, judgment.support.verdicts
    graph, conversion = model.graph, model.conversion
    fusions = fusions_of(judgment, setting)
    fused_graph = _merged(graph, fusions, kept_devices)
    table = cost_table(fused_graph, conversion, fused_graph.verdicts(verdicts), setting.costs, fusions)
    prices = table.prices
    number_of = {atom: number for number, part in enumerate(fused_graph.parts) for atom in part}
    for atom, name in kept_devices.items():
        other_rows = [row for row, other in enumerate(prices.devices) if other != name]
        if np.isfinite(prices.run[prices.devices.index(name), number_of[atom]]):
            prices.run[other_rows, number_of[atom]] = np.inf
    if setting.constraints.fallback_at("load") == "forbid":
        _forbid_unnamed(prices, setting)
    from partition.by_cost.latency import place_by_latency  # only for policies that use costs

    placed = place_by_latency(fused_graph.graph, prices, blocks=_repeats(fused_graph.graph, model.hashes))
    return with_single_segments(placed, table), table, fused_graph


def _by_costs(judgment: Judgment, setting: Setting, kept_devices: DeviceByAtom) -> Placement:
    placed, table, graph = _search(judgment, setting, kept_devices)
    return Placement(graph.spread(placed.placement), placed, table, graph)


def _by_certain_costs(judgment: Judgment, setting: Setting, kept_devices: DeviceByAtom) -> Placement:
    from nnadapter.planning.pricing import beyond_doubt

    found, table, graph = _search(judgment, setting, kept_devices)
    placed, note = beyond_doubt(found, table.prices, setting.costs)
    return Placement(graph.spread(placed.placement), placed, table, graph, note)


def _by_load(judgment: Judgment, setting: Setting, kept_devices: DeviceByAtom) -> Placement:
    sharing = [device.name for device in setting.devices if setting.costs[device.name].needs_processors]
    if len(sharing) == len(setting.devices):
        placement = _by_certain_costs(judgment, setting, kept_devices)
        return replace(placement, note="; ".join(filter(None, (_ALL_SHARE, placement.note))))
    cheapest, table, graph = _search(judgment, setting, kept_devices)
    from partition.by_cost.latency import place_by_throughput

    starts = [candidate.placement for candidate in cheapest.candidates]
    balanced = place_by_throughput(graph.graph, table.prices, sharing=sharing, starts=starts)
    busiest = [name for name in balanced.busiest if balanced.loads[name]] or balanced.busiest[:1]  # all loads are zero
    subject_of_one = f"{''.join(busiest)}, the busiest device, takes"
    subject = subject_of_one if len(busiest) < 2 else f"{' and '.join(busiest)}, which share the processors, take"
    note = (
        f"placed for streams: {subject} {balanced.stage * 1e3:.3g} ms per input; in any placement the "
        f"busiest takes at least {balanced.bound * 1e3:.3g} ms; the fastest single run found "
        f"takes {cheapest.cost * 1e3:.3g} ms"
    )
    return Placement(graph.spread(balanced.placement), None, table, graph, note)


PLACERS: Mapping[str, Callable[[Judgment, Setting, DeviceByAtom], Placement]] = {
    "priority": _by_order,
    "latency": _by_certain_costs,
    "throughput": _by_load,
    "measured": _by_costs,
}


def fusions_of(judgment: Judgment, setting: Setting) -> dict[str, Fusion]:
    """Return the fused groups of each adapter IR accelerator, among all operations that it supports."""
    from nnadapter.costs.cost_model import fused_groups

    model, verdicts = judgment.model, judgment.support.verdicts
    return {
        device.name: fused_groups(model.graph, model.conversion, device.context, verdicts[device.name])
        for device in setting.devices
        if device.name in verdicts and device.accelerates and device.capability.form is ModelForm.IR
    }


def _forbid_unnamed(prices: Prices, setting: Setting) -> None:
    rows = np.array([setting.by_name[name].named for name in prices.devices], dtype=bool)
    is_named_taker = np.isfinite(prices.run[rows]).any(axis=0)
    prices.run[np.ix_(~rows, is_named_taker)] = np.inf


def _merged(graph: Graph, fusions: Mapping[str, Fusion], kept_devices: DeviceByAtom) -> FusedGraph:
    from nnadapter.costs.cost_model import fuse_atoms

    def agrees(atoms: Iterable[int]) -> bool:
        return len({kept_devices[atom] for atom in atoms if atom in kept_devices}) < 2

    allowed = [
        replace(fusion, groups=tuple(group for group in fusion.groups if agrees(graph.atom_of[node] for node in group)))
        for fusion in fusions.values()
    ]
    fused_graph = fuse_atoms(graph, allowed)
    return fused_graph if all(map(agrees, fused_graph.parts)) else fuse_atoms(graph, ())


def _repeats(graph: Graph, hashes: Callable[[], Sequence[str]] | None) -> tuple[Blocks, ...]:
    """Return the repeated blocks of a graph; equal op types are checked first, as hashing is slow."""
    least = max(2, len(graph.nodes) // _REPEATED)
    from partition.by_cost.repeats import find_blocks

    if hashes is None or not find_blocks(graph, [(node.domain, node.op_type) for node in graph.nodes], least):
        return ()
    return find_blocks(graph, hashes(), least)


_ROUNDING = 1 + 1e-9
Draft = tuple[Sequence[Segment], Plan]


@dataclass(frozen=True, eq=False)
class AdmittedSegment:
    """Segment in the form that its device takes, with the device's answer."""

    part: Part
    admission: Admission
    unproven: Mapping[int, Unsupported] = field(default_factory=dict)
    """Atoms that must leave the device: they compute indices that nothing checks."""

    @property
    def is_ir(self) -> bool:
        return isinstance(self.part.model, Model)


@dataclass(frozen=True, eq=False)
class Partitioning:
    """Placed and cut model at one set of shapes."""

    setting: Setting
    judgment: Judgment
    placement: Placement
    plan: Plan
    pieces: tuple[AdmittedSegment | None, ...]
    """Segments by step; None for the host."""
    limits: tuple[RuleEffect, ...] = ()
    halvings: tuple[str, ...] = ()
    """Devices' reasons for refusing segments that were then halved."""
    weighed: Placement | None = None
    """The first placement, if it was not admitted."""

    @property
    def model(self) -> ShapedModel:
        return self.judgment.model

    @cached_property
    def price(self) -> PlanPrice:
        """Cost of the plan. The placement's prices are used unless a segment boundary splits a fused group."""
        from nnadapter.planning.pricing import costs_of, cpu_table, holds_together, price_plan  # needed only by reports

        placement, model, costs = self.placement, self.model, self.setting.costs
        if placement.table is not None and placement.graph is not None and holds_together(self.plan, placement.graph):
            table, graph = placement.table, placement.graph
        else:
            texts = [() if piece is None or not piece.is_ir else piece.admission.runs_as for piece in self.pieces]
            table, graph = costs_of(self.plan, model.conversion, texts, costs)
        cpu = cpu_table(table, graph, model.conversion, self.judgment.support.on_host, costs)
        return price_plan(self.plan, table, graph, cpu)


class Drafts:
    """Cache of the last draft (segments and plan before admission), reused until a verdict changes."""

    def __init__(self) -> None:
        self._last: Draft | None = None

    def clear(self) -> None:
        self._last = None

    def of(self, judgment: Judgment, placement: Placement, setting: Setting) -> Draft:
        """Return the cached draft if only verdicts decide the placement and none changed, otherwise a new draft."""
        if setting.constraints.policy.weighs or judgment.demands.device_by_atom:
            return draft(judgment, placement, setting)
        last = self._last
        if last is not None and _has_same_verdicts(last[1], judgment):
            return last[0], replace(last[1], graph=judgment.model.graph)
        self._last = current_draft = draft(judgment, placement, setting)
        return current_draft


def _has_same_verdicts(plan: Plan, judgment: Judgment) -> bool:
    graph = judgment.model.graph
    same = plan.graph.nodes is graph.nodes and plan.graph.atoms == graph.atoms
    return same and plan.verdicts == judgment.support.verdicts


@paused_collection
def settle(
    judgment: Judgment,
    setting: Setting,
    drafts: Drafts | None = None,
    known_segments: dict[Atoms, AdmittedSegment] | None = None,
) -> Partitioning:
    """Place and cut the model until every device admits its segments.

    If the cheapest placement is not admitted, other candidates are settled too, while their predicted cost is below
    the best result. `known_segments` caches answers by segment.

    Raises:
        InvalidModelError: no device takes some atom.
        RulesError: a limit or a pin cannot be satisfied.
    """
    drafts, known_segments = drafts or Drafts(), {} if known_segments is None else known_segments
    placement = place(judgment, setting)
    best = _partition(judgment, placement, setting, drafts, known_segments)
    placed = placement.placed
    if (
        judgment.demands.complete_placement is not None
        or placed is None
        or best.price.seconds <= placed.cost * _ROUNDING
    ):
        return best
    for candidate in placement.candidates():
        if candidate.cost >= best.price.seconds:
            break
        other = placed_as(judgment, candidate.placement)
        settled = _partition(other, place(other, setting), setting, drafts, known_segments)
        best = min(best, settled, key=lambda partitioning: partitioning.price.seconds)
    return replace(best, weighed=placement)


def _partition(
    judgment: Judgment,
    placement: Placement,
    setting: Setting,
    drafts: Drafts,
    known_segments: dict[Atoms, AdmittedSegment],
) -> Partitioning:
    host = setting.host.name
    effects: list[RuleEffect] = []
    halvings: dict[str, None] = {}
    segments, plan = drafts.of(judgment, placement, setting)
    while True:
        for step, segment in zip(plan.steps, segments, strict=True):
            if step.device != host and _key(segment) not in known_segments:
                known_segments[_key(segment)] = _ask(plan, step, judgment.model, setting)
        bans: dict[Atoms, Unsupported] = {
            (segment.device, (atom,)): reason
            for segment in segments
            if segment.device != host
            for atom, reason in known_segments[_key(segment)].unproven.items()
        }
        answers = {
            segment: known_segments[_key(segment)].admission.verdict for segment in segments if segment.device != host
        }
        refused = {segment: answer for segment, answer in answers.items() if isinstance(answer, Unsupported)}
        if not refused and not bans:
            pieces = tuple(known_segments.get(_key(segment)) for segment in segments)
            partitioning = Partitioning(setting, judgment, placement, plan, pieces, tuple(effects))
            dropped = segments_over_limits(partitioning, segments)
            effects.extend(dropped.effects)
            if not dropped.segments:
                return replace(partitioning, limits=tuple(effects), halvings=tuple(halvings))
            refused = {segments[at]: reason for at, reason in dropped.segments.items()}
        halved = {segment: _halves(segment, refusal, judgment.model) for segment, refusal in refused.items()}
        bans |= {_key(segment): refused[segment] for segment, halves in halved.items() if halves is None}
        if bans:
            judgment = banning(judgment, setting, bans)
            placement = place(judgment, setting)
            segments, plan = draft(judgment, placement, setting)
        else:
            halvings.update(dict.fromkeys(refusal.detail for refusal in refused.values()))
            segments = [part for segment in segments for part in halved.get(segment) or (segment,)]
            plan = _plan(judgment, placement, segments, exact=False)


def draft(judgment: Judgment, placement: Placement, setting: Setting) -> Draft:
    """Cut the placement, and return segments and plan before devices are asked to admit them."""
    graph, labels, host = placement.graph, placement.labels, setting.host.name
    if graph is None:
        segmentation = cut(judgment.model.graph, labels, host=host)
        return segmentation.segments, _plan(judgment, placement, segmentation.segments, exact=segmentation.exact)
    # Atoms that were priced as one stay in one segment.
    segmentation = cut(graph.graph, [labels[part[0]] for part in graph.parts], host=host)
    segments = [graph.spread_segment(segment) for segment in segmentation.segments]
    return segments, _plan(judgment, placement, segments, exact=segmentation.exact)


def _plan(judgment: Judgment, placement: Placement, segments: Sequence[Segment], *, exact: bool) -> Plan:
    support = judgment.support
    return make_plan(judgment.model.graph, support.devices, support.verdicts, placement.labels, segments, exact=exact)


def _ask(plan: Plan, step: Step, model: ShapedModel, setting: Setting) -> AdmittedSegment:
    device = setting.by_name[step.device]
    unproven = _unproven(plan, step, model, device)
    part = part_of(device.capability, device.kernels, step, model.conversion, model.parts)
    call = named_call(step.device, "admit", step.segment, [model.graph.nodes[node].name for node in step.nodes])
    ban = device.bans.find(part.model) if device.bans else None
    if ban is not None and ban.is_size:
        return AdmittedSegment(part, Admission(verdict=Unsupported(Reason.MEMORY_LIMIT, ban.text)))
    with setting.trace.span(step.device, PLAN, f"admit segment {step.segment}"):
        return AdmittedSegment(part, call(ask_admission, device.context, part.model), unproven)


def _unproven(plan: Plan, step: Step, model: ShapedModel, device: SessionDevice) -> Mapping[int, Unsupported]:
    if not device.accelerates or device.capability.checks_indices:
        return {}
    refused = refusals_of_indices(model, plan, step)
    if device.capability.dynamic_shapes is not DynamicShapes.NONE and _has_open_sizes(model):
        parts = DynamicParts(model.parts.specialized, model.parts.index, model.prepared)
        open_model, open_plan = replace(model, parts=parts), replace(plan, graph=parts.open_graph)
        refused = {**refusals_of_indices(open_model, open_plan, step), **refused}
    return {plan.graph.atom_of[node]: reason for node, reason in refused.items()}


def _has_open_sizes(model: ShapedModel) -> bool:
    graph = model.prepared.graph
    return any(not isinstance(size, int) for name in graph.inputs for size in graph.value(name).shape or ())


def _halves(segment: Segment, refusal: Unsupported, model: ShapedModel) -> tuple[Segment, Segment] | None:
    if refusal.reason is not Reason.MEMORY_LIMIT:
        return None
    return halve(segment, {atom: _bytes(atom, model) for atom in segment.atoms})


def _bytes(atom: int, model: ShapedModel) -> int:
    graph, constants = model.graph, model.specialized.constants
    nodes = [graph.nodes[node] for node in graph.atoms[atom]]
    weights = {name: constants[name].nbytes for node in nodes for name in node.reads if name in constants}
    return sum(weights.values()) + sum(graph.value(name).nbytes or 0 for node in nodes for name in node.outputs)


def segments_over_limits(partitioning: Partitioning, segments: Sequence[Segment]) -> SegmentsDroppedByLimits:
    """Return the segments that the user's limits drop.

    Raises:
        RulesError: a limit cannot be satisfied, or needs unknown costs.
    """
    setting, plan, flops = partitioning.setting, partitioning.plan, partitioning.model.conversion.flops
    rules = setting.constraints.rules
    limits = rules.limits
    if limits == Limits():
        return SegmentsDroppedByLimits(segments={}, effects=())
    priced = limits.min_benefit_ms is not None or limits.max_segments is not None
    saved = partitioning.price.benefits if priced else [None] * len(segments)
    candidates = [
        SegmentCandidate(
            segment=segment,
            accelerated=segment.device in setting.accelerators,
            nodes=len(step.nodes),
            flops=sum(flops[node] or 0 for node in step.nodes),
            benefit=benefit,
        )
        for segment, step, benefit in zip(segments, plan.steps, saved, strict=True)
    ]
    return segments_to_drop(rules, candidates, plan.verdicts)


def _key(segment: Segment) -> Atoms:
    return segment.device, segment.atoms
