"""Conversion of an ONNX graph or single nodes, with a verdict for every node.

Outputs of refused nodes become model inputs (holes), so that all other nodes are in one model, from which segments are
extracted later (`ir.extract`). onnx's schemas do not check values of attributes; converters do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

import numpy as np

from nnadapter.converters.context import ConversionContext, invalid
from nnadapter.converters.custom import KernelCalls, convert_call
from nnadapter.converters.quantized_groups import Group, convert_quantized_group
from nnadapter.converters.registry import ANOTHER_GRAPH, NO_CONVERTER, UNCONVERTED, Converter, converted, lookup
from nnadapter.ir import Array, Model, OperandType, schema_of, submodel
from nnadapter.ir.structure import SymbolicModel
from nnadapter.ir.symbolic_numbers import size_hint
from nnadapter.onnx.model import OnnxNode
from nnadapter.onnx.schemas import EXTERNAL_CONVERTERS, Refusal, external_name, external_versions
from nnadapter.records import dataclass, replace
from partition.graph import SUPPORTED, Reason, Supported, Unsupported, Value, Verdict


@dataclass(frozen=True, kw_only=True, eq=False)
class Conversion:
    """IR model of a graph, with the outcome of each node."""

    model: Model
    """Model of the convertible nodes."""
    verdicts: tuple[Verdict, ...]
    operations: tuple[tuple[int, ...], ...]
    """Positions in `model.operations` per node; none if refused, or listed at another node of its atom."""
    operand_of: Mapping[str, int]
    groups: tuple[tuple[int, ...], ...] = ()
    """Positions of nodes that were converted as one operation."""
    tables: frozenset[int] = frozenset()
    """Positions of operations that compute values from shapes and belong to no node."""
    source: tuple[SymbolicModel, Sequence[Any]] | None = None
    """Symbolic model and sizes that `model` was specialized from."""
    one_by_one: Callable[[], PerNodeConversions] | None = None
    """Function that converts nodes of multi-node atoms individually; None without such atoms."""

    def part(self, operations: Sequence[int], inputs: Sequence[int], outputs: Sequence[int]) -> Model:
        if self.source is None:
            return submodel(self.model, operations, inputs, outputs)
        traced, numbers = self.source
        part = traced.part(operations, inputs, outputs)
        return self.model if part is traced else part.specialize(numbers)

    @cached_property
    def flops(self) -> tuple[int | None, ...]:
        """Floating-point operations per node; 0 if counted at another node of its atom, None if refused."""
        return tuple(
            _flops(self.model, positions) if verdict else None
            for positions, verdict in zip(self.operations, self.verdicts, strict=True)
        )

    @cached_property
    def per_node(self) -> PerNodeConversions:
        return PerNodeConversions(nodes=(), conversion=self) if self.one_by_one is None else self.one_by_one()


@dataclass(frozen=True, kw_only=True, eq=False)
class PerNodeConversions:
    """Separate conversions of nodes that share an atom; nodes that differ only in names and weights share one."""

    nodes: tuple[int, ...]
    conversion: Conversion
    like: tuple[int, ...] = ()
    """For each of `nodes`, a position in `conversion`; nodes with the same conversion have the same position."""
    copies: tuple[int, ...] = ()
    """Copies of nodes that several groups share."""


def convert_graph(
    nodes: Sequence[OnnxNode],
    values: Mapping[str, Value],
    constants: Mapping[str, Array],
    outputs: Sequence[str],
    captured: Sequence[str] = (),
    groups: Sequence[Group] = (),
    calls: KernelCalls | None = None,
) -> Conversion:
    """Convert as many nodes as possible; `nodes` are in topological order and folded.

    1. Converters of the exact schema version run in order. A group becomes one operation at its last node or, if
       refused, is converted node by node.
    2. A node is refused if it violates its schema, has no converter, has a value other than a dense tensor of known
       shape, or yields other types than the graph's. Converters and the IR schema may also refuse it.
    3. A refused node becomes a CUSTOM call if a device has a kernel or, without a converter, declares the node's
       domain. `calls` can force calls.
    4. Unused outputs after the first count as absent.
    5. Model outputs are `outputs`, inputs of refused nodes, and `captured` values, which subgraphs read.
    """
    external_values = dict.fromkeys((*outputs, *captured))
    growing = GrowingConversion(ConversionContext(values, constants), nodes, external_values, groups, calls)
    for position in range(len(nodes)):
        growing.add(position)
    return growing.finish()


class GrowingConversion:
    """Conversion of a graph, one node per call of `add`; see `convert_graph`. `external_values` become outputs."""

    def __init__(
        self,
        context: ConversionContext,
        nodes: Sequence[OnnxNode],
        external_values: Iterable[str],
        groups: Sequence[Group] = (),
        calls: KernelCalls | None = None,
    ) -> None:
        self.context = context
        self._calls = calls
        self._external_values = dict.fromkeys(external_values)
        read = {*self._external_values, *(name for node in nodes for name in node.inputs)}
        self._nodes = [trimmed(node, read) for node in nodes]
        self._group_at = {group.target: group for group in groups}
        self._waiting = {member for group in groups for member in group.members if member != group.target}
        self._groups: list[tuple[int, ...]] = []
        self._verdicts: list[Verdict] = [SUPPORTED] * len(nodes)
        self._operations: list[tuple[int, ...]] = [()] * len(nodes)
        self._refused_inputs: dict[str, None] = {}
        self._tables: set[int] = set()

    def add(self, position: int) -> None:
        if position in self._waiting:
            return
        group = self._group_at.get(position)
        if group is None:
            self._add_node(position)
        elif not self._add_group(group):
            for member in group.members:
                self._add_node(member)

    def add_table(self, node: OnnxNode) -> bool:
        """Convert a node that computes a value from shapes, and return whether it succeeded."""
        first = self.context.builder.mark()[1]
        verdict = _convert(self.context, node, None)
        self._tables.update(range(first, self.context.builder.mark()[1]))
        return bool(verdict)

    def _add_node(self, position: int) -> None:
        node, first = self._nodes[position], self.context.builder.mark()[1]
        verdict = self._verdicts[position] = _convert(self.context, node, self._calls)
        self._operations[position] = tuple(range(first, self.context.builder.mark()[1]))
        if not verdict:
            self._refused_inputs.update(dict.fromkeys(node.inputs))

    def _add_group(self, group: Group) -> bool:
        nodes, first = self._nodes, self.context.builder.mark()[1]
        target = nodes[group.target]
        if any(nodes[member].contradiction for member in group.members):
            return False
        mark = self.context.begin(nodes[group.node])
        try:
            convert_quantized_group(
                self.context,
                nodes[group.node],
                {name: nodes[source] for name, source in group.sources.items()},
                target,
                None if group.activation is None else nodes[group.activation],
            )
            _check_outputs(self.context, target)
        except Refusal:
            self.context.undo(mark)
            return False
        self._operations[group.node] = tuple(range(first, self.context.builder.mark()[1]))
        self._groups.append(group.members)
        return True

    def finish(self) -> Conversion:
        operand_of = dict(self.context.operand_of)
        outputs = [operand_of[name] for name in {**self._external_values, **self._refused_inputs} if name in operand_of]
        return Conversion(
            model=self.context.builder.finish(outputs),
            verdicts=tuple(self._verdicts),
            operations=tuple(self._operations),
            operand_of=operand_of,
            groups=tuple(self._groups),
            tables=frozenset(self._tables),
        )


def _flops(model: Model, operations: Sequence[int]) -> int:
    total = 0
    for position in operations:
        operation = model.operations[position]
        input_types = [model.type_of(operand) for operand in operation.inputs]
        results = [model.operands[operand].type for operand in operation.outputs]
        total += schema_of(operation.type).flops(input_types, results, operation.attributes)
    return total


def trimmed(node: OnnxNode, read: Set[str]) -> OnnxNode:
    """Return a node with empty names for unused outputs after the first."""
    if len(node.outputs) == 1 or all(name in read for name in node.outputs[1:]):
        return node
    used_outputs = tuple(name if name in read else "" for name in node.outputs[1:])
    return replace(node, outputs=(node.outputs[0], *used_outputs))


def _convert(context: ConversionContext, node: OnnxNode, calls: KernelCalls | None) -> Verdict:
    if calls is None or node.contradiction or not calls.concerns(node):
        return _tried(context, node, _convert_node)
    call = partial(convert_call, calls)
    if node.name in calls.forced:
        return _tried(context, node, call)
    verdict = _tried(context, node, _convert_node)
    is_converted = lookup(node.domain, node.op_type, node.since_version) is not None
    if isinstance(verdict, Supported) or (is_converted and not calls.has_kernel(node)):
        return verdict
    call_verdict = _tried(context, node, call)
    if isinstance(call_verdict, Supported):
        return call_verdict
    return Unsupported(verdict.reason, f"{verdict.detail}; {call_verdict.detail}")


def _tried(
    context: ConversionContext, node: OnnxNode, convert: Callable[[ConversionContext, OnnxNode], None]
) -> Verdict:
    mark = context.begin(node)
    try:
        convert(context, node)
        _check_outputs(context, node)
    except Refusal as refusal:
        context.undo(mark)
        return refusal.verdict
    return SUPPORTED


def _convert_node(context: ConversionContext, node: OnnxNode) -> None:
    if node.contradiction:
        raise invalid(node.contradiction)
    convert = _converter_of(node)
    for name in filter(None, node.inputs):
        context.type_of(name)
    _check_known(context, node, convert)
    convert(context, node)


def _check_known(context: ConversionContext, node: OnnxNode, convert: Converter) -> None:
    """Refuse a node with unknown output types; if it is invalid, report the converter's reason."""
    try:
        for name in filter(None, node.outputs):
            context.declared(name)
    except Refusal as unknown:
        try:
            convert(context, node)
        except Refusal as refusal:
            # outside ONNX's domain, output types come from the conversion itself
            if refusal.verdict.reason is Reason.INVALID_NODE or node.domain:
                raise
        raise unknown from None


