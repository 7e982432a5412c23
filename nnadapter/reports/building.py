"""A report from an analyzed or compiled model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import eq
from typing import TYPE_CHECKING

from nnadapter.costs.weights import weight_bytes
from nnadapter.drivers.capability import OptionValue
from nnadapter.drivers.interface import NO_OPERATION
from nnadapter.drivers.selection import CPU, HOSTS
from nnadapter.plan_files.values import LostEntry
from nnadapter.planning.judged import Analysis, Piece
from nnadapter.planning.pricing import PlanPrice
from nnadapter.process.collecting import paused_collection
from nnadapter.reports.cost_facts import CostFacts, PlanFileFacts, RuleFacts, WeightFacts
from nnadapter.reports.costing import cost_facts, timed_facts, unknown_costs
from nnadapter.reports.facts import (
    BodyFacts,
    Coverage,
    NodeFacts,
    PartitionReport,
    Refusal,
    SegmentFacts,
    TensorFacts,
)
from nnadapter.running.executor import called
from nnadapter.running.plans import PlanCounts
from partition.graph import Graph
from partition.plan import Plan, Step
from partition.verdict import Unsupported

_SEARCHED = 3
"""Devices from which on the fewest segments have to be searched for."""

if TYPE_CHECKING:
    from nnadapter.running.compilation import Compiled, Timed
    from nnadapter.running.executor import BoundStep


@dataclass(frozen=True, eq=False)
class Observed:
    """What is known of a compiled plan and not of an analysis."""

    seconds: Mapping[int, float] = field(default_factory=dict)
    compile_seconds: Mapping[int, float] = field(default_factory=dict)
    bound_to: Mapping[int, int] = field(default_factory=dict)
    failures: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    plans: PlanCounts | None = None
    timed: tuple[Timed, ...] = ()
    """Placements that were timed, the fastest being the plan."""
    model: str = ""
    """The model's name."""
    chosen: str = ""
    """Where and with what they were timed."""


@paused_collection()
def report_of(analysis: Analysis, policy: str, observed: Observed | None = None) -> PartitionReport:
    """Return the report of an analyzed model."""
    observed = observed or Observed()
    unknown = unknown_costs(analysis)
    price = None if unknown else analysis.price
    nodes = _node_facts(analysis, price)
    segments = tuple(
        _segment_facts(analysis, step, observed, piece, price)
        for step, piece in zip(analysis.plan.steps, analysis.pieces, strict=True)
    )
    return PartitionReport(
        devices=analysis.plan.devices,
        policy=policy,
        input_shapes=dict(analysis.shapes),
        coverage=_coverage([node for node in nodes if node.state == "runs"]),
        segments=segments,
        nodes=nodes,
        switches=analysis.plan.switches,
        exact=analysis.plan.exact,
        notes=observed.notes,
        plans=observed.plans,
        weights=_weights(analysis.plan),
        cost=_cost(analysis, observed, unknown),
        cost_note=unknown if not observed.timed else "",
        rules=_rules(analysis),
        plan_file=_plan_file(analysis),
        search=_search(analysis.plan),
        model=observed.model,
        fallback=analysis.judged.placer.options.fallback,
        device_options={
            target.name: {name: _option(value) for name, value in target.options.items()}
            for target in analysis.judged.asked
            if target.options
        },
    )


def report_of_compiled(compiled: Compiled, policy: str, plans: PlanCounts) -> PartitionReport:
    """Return the report of a compiled plan, with what its last run took, what failed, and how it was chosen."""
    steps = compiled.plan.steps
    observed = Observed(
        seconds={bound.step.segment: bound.seconds for bound in steps if bound.seconds},
        compile_seconds=compiled.compile_seconds,
        bound_to=compiled.bound_to,
        failures={bound.step.segment: tuple(bound.failures) for bound in steps if bound.failures},
        notes=(*compiled.notes, *(_fell_back(compiled, bound) for bound in steps if bound.failures)),
        plans=plans,
        timed=compiled.timed,
        chosen=compiled.chosen,
    )
    return report_of(compiled.analysis, policy, observed)


