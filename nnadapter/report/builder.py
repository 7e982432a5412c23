"""Construction of a PartitionReport from a planned or compiled model."""

from __future__ import annotations

import os
import platform
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from importlib.metadata import version
from itertools import islice, pairwise
from math import isfinite
from operator import eq
from typing import TYPE_CHECKING

from nnadapter.costs.calibration import driver_version, option_text
from nnadapter.costs.cost_model import Source
from nnadapter.drivers.interface import NO_OPERATION
from nnadapter.drivers.selection import CPU
from nnadapter.engine.observed import Observed
from nnadapter.options import fallback_text
from nnadapter.planning.borders import boundaries_of
from nnadapter.planning.judgment import placed_as
from nnadapter.planning.overlap import Boundaries, overlap_of
from nnadapter.planning.plan_files import UnmatchedEntry
from nnadapter.planning.pricing import PlanPrice
from nnadapter.planning.settling import AdmittedSegment, Partitioning, place
from nnadapter.process.packages import own_version
from nnadapter.process.processors import model_name
from nnadapter.process.resources import cache_counts, memoize, paused_collection
from nnadapter.records import replace
from nnadapter.report import facts
from nnadapter.report.facts import CandidateFacts, CostFacts, NodeFacts, RefusalCost, SegmentFacts, TensorFacts
from nnadapter.report.report import PartitionReport
from partition import Graph, Plan, Step, Unsupported, cut
from partition.by_cost.latency import BoundKind, CheapestPlacement
from partition.by_cost.pricing import Origin, Prices, all_on, price_segments

if TYPE_CHECKING:
    from nnadapter.engine.compiled import TimedPlacement


def versions_of(devices: Iterable[str]) -> dict[str, str]:
    """Return the known versions of nnadapter, ONNX, ONNX Runtime and drivers."""
    versions = {"nnadapter": own_version(), **_packages(), **{name: driver_version(name) for name in devices}}
    return {name: package_version for name, package_version in versions.items() if package_version}


@memoize(1)
def machine() -> str:
    """Return the operating system, processor and number of cores."""
    name = model_name()
    return f"{platform.system()} {platform.machine()}, {name}{', ' if name else ''}{os.cpu_count()} cores"


@memoize(1)
def _packages() -> dict[str, str]:
    return {name: version(name) for name in ("onnx", "onnxruntime")}


def boundary_facts(partitioning: Partitioning) -> Boundaries:
    """Return a plan's boundary operations and asynchronous segments."""
    setting, overlap = partitioning.setting, overlap_of(partitioning, {})
    return replace(
        boundaries_of(partitioning.plan, setting.costs, setting.host.name),
        host_waits=overlap.host_waits,
        enqueued_segments=tuple(sorted(overlap.enqueued_segments)),
        threaded_segments=tuple(sorted(overlap.threaded_segments)),
    )


_BOUNDS = {
    BoundKind.ENUMERATION: "all placements were priced",
    BoundKind.CUT: "a minimum cut, with launches",
    BoundKind.DECOMPOSITION: "a minimum cut for each device",
    BoundKind.ONE_DEVICE: "there is only one placement",
}
_LIMITED = "devices or limits refused the cheapest placements; they are listed as if accepted"
_ALL_CPU = all_on(CPU)
_RUNS = 3


def unknown_costs(partitioning: Partitioning) -> str:
    """Return why a plan's cost is unknown; empty if it is known."""
    costs, used_devices = partitioning.setting.costs, dict.fromkeys(step.device for step in partitioning.plan.steps)
    unknown = [device for device in used_devices if costs[device].source is Source.ASSUMED]
    if not unknown:
        return ""
    advice = "".join(f"; {note}" for device in unknown for note in costs[device].missing_cost_notes)
    return f"not known for {', '.join(unknown)}; `nnadapter calibrate {unknown[0]}` measures it{advice}"


