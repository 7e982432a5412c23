"""Checks of indices and lengths that enter the segments of a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any

from nnadapter.candidates.segments import DynamicParts, ShapedModel
from nnadapter.ir.index_ranges import (
    UNCHECKED_BY_HOST,
    USES,
    AnalysisEnd,
    Bound,
    IndexCheck,
    Reader,
    Size,
    trace_back,
    uses_of,
)
from nnadapter.ir.operand import Array
from nnadapter.onnx.domains import plain_domain
from nnadapter.onnx.model import OnnxNode
from nnadapter.onnx.preparation.prepare import Specialized
from nnadapter.records import dataclass
from partition import Graph, Plan, Reason, Step, Unsupported


@dataclass(frozen=True, eq=False)
class GraphView:
    """View of a graph for the index analysis (`nnadapter.ir.index_ranges.View`)."""

    graph: Graph
    nodes: Sequence[OnnxNode]
    constants: Mapping[str, Array]
    more: Mapping[str, OnnxNode]
    """Value -> its producer, for values without producer in `graph`."""

    def node(self, name: str) -> Reader | None:
        position = self.graph.producer.get(name)
        if position is not None:
            return self.reader(position)
        node = self.more.get(name)
        return None if node is None else _reader(node, node.name, node.inputs, node.outputs)

    def reader(self, position: int) -> Reader:
        placed = self.graph.nodes[position]
        return _reader(self.nodes[position], placed.name, placed.inputs, placed.outputs)

    def shape(self, name: str) -> Sequence[Any] | None:
        constant = self.constants.get(name)
        return self.graph.value(name).shape if constant is None else constant.shape

    def dtype(self, name: str) -> str | None:
        constant = self.constants.get(name)
        return self.graph.value(name).dtype if constant is None else str(constant.dtype)

    def constant(self, name: str) -> Array | None:
        return self.constants.get(name)

    def size(self, name: str, axis: int) -> Bound:
        """Return the size of an axis: a number, the input dimension with the same symbol, or a new symbol."""
        shape = self.shape(name)
        if shape is None or axis >= len(shape):
            return Size(name, axis)
        size = shape[axis]
        if isinstance(size, int):
            return size
        if isinstance(size, str) and name not in self.graph.inputs:
            for other in self.graph.inputs:
                dimensions = self.graph.value(other).shape or ()
                if size in dimensions:
                    return Size(other, dimensions.index(size))
        return Size(name, axis)


def returned_names(plan: Plan) -> set[str]:
    """Return the names of model inputs and of all values that steps return."""
    return {*plan.graph.inputs, *(name for step in plan.steps for name in step.outputs)}


def _reader(node: OnnxNode, name: str, inputs: Sequence[str], outputs: Sequence[str]) -> Reader:
    domain = plain_domain(node.domain)
    kind = f"{domain}:{node.op_type}" if domain else node.op_type
    return Reader(name, kind, tuple(inputs), tuple(outputs), node.attributes, node.since_version)


def _found_of(view: GraphView, reader: Reader, enters: Callable[[str], bool]) -> Iterator[AnalysisEnd]:
    for use, name in uses_of(view, reader):
        for end in trace_back(view, name, use.allowed, enters):
            if use.is_memory or (end.maker is None and end.interval is None):
                yield end


def _checks(model: ShapedModel, plan: Plan, step: Step, reads: Sequence[str], kinds: Set[str]) -> Iterator[IndexCheck]:
    view, readers = _view_of(model, plan, step)
    inputs = {*reads, *step.inputs, *plan.graph.inputs}
    for reader in readers:
        if reader.kind not in kinds:
            continue
        for end in _found_of(view, reader, inputs.__contains__):
            yield _check(view, reader, end, plan.graph)
    origins = {origin for position in step.nodes for origin in plan.graph.nodes[position].origins}
    for origin, node in model.prepared.functions:
        reader = _reader(node, node.name, node.inputs, node.outputs)
        if origin in origins and reader.kind in kinds:
            for end in _found_of(view, reader, inputs.__contains__):
                if end.maker is None and end.interval is None:
                    yield _check(view, reader, end, plan.graph)


def _view_of(model: ShapedModel, plan: Plan, step: Step) -> tuple[GraphView, Iterator[Reader]]:
    specialized, parts = model.specialized, model.parts
    if not isinstance(parts, DynamicParts):
        view = GraphView(specialized.graph, specialized.nodes, specialized.constants, {})
        return view, map(view.reader, step.nodes)
    prepared = parts.prepared
    more = {
        name: node
        for position, node in enumerate(prepared.nodes)
        if position not in prepared.evaluated
        for name in node.outputs
        if name
    }
    graph = parts.open_graph
    ranked = graph.revalued({**prepared.inferred_ranks, **prepared.values, **graph.values})
    view = GraphView(ranked, specialized.nodes, prepared.constants, more)
    names = {graph.nodes[position].name for position in step.nodes}
    folded_readers = (
        reader
        for node in parts.nodes(step)
        if node.name not in names and node.outputs
        for reader in [view.node(next(filter(None, node.outputs)))]
        if reader is not None
    )
    return view, iter([*map(view.reader, step.nodes), *folded_readers])


def _check(view: GraphView, reader: Reader, end: AnalysisEnd, graph: Graph) -> IndexCheck:
    bounds = tuple(
        (
            None
            if allowed_range.low is None
            else _low(allowed_range.size, allowed_range.low, counts_back=allowed_range.counts_back),
            None if allowed_range.high is None else _plus(allowed_range.size, allowed_range.high - 1),
            allowed_range.exception,
        )
        for allowed_range in end.allowed
    )
    interval = None if end.interval is None else (end.interval.low, end.interval.high)
    return IndexCheck(end.value, bounds, _words(reader), _source(view, end, graph), interval)


def _low(size: Bound, low: int, *, counts_back: bool) -> Bound:
    if not counts_back:
        return low
    if not isinstance(size, Size):
        return low - size
    return Size(
        size.value, -1 - size.axis, low - size.offset, tuple((name, -1 - axis) for name, axis in size.further_terms)
    )


def _plus(size: Bound, number: int) -> Bound:
    return size.plus(number) if isinstance(size, Size) else size + number


def _source(view: GraphView, end: AnalysisEnd, graph: Graph) -> str:
    """Return the model input that equals `end.value` and has the same allowed range; empty if there is none."""
    if end.value in graph.inputs:
        return end.value
    ends = list(trace_back(view, end.value, end.allowed, graph.inputs.__contains__))
    if len(ends) != 1 or ends[0].value not in graph.inputs or ends[0].allowed != end.allowed:
        return ""
    return ends[0].value if view.dtype(ends[0].value) == view.dtype(end.value) else ""


def refusals_of_indices(model: ShapedModel, plan: Plan, step: Step) -> Mapping[int, Unsupported]:
    """Return a refusal for each node of a step that computes indices of unproven range.

    The device of the step does not check indices. Indices that enter the step are checked before it.
    """
    graph, refused = plan.graph, dict[int, Unsupported]()
    for end, words in _unproven(model, plan, step, step.inputs):
        position = graph.producer.get(end.value)
        if position in step.nodes:
            detail = f"it computes indices of {words}, whose range is not proven, and the device does not check them"
            refused.setdefault(position, Unsupported(Reason.NOT_CONSTANT, detail))
    return refused


def unchecked_indices(model: ShapedModel, plan: Plan, step: Step, reads: Sequence[str]) -> tuple[str, bool]:
    """Describe the first index of a dynamic step that can be neither proven in range nor checked; empty if none.

    The flag is True if the index depends on shapes alone, so that `indices_hold` can check it.
    """
    outputs = returned_names(plan)
    view, readers = _view_of(model, plan, step)
    inputs = {*reads, *step.inputs, *plan.graph.inputs}
    checks = [
        _check(view, reader, end, plan.graph)
        for reader in readers
        for use, name in uses_of(view, reader)
        if use.is_memory
        for end in trace_back(view, name, use.allowed, inputs.__contains__)
    ]
    unknown = [check for check in checks if not outputs.issuperset(check.sizes)]
    for check in unknown:
        if check.interval is None and check.value in inputs:
            return f"the range of indices of {check.reader} depends on a shape that no step returns", False
    words = next((words for _, words in _unproven(model, plan, step, reads)), unknown[0].reader if unknown else "")
    return f"the range of indices of {words} is not proven" if words else "", True


def indices_hold(model: ShapedModel, plan: Plan, devices: frozenset[str], specialized: Specialized) -> bool:
    """Return whether shape-derived indices are in range, on devices that do not check them."""
    view = GraphView(specialized.graph, specialized.nodes, specialized.constants, {})
    readers = (reader for step in plan.steps if step.device in devices for reader in _view_of(model, plan, step)[1])
    return all(
        not any(trace_back(view, name, use.allowed, lambda name: False))
        for reader in readers
        for use, name in uses_of(view, reader)
        if name in specialized.constants
    )


def _unproven(model: ShapedModel, plan: Plan, step: Step, reads: Sequence[str]) -> Iterator[tuple[AnalysisEnd, str]]:
    view, readers = _view_of(model, plan, step)
    inputs = {*reads, *step.inputs, *plan.graph.inputs}
    for reader in readers:
        for end in _found_of(view, reader, inputs.__contains__):
            if end.maker is not None and end.interval is None and end.value not in inputs:
                yield end, _words(reader)


def _words(reader: Reader) -> str:
    return f"{reader.kind.rpartition(':')[2]} {reader.name!r}"


def checks_by_segment(
    model: ShapedModel, plan: Plan, devices: frozenset[str], reads: Mapping[int, Sequence[str]]
) -> Mapping[int, tuple[IndexCheck, ...]]:
    """Return the index checks to run before each segment.

    `devices` do not check indices. On other devices, only ops that ONNX Runtime does not fully check get checks.
    """
    checks_by_step: dict[int, tuple[IndexCheck, ...]] = {}
    outputs = returned_names(plan)
    for step in plan.steps:
        kinds = USES.keys() if step.device in devices else UNCHECKED_BY_HOST
        checks = _checks(model, plan, step, reads[step.segment], kinds)
        available_names = {*plan.graph.inputs, *reads[step.segment]}
        enforceable_checks = [
            check
            for check in checks
            if (check.interval is not None or check.value in available_names) and outputs.issuperset(check.sizes)
        ]
        different = {(check.value, check.bounds, check.interval): check for check in reversed(enforceable_checks)}
        checks_by_step[step.segment] = tuple(reversed(different.values()))
    return {segment: checks for segment, checks in checks_by_step.items() if checks}