def _fell_back(compiled: Compiled, bound: BoundStep) -> str:
    step, graph = bound.step, compiled.analysis.plan.graph
    names = ", ".join(repr(graph.nodes[node].name) for node in step.nodes[:3])
    more = f" and {len(step.nodes) - 3} more" if len(step.nodes) > 3 else ""
    instead = called(bound.substitute.device if bound.substitute is not None else CPU)
    return (
        f"device {step.device!r} failed while it ran segment {step.segment} ({names}{more}): "
        f"{'; '.join(bound.failures)}; it ran on {instead}, whose time is shown"
    )


def _node_facts(analysis: Analysis, price: PlanPrice | None) -> tuple[NodeFacts, ...]:
    specialized = analysis.specialized
    running = {position: node for node, position in reversed([*enumerate(specialized.positions)])}
    seconds = price.of_nodes(analysis.plan, analysis.conversion.flops) if price is not None else {}
    folded = frozenset(specialized.folded)
    step_of = {node: step for step in analysis.plan.steps for node in step.nodes}
    runs_as, sizes = _runs_as(analysis), _sizes(analysis.plan.graph)
    return tuple(
        _running(analysis, running[position], step_of[running[position]], runs_as, sizes, seconds)
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
    found: dict[str, int] = defaultdict(int)
    for name, value in graph.values.items():
        like = value.itemsize, value.shape
        if like not in known:
            known[like] = value.nbytes or 0
        found[name] = known[like]
    found[""] = 0  # stands for outputs that nobody asked for
    return found


def _running(
    analysis: Analysis,
    index: int,
    step: Step,
    runs_as: Mapping[int, str],
    sizes: Mapping[str, int],
    seconds: Mapping[int, float],
) -> NodeFacts:
    plan = analysis.plan
    node = plan.graph.nodes[index]
    return NodeFacts(
        name=node.name,
        op_type=node.op_type,
        domain=node.domain,
        state="runs",
        device=step.device,
        segment=step.segment,
        runs_as=runs_as.get(index, ""),
        flops=analysis.conversion.flops[index],
        nbytes=sum(map(sizes.__getitem__, {*node.reads, *node.outputs})),
        predicted_seconds=seconds.get(index),
        refusals=tuple(_refusals(plan, index)),
        bodies=tuple(BodyFacts(name=name, op_types=types) for name, types in analysis.specialized.nodes[index].bodies),
    )


def _refusals(plan: Plan, index: int) -> Iterator[Refusal]:
    atom = plan.graph.atom_of[index]
    for name in plan.devices:
        verdict = plan.verdicts[name][atom]
        if isinstance(verdict, Unsupported):
            yield Refusal(device=name, reason=verdict.reason.value, detail=verdict.detail)


def _runs_as(analysis: Analysis) -> dict[int, str]:
    """What the devices say each node runs as, in the words of the operations it became."""
    found: dict[int, str] = {}
    for step, piece in zip(analysis.plan.steps, analysis.pieces, strict=True):
        if piece is None or not piece.admission.runs_as:
            continue
        if piece.is_ir:
            operations = sorted((part, node) for node in step.nodes for part in analysis.conversion.operations[node])
            owners = [analysis.plan.graph.atoms[analysis.plan.graph.atom_of[node]] for _, node in operations]
        else:
            owners = [(node,) for node in step.nodes]
        words: dict[int, dict[str, None]] = {}
        for nodes, text in zip(owners, piece.admission.runs_as, strict=False):
            for node in nodes:
                words.setdefault(node, {})[text] = None
        found.update((node, ", ".join(_telling(texts))) for node, texts in words.items())
    return found


def _telling(texts: Collection[str]) -> Collection[str]:
    """What says something, if anything does."""
    return [text for text in texts if text != NO_OPERATION] or texts


def _segment_facts(
    analysis: Analysis, step: Step, observed: Observed, piece: Piece | None, price: PlanPrice | None
) -> SegmentFacts:
    graph = analysis.plan.graph
    facts = SegmentFacts(
        index=step.segment,
        device=step.device,
        nodes=tuple(graph.nodes[node].name for node in step.nodes),
        inputs=tuple(_tensor(graph, name) for name in step.inputs),
        outputs=tuple(_tensor(graph, name) for name in step.outputs),
        flops=sum(analysis.conversion.flops[node] or 0 for node in step.nodes),
        weight_bytes=sum(graph.value(name).nbytes or 0 for name in step.constants),
        facts=_told(piece),
        seconds=observed.seconds.get(step.segment),
        failures=observed.failures.get(step.segment, ()),
        compile_seconds=observed.compile_seconds.get(step.segment),
        bound_to=observed.bound_to.get(step.segment),
    )
    return facts if price is None else _with_cost(facts, price)


def _with_cost(facts: SegmentFacts, price: PlanPrice) -> SegmentFacts:
    cost = price.segments[facts.index]
    return replace(
        facts,
        predicted_seconds=cost.total,
        transfer_seconds=cost.into + cost.out,
        launch_seconds=cost.launch,
        benefit_seconds=price.benefits[facts.index],
    )


def _cost(analysis: Analysis, observed: Observed, unknown: str) -> CostFacts | None:
    if observed.timed:
        return timed_facts(analysis, observed.timed, observed.chosen)
    return None if unknown else cost_facts(analysis)


def _weights(plan: Plan) -> WeightFacts:
    held = weight_bytes(plan)
    return WeightFacts(devices=held.per_device, total=held.total)


def _rules(analysis: Analysis) -> tuple[RuleFacts, ...]:
    applied = analysis.judged.applied
    effects = (*(applied.effects if applied is not None else ()), *analysis.limits)
    return tuple(
        RuleFacts(text=each.rule, source=each.source, line=each.line, nodes=each.nodes, note=each.note)
        for each in effects
    )


def _option(value: OptionValue) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _search(plan: Plan) -> str:
    devices = [step.device for step in plan.steps]
    few = len(set(devices)) < _SEARCHED
    if plan.exact:
        return "exact for two devices" if few else "an exact search"
    if any(map(eq, devices, devices[1:])):  # two turns of one device are never found one behind the other
        return "a segment was cut in two for its device's memory"
    return "a beam search, bounded in its work"


def _plan_file(analysis: Analysis) -> PlanFileFacts | None:
    bound, source = analysis.judged.bound, analysis.judged.placer.plan
    if bound is None or source is None:
        return None
    plan, graph = analysis.plan, analysis.plan.graph
    taken = [(atom, device) for atom, device in bound.placement.items() if plan.placement[atom] != device]
    lost = tuple(
        LostEntry(name=graph.nodes[node].name, device=device, why=_why_taken(plan, atom, device))
        for atom, device in taken
        for node in graph.atoms[atom]
    )
    nodes = sum(len(graph.atoms[atom]) for atom in bound.placement)
    return PlanFileFacts(path=source.source, bound=nodes - len(lost), lost=(*bound.lost, *lost))


def _why_taken(plan: Plan, atom: int, device: str) -> str:
    """Why a node is not where the plan file had put it: a limit, or a device that did not admit the segment."""
    verdict = plan.verdicts[device][atom]
    return f"it is on {plan.placement[atom]!r}" + ("" if verdict else f", as {device!r} does not get it: {verdict}")


def _told(piece: Piece | None) -> dict[str, int | float | str]:
    """What the device said of a segment; what is neither number nor text is turned into text."""
    told = piece.admission.facts if piece is not None else {}
    return {str(name): value if isinstance(value, (int, float, str)) else str(value) for name, value in told.items()}


def _tensor(graph: Graph, name: str) -> TensorFacts:
    value = graph.value(name)
    return TensorFacts(name=name, dtype=value.dtype, shape=value.shape, nbytes=value.nbytes)


def _coverage(running: Sequence[NodeFacts]) -> Coverage:
    away = [node for node in running if node.device not in HOSTS]
    nodes = _share(len(away), len(running), 0.0)
    return Coverage(
        nodes=nodes,
        flops=_share(sum(node.flops or 0 for node in away), sum(node.flops or 0 for node in running), nodes),
        bytes=_share(sum(node.nbytes for node in away), sum(node.nbytes for node in running), nodes),
    )


def _share(part: int, whole: int, otherwise: float) -> float:
    return part / whole if whole else otherwise