def cost_facts(partitioning: Partitioning) -> CostFacts:
    """Return the predicted costs of a plan."""
    price, placement = partitioning.price, partitioning.weighed or partitioning.placement
    placed = placement.placed
    bound = None if placed is None else min(placed.bound, price.seconds)
    predicted = [(candidate.origin, candidate.cost, None) for candidate in placed.candidates] if placed else []
    sources = {name: str(source) for name, source in price.table.sources.items()}
    return CostFacts(
        seconds=price.seconds,
        predicted_seconds=price.seconds,
        bound_seconds=bound,
        bound_of=_bound_of(partitioning),
        bound_kind=_BOUNDS[placed.bound_kind] if placed is not None and bound is not None else "",
        gap=max(0.0, price.seconds / bound - 1) if bound else None,
        sources=sources,
        prediction_sources=sources,
        candidates=_candidates(predicted, price.on_cpu),
        all_cpu_seconds=price.on_cpu,
        all_cpu_predicted_seconds=price.on_cpu,
        note=_sentences(
            (
                *price.table.notes,
                placement.note,
                _uneven(price.table.sources),
                _repeats(placed),
                "" if partitioning.weighed is None else _LIMITED,
            )
        ),
    )


def timed_facts(partitioning: Partitioning, timed: Sequence[TimedPlacement], note: str) -> CostFacts:
    """Return the costs of a plan chosen by timing; `timed` has the fastest candidate first."""
    price, costs_are_known = partitioning.price, not unknown_costs(partitioning)
    candidates = [
        (candidate.origin, seconds, candidate.measured)
        for candidate, seconds in zip(timed, _predictions(partitioning, timed), strict=True)
    ]
    return CostFacts(
        seconds=timed[0].measured,
        predicted_seconds=price.seconds if costs_are_known else None,
        sources=dict.fromkeys(partitioning.plan.devices, str(Source.MEASURED)),
        prediction_sources={name: str(source) for name, source in price.table.sources.items()},
        candidates=_candidates(candidates, price.on_cpu if costs_are_known else None),
        all_cpu_seconds=next((candidate.measured for candidate in timed if candidate.origin == _ALL_CPU), None),
        all_cpu_predicted_seconds=price.on_cpu if costs_are_known else None,
        note=_sentences([note]),
    )


def _predictions(partitioning: Partitioning, timed: Sequence[TimedPlacement]) -> list[float | None]:
    """Return each timed candidate's prediction, priced again if an earlier session stored none."""
    predictions = [candidate.predicted for candidate in timed]
    if None not in predictions or partitioning.judgment.demands.complete_placement is None:
        return predictions
    free = place(placed_as(partitioning.judgment, None), partitioning.setting)
    priced = {candidate.origin: candidate.cost for candidate in free.candidates()}
    return [
        priced.get(candidate.origin) if predicted is None else predicted
        for candidate, predicted in zip(timed, predictions, strict=True)
    ]


def _candidates(
    weighed: Sequence[tuple[Origin, float | None, float | None]], on_cpu: float | None
) -> tuple[CandidateFacts, ...]:
    candidates = tuple(
        CandidateFacts(name=str(origin), seconds=predicted, measured_seconds=measured)
        for origin, predicted, measured in weighed
    )
    if not candidates or on_cpu is None or any(origin == _ALL_CPU for origin, _, _ in weighed):
        return candidates
    return (*candidates, CandidateFacts(name=f"{_ALL_CPU}, for comparison", seconds=on_cpu, eligible=False))


def _bound_of(partitioning: Partitioning) -> str:
    bound, applied = partitioning.judgment.demands.bound, partitioning.judgment.demands.applied
    constraints = {
        "the plan file": bound is not None and bound.placement,
        "the rules": applied is not None and any(effect.nodes for effect in applied.effects),
        "fallback 'forbid'": partitioning.setting.constraints.fallback_at("load") == "forbid",
    }
    allowing = [words for words, holds in constraints.items() if holds]
    return f"any placement that obeys {_listed(allowing)}" if allowing else "any placement"


def _listed(words: Sequence[str]) -> str:
    return ", ".join(words[:-1]) + (" and " if words[:-1] else "") + words[-1]


def _uneven(sources: Mapping[str, Source]) -> str:
    if Source.CALIBRATED not in sources.values() or sources.get(CPU) is not Source.MODELED:
        return ""
    return f"the CPU's costs are a cautious estimate; `nnadapter calibrate {CPU}` measures them"


