"""A report from an analyzed or compiled model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from operator import eq

from nnadapter.costs.weights import weight_bytes
from nnadapter.drivers.capability import OptionValue
from nnadapter.drivers.interface import NO_OPERATION
from nnadapter.onnx.preparation.choice import Taken
from nnadapter.options import fallback_text
from nnadapter.plan_files.values import UnmatchedEntry
from nnadapter.planning.pricing import PlanPrice
from nnadapter.planning.settling import AdmittedSegment, Partitioning
from nnadapter.process.cache import cache_counts
from nnadapter.process.collecting import paused_collection
from nnadapter.reports.circumstances import machine, versions_of
from nnadapter.reports.cost_facts import CostFacts, PlanFileFacts, RuleFacts, WeightFacts
from nnadapter.reports.costing import cost_facts, timed_facts, unknown_costs
from nnadapter.reports.facts import (
    BodyFacts,
    BranchDecisionFacts,
    CacheFacts,
    Coverage,
    NodeFacts,
    RefusalFacts,
    SegmentFacts,
    TensorFacts,
)
from nnadapter.reports.incident_facts import incident_facts
from nnadapter.reports.place_facts import boundary_facts
from nnadapter.reports.report import PartitionReport
from nnadapter.reports.switching import refusal_costs
from nnadapter.reports.transfer_facts import transfer_facts
from nnadapter.running.observed import Observed
from partition.graph import Graph
from partition.plan import Plan, Step
from partition.verdict import Unsupported

_SEARCHED = 3
"""Devices from which on the fewest segments have to be searched for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _NodesTold:
    """What is told of nodes beside what stands at them, found for all at once."""

    runs_as: Mapping[int, str]
    """By node, as `seconds`."""
    refusals: Mapping[int, tuple[RefusalFacts, ...]]
    """By atom."""
    sizes: Mapping[str, int]
    """Bytes by value."""
    seconds: Mapping[int, float]


@paused_collection
def report_of(observed: Observed) -> PartitionReport:
    """Return the report of a model that was placed and cut, with what was seen of it."""
    partitioning = observed.partitioning
    constraints, devices = partitioning.setting.constraints, partitioning.setting.by_name
    unknown = unknown_costs(partitioning)
    price = None if unknown else partitioning.price
    nodes = _node_facts(partitioning, price)
    tensors = _tensors(partitioning.plan)
    segments = tuple(
        _segment_facts(partitioning, step, observed, piece, price, tensors)
        for step, piece in zip(partitioning.plan.steps, partitioning.pieces, strict=True)
    )
    return PartitionReport(
        devices=partitioning.plan.devices,
        policy=constraints.policy.name,
        input_shapes=dict(partitioning.model.shapes),
        coverage=_coverage([node for node in nodes if node.state == "runs"], partitioning.setting.accelerators),
        segments=segments,
        nodes=nodes,
        switches=partitioning.plan.switches,
        exact=partitioning.plan.exact,
        notes=observed.notes,
        plans=observed.plans,
        caches=() if observed.plans is None else cache_counts(),
        weights=_weights(partitioning.plan),
        cost=_cost(partitioning, observed, unknown),
        cost_note=unknown if not observed.timed else "",
        rules=_rules(partitioning),
        plan_file=_plan_file(partitioning),
        isolated=tuple(name for name in partitioning.plan.devices if devices[name].is_isolated),
        search=_search(partitioning.plan, partitioning.halvings),
        model=observed.model,
        fallback=fallback_text(constraints.fallback),
        device_options={
            name: {option: _option(value) for option, value in devices[name].options.items()}
            for name in partitioning.judgment.support.devices
            if devices[name].options
        },
        refusal_costs=refusal_costs(partitioning.plan, price),
        versions=versions_of(partitioning.plan.devices),
        borders=boundary_facts(partitioning),
        transfers=transfer_facts(observed.transfers),
        **incident_facts(observed.incidents),
        choice=tuple(map(_choice_facts, partitioning.model.prepared.choice)),
        machine=machine(),
    )


def _choice_facts(taken: Taken) -> BranchDecisionFacts:
    return BranchDecisionFacts(condition=taken.condition, holds=taken.holds, nodes=taken.nodes)