def _converter_of(node: OnnxNode) -> Converter:
    convert = lookup(node.domain, node.op_type, node.since_version)
    if convert is None:
        raise _unknown(node)
    return convert


def _unknown(node: OnnxNode) -> Refusal:
    brought = external_versions(node.domain, node.op_type)
    if node.since_version in brought:
        problem = EXTERNAL_CONVERTERS.problem_of(external_name(node.domain, node.op_type, node.since_version))
        return Refusal(Reason.UNSUPPORTED_OPERATION, f"converter {problem}")
    if not brought and all(domain != node.domain for domain, _ in converted()):
        domains = ", ".join(sorted({domain or "ai.onnx" for domain, _ in converted()}))
        return Refusal(
            Reason.UNSUPPORTED_DOMAIN,
            f"domain {node.domain!r} of {node.op_type} has no converters, neither built in nor in an installed "
            f"package; domains with converters: {domains}",
        )
    versions = converted().get((node.domain, node.op_type)) or brought
    if not versions:
        default_reason = ANOTHER_GRAPH if node.bodies else NO_CONVERTER
        reason, predicate = default_reason if node.domain else UNCONVERTED.get(node.op_type, default_reason)
        bodies = "; ".join(f"{name}: {_listed(types)}" for name, types in node.bodies)
        return Refusal(reason, f"{node.op_type} {predicate}{f' ({bodies})' if bodies else ''}")
    return Refusal(
        Reason.UNSUPPORTED_VERSION,
        f"{node.op_type} of schema version {node.since_version} has no converter; use one of {list(versions)}",
    )