def _repeats(placed: CheapestPlacement | None) -> str:
    runs = placed.repeats if placed is not None else ()
    if not runs:
        return ""
    return f"placement solved a few of {' and of '.join(map(str, runs[:_RUNS]))} identical repeats, and priced all"


def _sentences(notes: Iterable[str]) -> str:
    return " ".join(f"{note[:1].upper()}{note[1:]}." for note in notes if note)


_MOST = 20
_Group = tuple[str, str, str]


def refusal_costs(plan: Plan, price: PlanPrice | None) -> tuple[RefusalCost, ...]:
    """Estimate the device switches and seconds that each of the most frequent refusals costs.

    Only devices preferred to a node's present device are considered. For each device, op type and reason, the nodes
    move to the refusing device, and the graph is cut and priced again.
    """
    groups = _groups(plan)
    if not groups:
        return ()
    parts = price.graph.parts if price is not None else tuple((atom,) for atom in range(len(plan.graph.atoms)))
    graph, prices = (price.graph.graph, price.table.prices) if price is not None else (plan.graph, None)
    labels = [plan.placement[part[0]] for part in parts]
    home = {atom: place for place, part in enumerate(parts) for atom in part}
    was_so_cut = prices is None and plan.exact  # the plan was cut by the same method, not by beam search or halving
    switches, seconds = (plan.switches, 0.0) if was_so_cut else _between(graph, labels, prices)
    costs = []
    for (device, op_type, reason), atoms in islice(groups.items(), _MOST):
        moved = list(labels)
        for atom in atoms:
            moved[home[atom]] = device
        fewer, less = _between(graph, moved, prices)
        saved = seconds - less
        costs.append(
            RefusalCost(
                device=device,
                op_type=op_type,
                reason=reason,
                switches=switches - fewer,
                seconds=saved if prices is not None and isfinite(saved) else None,
            )
        )
    return tuple(costs)


def _groups(plan: Plan) -> Mapping[_Group, set[int]]:
    preceding_devices = {device: plan.devices[:place] for place, device in enumerate(plan.devices)}
    atoms_by_group: dict[_Group, set[int]] = {}
    for atom, home in enumerate(plan.placement):
        for device in preceding_devices[home]:
            verdict = plan.verdicts[device][atom]
            if isinstance(verdict, Unsupported):
                for node in plan.graph.atoms[atom]:
                    key = device, plan.graph.nodes[node].op_type, verdict.reason.value
                    atoms_by_group.setdefault(key, set()).add(atom)
    return dict(sorted(atoms_by_group.items(), key=lambda item: (-len(item[1]), item[0])))


def _between(graph: Graph, labels: Sequence[str], prices: Prices | None) -> tuple[int, float]:
    segments = cut(graph, labels, host=CPU).segments
    switches = sum(first.device != second.device for first, second in pairwise(segments))
    if prices is None:
        return switches, 0.0
    priced = price_segments(graph, prices, labels, segments)
    return switches, sum(segment.transfer_in + segment.transfer_out + segment.launch for segment in priced)


_SEARCHED = 3
"""Smallest number of devices in a plan that requires a search for the fewest segments."""


@paused_collection
def report_of(observed: Observed) -> PartitionReport:
    """Return the report of a placed and cut model."""
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
        weights=weight_facts(partitioning.plan),
        cost=_cost(partitioning, observed, unknown),
        cost_note=unknown if not observed.timed else "",
        rules=_rules(partitioning),
        plan_file=_plan_file(partitioning),
        isolated=tuple(name for name in partitioning.plan.devices if devices[name].is_isolated),
        precisions={name: str(devices[name].precision) for name in partitioning.plan.devices},
        lower_defaults={
            name: str(devices[name].lower_default)
            for name in partitioning.plan.devices
            if devices[name].lower_default is not None and constraints.precision is None
        },
        search=_search(partitioning.plan, partitioning.halvings),
        model=observed.model,
        fallback=fallback_text(constraints.fallback),
        device_options={
            name: {option: option_text(value) for option, value in devices[name].options.items()}
            for name in partitioning.judgment.support.devices
            if devices[name].options
        },
        refusal_costs=refusal_costs(partitioning.plan, price),
        versions=versions_of(partitioning.plan.devices),
        boundaries=boundary_facts(partitioning),
        transfers=facts.transfer_facts(observed.transfers),
        **facts.incident_facts(observed.incidents),
        branch_decisions=tuple(
            facts.BranchDecisionFacts(condition=decision.condition, value=decision.value, nodes=decision.nodes)
            for decision in partitioning.model.prepared.branch_decisions
        ),
        machine=machine(),
    )


