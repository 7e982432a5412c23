"""One set of facts about a plan; every rendering is made from it.

The report speaks of the model's own nodes: each runs on a device (alone, or fused into something), or was folded before
the run, or is used by nobody.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nnadapter.analysis import Analysis, Piece
from nnadapter.drivers.interface import NO_OPERATION
from nnadapter.drivers.selection import CPU, HOSTS
from nnadapter.executor import called
from nnadapter.plans import PlanCounts
from nnadapter.reports.text import to_text
from partition.graph import Graph
from partition.plan import Plan, Step
from partition.verdict import Unsupported

if TYPE_CHECKING:
    from nnadapter.compilation import Compiled
    from nnadapter.executor import BoundStep

SCHEMA_VERSION = 1
"""Of the JSON form; it grows when something that programs read changes its meaning or goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a device did not take a node."""

    device: str
    reason: str
    """A code of `partition.Reason`."""
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyFacts:
    """A graph that a node runs: a branch of If, the body of Loop or Scan. It runs where its node does."""

    name: str
    """The attribute that holds it."""
    op_types: Mapping[str, int]
    """How many nodes of each op type it has, those of graphs inside included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What becomes of one of the model's own nodes."""

    name: str
    op_type: str
    domain: str
    state: str
    """`runs`, `folded` (its result is known before the run) or `unused` (nobody reads its result)."""
    device: str = ""
    segment: int | None = None
    runs_as: str = ""
    """What it runs as on its device, where the device says so; nodes of the same text are fused."""
    flops: int | None = None
    """None where no formula is known."""
    nbytes: int = 0
    """Bytes it reads and makes, weights included."""
    refusals: tuple[Refusal, ...] = ()
    """Of every device that did not take it, in the order of preference."""
    bodies: tuple[BodyFacts, ...] = ()
    """The graphs that it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFacts:
    """A value that crosses the border of a segment."""

    name: str
    dtype: str | None
    shape: tuple[int | str | None, ...] | None
    nbytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFacts:
    """One segment of the plan."""

    index: int
    device: str
    nodes: tuple[str, ...]
    inputs: tuple[TensorFacts, ...]
    outputs: tuple[TensorFacts, ...]
    flops: int
    weight_bytes: int
    facts: Mapping[str, int | float | str]
    """What the device said of it."""
    seconds: float | None = None
    """Duration of the last run, if there was one."""
    failures: tuple[str, ...] = ()
    """Why it ran elsewhere, if it did."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """Shares on other devices than `cpu` and `reference`, from 0 to 1."""

    nodes: float
    """Of the model's own nodes that run."""
    flops: float
    """Of floating-point operations, a multiply-add being two; the share of nodes where a model has none."""
    bytes: float
    """Of bytes read and made by nodes, weights included."""


