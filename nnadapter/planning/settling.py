"""Judgment -> placement -> segments that their devices admit.

Nothing is compiled here. The third stage of a verdict, the driver's on every final segment, is asked here. A segment
that is too large for its device is cut in two by bytes; one that is refused for another reason, that is a single
atom, or that a person's limits give up, goes to the next device, and the graph is cut again. Every round bans at least
one atom from one device, so this ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from nnadapter.candidates.segments import DynamicParts, Part, ShapedModel, part_of
from nnadapter.drivers.boundary import ask_admission
from nnadapter.drivers.capability import DynamicShapes
from nnadapter.drivers.failures import named_call
from nnadapter.drivers.interface import Admission
from nnadapter.ir.model import Model
from nnadapter.planning.indices import refusals_of_indices
from nnadapter.planning.judgment import Atoms, Judgment, banning, placed_as
from nnadapter.planning.placing import Placement, place
from nnadapter.planning.setting import SessionDevice, Setting
from nnadapter.process.resources import paused_collection
from nnadapter.rules.application import RuleEffect, SegmentCandidate, SegmentsDroppedByLimits, segments_to_drop
from nnadapter.rules.values import Limits
from nnadapter.traces.trace import PLAN
from partition.plan import Plan, Step, make_plan
from partition.segments import Segment, cut, halve
from partition.verdict import Reason, Unsupported

if TYPE_CHECKING:
    from nnadapter.planning.pricing import PlanPrice

_ROUNDING = 1 + 1e-9
"""What the price of a plan may be above that of its placement, being summed in another order."""
Draft = tuple[Sequence[Segment], Plan]
"""The segments and the plan, if no device refuses a segment."""


@dataclass(frozen=True, eq=False)
class AdmittedSegment:
    """A segment that its device admitted, in the form that it takes. The host's are made when they are compiled."""

    part: Part
    admission: Admission
    unproven: Mapping[int, Unsupported] = field(default_factory=dict)
    """Why atoms of it cannot stay there: they compute indices that nothing checks."""

    @property
    def is_ir(self) -> bool:
        """The model is adapter IR."""
        return isinstance(self.part.model, Model)


@dataclass(frozen=True, eq=False)
class Partitioning:
    """One model at one set of shapes, placed and cut."""

    setting: Setting
    judgment: Judgment
    """The last verdicts."""
    placement: Placement
    """By these verdicts."""
    plan: Plan
    pieces: tuple[AdmittedSegment | None, ...]
    """Per step of the plan; None for the host."""
    limits: tuple[RuleEffect, ...] = ()
    """What limits on segments did."""
    halvings: tuple[str, ...] = ()
    """Why segments were cut in two, in the words of their devices."""
    weighed: Placement | None = None
    """What was weighed first, where devices or limits did not admit the cheapest as it was."""

    @property
    def model(self) -> ShapedModel:
        """What was placed."""
        return self.judgment.model

    @cached_property
    def price(self) -> PlanPrice:
        """What the plan costs: by the prices that it was placed by, where costs decided and still tell of it."""
        from nnadapter.planning.pricing import costs_of, cpu_table, holds_together, price_plan  # reports ask for it

        placement, model, costs = self.placement, self.model, self.setting.costs
        if placement.table is not None and placement.graph is not None and holds_together(self.plan, placement.graph):
            table, graph = placement.table, placement.graph
        else:
            texts = [() if piece is None or not piece.is_ir else piece.admission.runs_as for piece in self.pieces]
            table, graph = costs_of(self.plan, model.conversion, texts, costs)
        cpu = cpu_table(table, graph, model.conversion, self.judgment.support.on_host, costs)
        return price_plan(self.plan, table, graph, cpu)


class Drafts:
    """The draft that was asked for last, which other shapes share as long as no verdict changes."""

    def __init__(self) -> None:
        self._last: Draft | None = None

    def clear(self) -> None:
        """Forget it."""
        self._last = None

    def of(self, judgment: Judgment, placement: Placement, setting: Setting) -> Draft:
        """See `draft`. Where costs decide, other sizes may be placed otherwise, and nothing is shared."""
        if setting.constraints.policy.weighs or judgment.demands.kept:
            return draft(judgment, placement, setting)
        last = self._last
        if last is not None and _is_alike(last[1], judgment):
            return last[0], replace(last[1], graph=judgment.model.graph)
        self._last = made = draft(judgment, placement, setting)
        return made


def _is_alike(plan: Plan, judgment: Judgment) -> bool:
    graph = judgment.model.graph
    same = plan.graph.nodes is graph.nodes and plan.graph.atoms == graph.atoms
    return same and plan.verdicts == judgment.support.verdicts