def _listed(op_types: Mapping[str, int]) -> str:
    return ", ".join(f"{op_type} x{number}" for op_type, number in op_types.items()) or "no nodes"


def _check_outputs(context: ConversionContext, node: OnnxNode) -> None:
    for name in filter(None, node.outputs):
        operand = context.operand_of.get(name)
        if operand is None:
            raise invalid(f"the node has output {name!r}, which {node.op_type} does not define")
        actual, declared = context.type_of(operand), context.declared(name)
        if actual.dtype != declared.dtype or size_hint(actual.dimensions) != declared.dimensions:
            raise invalid(f"output {name!r} of {node.op_type} is {actual}; the graph declares {declared}")


def contradiction(
    node: OnnxNode, values: Mapping[str, Value], constants: Mapping[str, Array] = MappingProxyType({})
) -> Unsupported | None:
    """Return the refusal of a node that violates its ONNX specification, or None."""
    if node.contradiction:
        return Unsupported(Reason.INVALID_NODE, node.contradiction)
    try:
        _converted_alone(node, values, constants)
    except Refusal as refusal:
        return refusal.verdict if refusal.verdict.reason is Reason.INVALID_NODE else None
    return None


def output_types(
    node: OnnxNode, values: Mapping[str, Value], constants: Mapping[str, Array]
) -> Mapping[str, OperandType] | None:
    """Return a node's output types by name, or None if the node cannot be converted."""
    try:
        context = _converted_alone(node, values, constants)
    except Refusal:
        return None
    if context is None:
        return None
    operands = context.operand_of
    return {name: context.type_of(operands[name]) for name in node.outputs if name in operands}