def _node_facts(partitioning: Partitioning, price: PlanPrice | None) -> tuple[NodeFacts, ...]:
    plan, specialized, flops = partitioning.plan, partitioning.model.specialized, partitioning.model.conversion.flops
    index_of = {position: index for index, position in reversed([*enumerate(specialized.positions)])}
    step_of = {node: step for step in plan.steps for node in step.nodes}
    seconds = price.of_nodes(plan, flops) if price is not None else {}
    folded, runs_as = frozenset(specialized.folded), _runs_as(partitioning)
    refusals, sizes = _refusals(plan), _sizes(plan.graph)

    def running(index: int) -> NodeFacts:
        node, bodies = plan.graph.nodes[index], specialized.nodes[index].bodies
        return NodeFacts(
            name=node.name,
            op_type=node.op_type,
            domain=node.domain,
            state="runs",
            device=step_of[index].device,
            segment=step_of[index].segment,
            runs_as=runs_as.get(index, ""),
            flops=flops[index],
            nbytes=sum(map(sizes.__getitem__, {*node.reads, *node.outputs})),
            predicted_seconds=seconds.get(index),
            refusals=refusals.get(plan.graph.atom_of[index], ()),
            bodies=tuple(facts.BodyFacts(name=name, op_types=types) for name, types in bodies) if bodies else (),
        )

    return tuple(
        running(index_of[position])
        if position in index_of
        else NodeFacts(
            name=node.name,
            op_type=node.op_type,
            domain=node.domain,
            state="folded" if node.name in folded else "unused",
        )
        for position, node in enumerate(specialized.model_nodes.nodes)
    )


def _sizes(graph: Graph) -> Mapping[str, int]:
    size_by_type: dict[tuple[float, object], int] = {}
    sizes_by_name: dict[str, int] = defaultdict(int)
    for name, value in graph.values.items():
        like = value.itemsize, value.shape
        if like not in size_by_type:
            size_by_type[like] = value.nbytes or 0
        sizes_by_name[name] = size_by_type[like]
    sizes_by_name[""] = 0  # name of unused optional outputs
    return sizes_by_name


def _refusals(plan: Plan) -> Mapping[int, tuple[facts.RefusalFacts, ...]]:
    refusals: dict[int, tuple[facts.RefusalFacts, ...]] = {}
    for name in plan.devices:
        for atom, verdict in enumerate(plan.verdicts[name]):
            if isinstance(verdict, Unsupported):
                refusal = facts.RefusalFacts(device=name, reason=verdict.reason.value, detail=verdict.detail)
                refusals[atom] = (*refusals.get(atom, ()), refusal)
    return refusals


def _runs_as(partitioning: Partitioning) -> Mapping[int, str]:
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
    outcome = observed.cache.get(step.segment)
    segment = SegmentFacts(
        index=step.segment,
        device=step.device,
        nodes=tuple(graph.nodes[node].name for node in step.nodes),
        inputs=tuple(tensors[name] for name in step.inputs),
        outputs=tuple(tensors[name] for name in step.outputs),
        flops=sum(flops[node] or 0 for node in step.nodes),
        unknown_flops_nodes=sum(flops[node] is None for node in step.nodes),
        weight_bytes=sum(graph.value(name).nbytes or 0 for name in step.constants),
        facts=_driver_facts(piece),
        seconds=observed.seconds.get(step.segment),
        failures=observed.failures.get(step.segment, ()),
        compile_seconds=observed.compile_seconds.get(step.segment),
        program_of=observed.cloned_from.get(step.segment),
        cache=None if outcome is None else facts.CacheFacts(outcome.is_hit, outcome.miss_reason),
    )
    if price is None:
        return segment
    cost = price.segments[step.segment]
    return replace(
        segment,
        predicted_seconds=cost.total,
        transfer_seconds=cost.transfer_in + cost.transfer_out,
        launch_seconds=cost.launch,
        benefit_seconds=price.benefits[step.segment],
    )