@paused_collection
def settle(
    judgment: Judgment,
    setting: Setting,
    drafts: Drafts | None = None,
    known: dict[Atoms, AdmittedSegment] | None = None,
) -> Partitioning:
    """Place and cut until every segment is admitted by its device.

    Where costs decide, and devices or limits did not admit what was cheapest, the other candidates are settled as well,
    as long as they promise to be cheaper, and the cheapest is returned.

    Args:
        judgment: what devices say.
        setting: the devices.
        drafts: what other shapes share.
        known: answers from before, by segment; new ones are added.

    Raises:
        InvalidModelError: no device takes some atom.
        RulesError: a limit or a pin cannot be kept.
    """
    drafts, known = drafts or Drafts(), {} if known is None else known
    placement = place(judgment, setting)
    best = _partition(judgment, placement, setting, drafts, known)
    placed = placement.placed
    if judgment.demands.whole is not None or placed is None or best.price.seconds <= placed.cost * _ROUNDING:
        return best
    for candidate in placement.candidates():
        if candidate.cost >= best.price.seconds:
            break
        other = placed_as(judgment, candidate.placement)
        settled = _partition(other, place(other, setting), setting, drafts, known)
        best = min(best, settled, key=lambda partitioning: partitioning.price.seconds)
    return replace(best, weighed=placement)


def _partition(
    judgment: Judgment, placement: Placement, setting: Setting, drafts: Drafts, known: dict[Atoms, AdmittedSegment]
) -> Partitioning:
    """The one placement, cut until every segment is admitted by its device."""
    host = setting.host.name
    effects: list[RuleEffect] = []
    halvings: dict[str, None] = {}
    segments, plan = drafts.of(judgment, placement, setting)
    while True:
        for step, segment in zip(plan.steps, segments, strict=True):
            if step.device != host and _key(segment) not in known:
                known[_key(segment)] = _ask(plan, step, judgment.model, setting)
        bans: dict[Atoms, Unsupported] = {
            (segment.device, (atom,)): why
            for segment in segments
            if segment.device != host
            for atom, why in known[_key(segment)].unproven.items()
        }
        answers = {segment: known[_key(segment)].admission.verdict for segment in segments if segment.device != host}
        refused = {segment: answer for segment, answer in answers.items() if isinstance(answer, Unsupported)}
        if not refused and not bans:
            pieces = tuple(known.get(_key(segment)) for segment in segments)
            partitioning = Partitioning(setting, judgment, placement, plan, pieces, tuple(effects))
            dropped = segments_over_limits(partitioning, segments)
            effects.extend(dropped.effects)
            if not dropped.segments:
                return replace(partitioning, limits=tuple(effects), halvings=tuple(halvings))
            refused = {segments[at]: why for at, why in dropped.segments.items()}
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
    """The segments and the plan, if no device refuses a segment."""
    graph, labels, host = placement.graph, placement.labels, setting.host.name
    if graph is None:
        segmentation = cut(judgment.model.graph, labels, host=host)
        return segmentation.segments, _plan(judgment, placement, segmentation.segments, exact=segmentation.exact)
    # What was priced as one stays in one segment.
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
    """Return why atoms of a step cannot stay on its device."""
    if not device.accelerates or device.capability.checks_indices:
        return {}
    refused = refusals_of_indices(model, plan, step)
    if device.capability.dynamic_shapes is not DynamicShapes.NONE and _has_open_sizes(model):
        parts = DynamicParts(model.parts.specialized, model.parts.index, model.prepared)
        open_model, open_plan = replace(model, parts=parts), replace(plan, graph=parts.open_graph)
        refused = {**refusals_of_indices(open_model, open_plan, step), **refused}
    return {plan.graph.atom_of[node]: why for node, why in refused.items()}


def _has_open_sizes(model: ShapedModel) -> bool:
    graph = model.prepared.graph
    return any(not isinstance(size, int) for name in graph.inputs for size in graph.value(name).shape or ())


def _halves(segment: Segment, refusal: Unsupported, model: ShapedModel) -> tuple[Segment, Segment] | None:
    if refusal.reason is not Reason.MEMORY_LIMIT:
        return None
    return halve(segment, {atom: _bytes(atom, model) for atom in segment.atoms})


def _bytes(atom: int, model: ShapedModel) -> int:
    """Bytes that an atom keeps on a device: its weights and what it makes."""
    graph, constants = model.graph, model.specialized.constants
    nodes = [graph.nodes[node] for node in graph.atoms[atom]]
    weights = {name: constants[name].nbytes for node in nodes for name in node.reads if name in constants}
    return sum(weights.values()) + sum(graph.value(name).nbytes or 0 for node in nodes for name in node.outputs)


def segments_over_limits(partitioning: Partitioning, segments: Sequence[Segment]) -> SegmentsDroppedByLimits:
    """Return the segments that the person's limits give up; none if there are no limits.

    Raises:
        RulesError: a limit cannot be kept, or needs costs that nobody knows.
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