def _node_facts(partitioning: Partitioning, price: PlanPrice | None) -> tuple[NodeFacts, ...]:
    specialized = partitioning.model.specialized
    running = {position: node for node, position in reversed([*enumerate(specialized.positions)])}
    seconds = price.of_nodes(partitioning.plan, partitioning.model.conversion.flops) if price is not None else {}
    folded = frozenset(specialized.folded)
    step_of = {node: step for step in partitioning.plan.steps for node in step.nodes}
    told = _NodesTold(
        runs_as=_runs_as(partitioning),
        refusals=_refusals(partitioning.plan),
        sizes=_sizes(partitioning.plan.graph),
        seconds=seconds,
    )
    return tuple(
        _running(partitioning, running[position], step_of[running[position]], told)
        if position in running
        else NodeFacts(
            name=node.name,
            op_type=node.op_type,
            domain=node.domain,
            state="folded" if node.name in folded else "unused",
        )
        for position, node in enumerate(specialized.own.nodes)
    )


def _sizes(graph: Graph) -> Mapping[str, int]:
    """Bytes of every value, 0 where they are not known; few sizes are the sizes of many values."""
    known: dict[tuple[float, object], int] = {}
    sizes_by_name: dict[str, int] = defaultdict(int)
    for name, value in graph.values.items():
        like = value.itemsize, value.shape
        if like not in known:
            known[like] = value.nbytes or 0
        sizes_by_name[name] = known[like]
    sizes_by_name[""] = 0  # stands for outputs that nobody asked for
    return sizes_by_name


def _running(partitioning: Partitioning, index: int, step: Step, told: _NodesTold) -> NodeFacts:
    graph, model = partitioning.plan.graph, partitioning.model
    node, bodies = graph.nodes[index], model.specialized.nodes[index].bodies
    return NodeFacts(
        name=node.name,
        op_type=node.op_type,
        domain=node.domain,
        state="runs",
        device=step.device,
        segment=step.segment,
        runs_as=told.runs_as.get(index, ""),
        flops=model.conversion.flops[index],
        nbytes=sum(map(told.sizes.__getitem__, {*node.reads, *node.outputs})),
        predicted_seconds=told.seconds.get(index),
        refusals=told.refusals.get(graph.atom_of[index], ()),
        bodies=tuple(BodyFacts(name=name, op_types=types) for name, types in bodies) if bodies else (),
    )


def _refusals(plan: Plan) -> Mapping[int, tuple[RefusalFacts, ...]]:
    """Why devices refused atoms, in the order of the devices; most atoms nobody refused."""
    refusals: dict[int, tuple[RefusalFacts, ...]] = {}
    for name in plan.devices:
        for atom, verdict in enumerate(plan.verdicts[name]):
            if isinstance(verdict, Unsupported):
                refusal = RefusalFacts(device=name, reason=verdict.reason.value, detail=verdict.detail)
                refusals[atom] = (*refusals.get(atom, ()), refusal)
    return refusals


def _runs_as(partitioning: Partitioning) -> Mapping[int, str]:
    """What the devices say each node runs as, in the words of the operations it became."""
    texts_of: dict[int, dict[str, None]] = defaultdict(dict)
    graph, operations_of = partitioning.plan.graph, partitioning.model.conversion.operations
    for step, piece in zip(partitioning.plan.steps, partitioning.pieces, strict=True):
        if piece is None or not piece.admission.runs_as:
            continue
        owners: Iterable[tuple[int, ...]] = ((node,) for node in step.nodes)
        if piece.is_ir:
            operations = sorted([(part, node) for node in step.nodes for part in operations_of[node]])
            owners = [graph.atoms[graph.atom_of[node]] for _, node in operations]
        for nodes, text in zip(owners, piece.admission.runs_as, strict=False):
            for node in nodes:
                texts_of[node][text] = None
    return {node: ", ".join(_telling(texts)) for node, texts in texts_of.items()}


def _telling(texts: Collection[str]) -> Collection[str]:
    """What says something, if anything does."""
    return texts if len(texts) == 1 else [text for text in texts if text != NO_OPERATION] or texts


def _segment_facts(
    partitioning: Partitioning,
    step: Step,
    observed: Observed,
    piece: AdmittedSegment | None,
    price: PlanPrice | None,
    tensors: Mapping[str, TensorFacts],
) -> SegmentFacts:
    graph, flops = partitioning.plan.graph, partitioning.model.conversion.flops
    facts = SegmentFacts(
        index=step.segment,
        device=step.device,
        nodes=tuple(graph.nodes[node].name for node in step.nodes),
        inputs=tuple(tensors[name] for name in step.inputs),
        outputs=tuple(tensors[name] for name in step.outputs),
        flops=sum(flops[node] or 0 for node in step.nodes),
        uncounted=sum(flops[node] is None for node in step.nodes),
        weight_bytes=sum(graph.value(name).nbytes or 0 for name in step.constants),
        facts=_told(piece),
        seconds=observed.seconds.get(step.segment),
        failures=observed.failures.get(step.segment, ()),
        compile_seconds=observed.compile_seconds.get(step.segment),
        bound_to=observed.bound_to.get(step.segment),
        cache=_cached(observed, step.segment),
    )
    return facts if price is None else _with_cost(facts, price)