def _cost(partitioning: Partitioning, observed: Observed, unknown: str) -> CostFacts | None:
    if observed.timed:
        return timed_facts(partitioning, observed.timed, observed.chosen)
    return None if unknown else cost_facts(partitioning)


def weight_facts(plan: Plan) -> facts.WeightFacts:
    """Return the bytes of constants that segments read, per device and in total."""
    nbytes = {name: plan.graph.value(name).nbytes or 0 for step in plan.steps for name in step.constants}
    names_by_device: dict[str, set[str]] = {}
    for step in plan.steps:
        names_by_device.setdefault(step.device, set()).update(step.constants)
    sizes = {device: sum(map(nbytes.__getitem__, names)) for device, names in names_by_device.items()}
    return facts.WeightFacts(devices=sizes, total=sum(nbytes.values()))


def _rules(partitioning: Partitioning) -> tuple[facts.RuleFacts, ...]:
    applied = partitioning.judgment.demands.applied
    effects = (*(applied.effects if applied is not None else ()), *partitioning.limits)
    return tuple(
        facts.RuleFacts(text=effect.rule, source=effect.source, nodes=effect.nodes, note=effect.note)
        for effect in effects
    )


def _search(plan: Plan, halvings: Sequence[str] = ()) -> str:
    devices = [step.device for step in plan.steps]
    few = len(set(devices)) < _SEARCHED
    if plan.exact:
        return "the search is exact for two devices" if few else "the search was exact"
    if any(map(eq, devices, devices[1:])):  # an optimal cut never has two consecutive segments of one device
        reason = f": {halvings[0]}" if halvings else ", because its device refuses it as a whole"
        return f"a segment was cut in two{reason}"
    return "the beam search was bounded"


def _plan_file(partitioning: Partitioning) -> facts.PlanFileFacts | None:
    bound, source = partitioning.judgment.demands.bound, partitioning.setting.constraints.plan_file
    if bound is None or source is None:
        return None
    plan, graph = partitioning.plan, partitioning.plan.graph
    moved = [(atom, device) for atom, device in bound.placement.items() if plan.placement[atom] != device]
    lost = tuple(
        UnmatchedEntry(name=graph.nodes[node].name, device=device, reason=_reason_moved(plan, atom, device))
        for atom, device in moved
        for node in graph.atoms[atom]
    )
    nodes = sum(len(graph.atoms[atom]) for atom in bound.placement)
    return facts.PlanFileFacts(
        path=source.source, matched_nodes=nodes - len(lost), unmatched_entries=(*bound.unmatched_entries, *lost)
    )


def _reason_moved(plan: Plan, atom: int, device: str) -> str:
    verdict = plan.verdicts[device][atom]
    return f"it is on {plan.placement[atom]!r}" + (
        "" if verdict else f", because {device!r} does not get it: {verdict}"
    )


def _driver_facts(piece: AdmittedSegment | None) -> dict[str, int | float | str]:
    reported = piece.admission.facts if piece is not None else {}
    return {
        str(name): value if isinstance(value, (int, float, str)) else str(value) for name, value in reported.items()
    }


def _tensors(plan: Plan) -> Mapping[str, TensorFacts]:
    names = dict.fromkeys(name for step in plan.steps for name in (*step.inputs, *step.outputs))
    return {
        value.name: TensorFacts(name=value.name, dtype=value.dtype, shape=value.shape, nbytes=value.nbytes)
        for value in map(plan.graph.value, names)
    }


def _coverage(running: Sequence[NodeFacts], accelerators: Set[str]) -> facts.Coverage:
    away = [node for node in running if node.device in accelerators]
    nodes = _share(len(away), len(running), 0.0)
    return facts.Coverage(
        nodes=nodes,
        flops=_share(sum(node.flops or 0 for node in away), sum(node.flops or 0 for node in running), nodes),
        bytes=_share(sum(node.nbytes for node in away), sum(node.nbytes for node in running), nodes),
    )


def _share(part: int, total: int, otherwise: float) -> float:
    return part / total if total else otherwise