def _converted_alone(
    node: OnnxNode, values: Mapping[str, Value], constants: Mapping[str, Array]
) -> ConversionContext | None:
    convert = lookup(node.domain, node.op_type, node.since_version) if node.since_version else None
    if convert is None:
        return None
    context = ConversionContext(values, constants)
    context.begin(node)
    convert(context, node)
    return context


_MOST_COMPARED_ELEMENTS = 64


def convert_per_node(
    members: Sequence[int],
    nodes: Sequence[OnnxNode],
    values: Mapping[str, Value],
    constants: Mapping[str, Array],
    read: Collection[str],
) -> PerNodeConversions:
    """Convert nodes individually. Of nodes that differ only in names and weights, convert one."""
    first: dict[Hashable, int] = {}
    like = []
    for member in members:
        kind = tuple(_kind(nodes[member], values, constants, read))
        like.append(first.setdefault(kind, len(first)))
    representatives = dict(reversed(list(zip(like, members, strict=True))))
    chosen = [nodes[representatives[position]] for position in range(len(first))]
    result_names = [name for node in chosen for name in node.outputs if name in read]
    conversion = convert_graph(chosen, values, constants, result_names)
    return PerNodeConversions(nodes=tuple(members), conversion=conversion, like=tuple(like))


def _kind(
    node: OnnxNode, values: Mapping[str, Value], constants: Mapping[str, Array], read: Collection[str]
) -> Iterator[Hashable]:
    yield node.domain, node.op_type, node.since_version
    for name, attribute in sorted(node.attributes.items()):
        yield name, _hashable(attribute)
    for name in node.inputs:
        value, constant = values.get(name), constants.get(name) if name else None
        yield (value.dtype, value.shape) if value is not None else (name == "",)
        if constant is not None:
            yield (
                constant.dtype.str,
                constant.shape,
                constant.tobytes() if constant.size <= _MOST_COMPARED_ELEMENTS else b"",
            )
    for name in node.outputs:
        value = values.get(name)
        yield name in read, value and value.dtype, value and value.shape


def _hashable(attribute: object) -> Hashable:
    if isinstance(attribute, np.ndarray):
        return attribute.dtype.str, attribute.shape, attribute.tobytes()
    return attribute if isinstance(attribute, Hashable) else id(attribute)