@dataclass(frozen=True, kw_only=True)
class PartitionReport:
    """What runs where and why."""

    devices: tuple[str, ...]
    policy: str
    input_shapes: Mapping[str, tuple[int, ...]]
    coverage: Coverage
    segments: tuple[SegmentFacts, ...]
    nodes: tuple[NodeFacts, ...]
    switches: int
    exact: bool
    """No plan with fewer segments exists for this placement."""
    notes: tuple[str, ...] = ()
    """What did not go as promised."""
    plans: PlanCounts | None = None
    """How the plans of the session were used; None for a report that compiled nothing."""

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data: what JSON knows, and no number that is not finite.

        Keys, which stay:

        - `schema_version`: of this form.
        - `devices`: names, in order of preference; `policy`; `input_shapes`: input name -> dimensions.
        - `coverage`: `nodes`, `flops`, `bytes`, each from 0 to 1, on other devices than `cpu` and `reference`.
        - `segments`, in the order they run: `index`, `device`, `nodes` (names), `inputs` and `outputs` (each `name`,
          `dtype`, `shape`, `nbytes`), `flops`, `weight_bytes`, `facts` (what the device says of it), `seconds` (of the
          last run, else null), `failures`.
        - `nodes`, the model's own in its order: `name`, `op_type`, `domain`, `state` (`runs`, `folded`, `unused`),
          `device`, `segment` (an `index`, else null), `runs_as`, `flops` (null where unknown), `nbytes`, `refusals`
          (each `device`, `reason`, `detail`), `bodies` (of control flow: each `name`, `op_types` with their numbers).
        - `switches`: from one device to another; `exact`: no plan with fewer segments exists.
        - `notes`; `plans` of a session: `kept`, `made`, `used_again`, `dropped`, `memory_bytes` (of
          those kept, beside shared weights, as far as devices say so), else null.
        """
        return {"schema_version": SCHEMA_VERSION, **_plain(self)}

    def to_json(self) -> str:
        """`to_dict` as JSON text."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    def __str__(self) -> str:
        """The report as text."""
        return to_text(self)

    def refusals(self) -> Mapping[tuple[str, str, str], tuple[NodeFacts, ...]]:
        """The refused nodes by device, op type and reason, most frequent first."""
        found: dict[tuple[str, str, str], list[NodeFacts]] = {}
        for node in self.nodes:
            for refusal in node.refusals:
                found.setdefault((refusal.device, node.op_type, refusal.reason), []).append(node)
        ordered = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
        return {key: tuple(nodes) for key, nodes in ordered}


@dataclass(frozen=True, eq=False)
class Observed:
    """What is known of a compiled plan and not of an analysis."""

    seconds: Mapping[int, float] = field(default_factory=dict)
    failures: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    plans: PlanCounts | None = None


def report_of(analysis: Analysis, policy: str, observed: Observed | None = None) -> PartitionReport:
    """Return the report of an analysed model."""
    observed = observed or Observed()
    nodes = _node_facts(analysis)
    segments = tuple(
        _segment_facts(analysis, step, observed, piece)
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
    )


def report_of_compiled(compiled: Compiled, policy: str, plans: PlanCounts) -> PartitionReport:
    """Return the report of a compiled plan, with what its last run took and what failed."""
    steps = compiled.plan.steps
    observed = Observed(
        seconds={bound.step.segment: bound.seconds for bound in steps if bound.seconds},
        failures={bound.step.segment: tuple(bound.failures) for bound in steps if bound.failures},
        notes=(*compiled.notes, *(_fell_back(compiled, bound) for bound in steps if bound.failures)),
        plans=plans,
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


def _node_facts(analysis: Analysis) -> tuple[NodeFacts, ...]:
    specialised = analysis.specialised
    running = {position: node for node, position in reversed([*enumerate(specialised.positions)])}
    folded = frozenset(specialised.folded)
    step_of = {node: step for step in analysis.plan.steps for node in step.nodes}
    runs_as = _runs_as(analysis)
    return tuple(
        _running(analysis, running[position], step_of[running[position]], runs_as)
        if position in running
        else NodeFacts(
            name=node.name,
            op_type=node.op_type,
            domain=node.domain,
            state="folded" if node.name in folded else "unused",
        )
        for position, node in enumerate(specialised.own.nodes)
    )


def _running(analysis: Analysis, index: int, step: Step, runs_as: Mapping[int, str]) -> NodeFacts:
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
        nbytes=sum(plan.graph.value(name).nbytes or 0 for name in {*node.reads, *filter(None, node.outputs)}),
        refusals=tuple(_refusals(plan, index)),
        bodies=tuple(BodyFacts(name=name, op_types=types) for name, types in analysis.specialised.nodes[index].bodies),
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


def _segment_facts(analysis: Analysis, step: Step, observed: Observed, piece: Piece | None) -> SegmentFacts:
    graph = analysis.plan.graph
    return SegmentFacts(
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
    )


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


def _plain(value: Any) -> Any:
    """Frozen facts as what JSON knows."""
    if is_dataclass(value) and not isinstance(value, type):
        return {entry.name: _plain(getattr(value, entry.name)) for entry in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    # What drivers say of a segment may be numpy's numbers, and need not be finite.
    number = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(number, float) and not math.isfinite(number) else number