def _cached(observed: Observed, segment: int) -> CacheFacts | None:
    outcome = observed.cache.get(segment)
    return None if outcome is None else CacheFacts(outcome.is_hit, outcome.why)


def _with_cost(facts: SegmentFacts, price: PlanPrice) -> SegmentFacts:
    cost = price.segments[facts.index]
    return replace(
        facts,
        predicted_seconds=cost.total,
        transfer_seconds=cost.into + cost.out,
        launch_seconds=cost.launch,
        benefit_seconds=price.benefits[facts.index],
    )


def _cost(partitioning: Partitioning, observed: Observed, unknown: str) -> CostFacts | None:
    if observed.timed:
        return timed_facts(partitioning, observed.timed, observed.chosen)
    return None if unknown else cost_facts(partitioning)


def _weights(plan: Plan) -> WeightFacts:
    held = weight_bytes(plan)
    return WeightFacts(devices=held.per_device, total=held.total)


def _rules(partitioning: Partitioning) -> tuple[RuleFacts, ...]:
    applied = partitioning.judgment.demands.applied
    effects = (*(applied.effects if applied is not None else ()), *partitioning.limits)
    return tuple(
        RuleFacts(text=effect.rule, source=effect.source, nodes=effect.nodes, note=effect.note) for effect in effects
    )


def _option(value: OptionValue) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _search(plan: Plan, halvings: Sequence[str] = ()) -> str:
    devices = [step.device for step in plan.steps]
    few = len(set(devices)) < _SEARCHED
    if plan.exact:
        return "exact for two devices" if few else "an exact search"
    if any(map(eq, devices, devices[1:])):  # two turns of one device are never found one behind the other
        return (
            f"a segment was cut in two: {halvings[0]}"
            if halvings
            else "a segment was cut in two, as its device does not take it whole"
        )
    return "a beam search, bounded in its work"


def _plan_file(partitioning: Partitioning) -> PlanFileFacts | None:
    bound, source = partitioning.judgment.demands.bound, partitioning.setting.constraints.plan_file
    if bound is None or source is None:
        return None
    plan, graph = partitioning.plan, partitioning.plan.graph
    taken = [(atom, device) for atom, device in bound.placement.items() if plan.placement[atom] != device]
    lost = tuple(
        UnmatchedEntry(name=graph.nodes[node].name, device=device, why=_why_taken(plan, atom, device))
        for atom, device in taken
        for node in graph.atoms[atom]
    )
    nodes = sum(len(graph.atoms[atom]) for atom in bound.placement)
    return PlanFileFacts(path=source.source, bound=nodes - len(lost), lost=(*bound.lost, *lost))


def _why_taken(plan: Plan, atom: int, device: str) -> str:
    """Why a node is not where the plan file had put it: a limit, or a device that did not admit the segment."""
    verdict = plan.verdicts[device][atom]
    return f"it is on {plan.placement[atom]!r}" + ("" if verdict else f", as {device!r} does not get it: {verdict}")


def _told(piece: AdmittedSegment | None) -> dict[str, int | float | str]:
    """What the device said of a segment; what is neither number nor text is turned into text."""
    told = piece.admission.facts if piece is not None else {}
    return {str(name): value if isinstance(value, (int, float, str)) else str(value) for name, value in told.items()}


def _tensors(plan: Plan) -> Mapping[str, TensorFacts]:
    """What crosses borders, by name: most of it is made in one segment and read in another."""
    names = dict.fromkeys(name for step in plan.steps for name in (*step.inputs, *step.outputs))
    values = map(plan.graph.value, names)
    return {
        value.name: TensorFacts(name=value.name, dtype=value.dtype, shape=value.shape, nbytes=value.nbytes)
        for value in values
    }


def _coverage(running: Sequence[NodeFacts], accelerators: Set[str]) -> Coverage:
    away = [node for node in running if node.device in accelerators]
    nodes = _share(len(away), len(running), 0.0)
    return Coverage(
        nodes=nodes,
        flops=_share(sum(node.flops or 0 for node in away), sum(node.flops or 0 for node in running), nodes),
        bytes=_share(sum(node.nbytes for node in away), sum(node.nbytes for node in running), nodes),
    )


def _share(part: int, whole: int, otherwise: float) -> float:
    return part / whole if whole else otherwise
