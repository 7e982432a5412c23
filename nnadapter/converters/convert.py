"""Conversion of a whole ONNX graph or of single nodes, with a verdict for every node.

A whole ONNX graph to one adapter IR model, with a verdict for every node.

The graph is converted once. What a node that cannot be converted makes is a model input (a hole), so that every other
node has its place in one and the same model, of which segments are cut later (`ir.extract`).

Telling a node that is wrong from one that a device lacks something for.

onnx's schemas know which attributes and types an op has, and not which values of them mean anything. Converters do:
they refuse what contradicts the specification as invalid, whatever a device can do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

import numpy as np

from nnadapter.converters.context import ConversionContext
from nnadapter.converters.custom import KernelCalls, convert_call
from nnadapter.converters.quantized_groups import Group, convert_quantized_group
from nnadapter.converters.registry import ANOTHER_GRAPH, NO_CONVERTER, UNCONVERTED, Converter, converted, lookup
from nnadapter.ir import Array, Model, OperandType, schema_of, submodel
from nnadapter.ir.structure import SymbolicModel
from nnadapter.ir.symbolic_numbers import size_hint
from nnadapter.onnx.model import OnnxNode
from nnadapter.onnx.schemas import EXTERNAL_CONVERTERS, Refusal, external_name, external_versions
from partition.graph import SUPPORTED, Reason, Supported, Unsupported, Value, Verdict


@dataclass(frozen=True, kw_only=True, eq=False)
class Conversion:
    """A graph as an adapter IR model, and what became of each node."""

    model: Model
    """Every convertible node; values that other nodes make are model inputs."""
    verdicts: tuple[Verdict, ...]
    """Per node: whether it was converted, and if not why."""
    operations: tuple[tuple[int, ...], ...]
    """Per node: positions in `model.operations`; none if it was not converted, or another node of its atom has them."""
    operand_of: Mapping[str, int]
    """The operand of every ONNX value that a converted node reads or makes."""
    groups: tuple[tuple[int, ...], ...] = ()
    """Nodes that were converted as one, whose operations stand at one of them."""
    tables: frozenset[int] = frozenset()
    """Operations that compute what follows from shapes alone, and stand for none of the nodes."""
    source: tuple[SymbolicModel, Sequence[Any]] | None = None
    """What the model was filled from: the traced model and the numbers of a replay."""
    one_by_one: Callable[[], PerNodeConversions] | None = None
    """Converts the nodes of atoms once more, each by itself; None where every node is."""

    def part(self, operations: Sequence[int], inputs: Sequence[int], outputs: Sequence[int]) -> Model:
        """Some operations as a model of their own. See `ir.model.submodel`."""
        if self.source is None:
            return submodel(self.model, operations, inputs, outputs)
        traced, known = self.source
        part = traced.part(operations, inputs, outputs)
        return self.model if part is traced else part.specialize(known)

    @cached_property
    def flops(self) -> tuple[int | None, ...]:
        """Per node: floating-point operations, 0 where another node of its atom counts them; None if not converted."""
        return tuple(
            _flops(self.model, made) if verdict else None
            for made, verdict in zip(self.operations, self.verdicts, strict=True)
        )

    @cached_property
    def per_node(self) -> PerNodeConversions:
        """What the nodes of atoms are each by itself, whatever became of their atoms; worked out when asked for."""
        return PerNodeConversions(nodes=(), conversion=self) if self.one_by_one is None else self.one_by_one()


@dataclass(frozen=True, kw_only=True, eq=False)
class PerNodeConversions:
    """Nodes of atoms, converted each by itself."""

    nodes: tuple[int, ...]
    """Their positions in the graph."""
    conversion: Conversion
    """Of one of each kind of node."""
    like: tuple[int, ...] = ()
    """Per node, the position in `conversion` of the one of its kind."""
    copies: tuple[int, ...] = ()
    """Positions in the graph of nodes that repeat another one, so that a group can have it for itself."""


def convert_graph(
    nodes: Sequence[OnnxNode],
    values: Mapping[str, Value],
    constants: Mapping[str, Array],
    outputs: Sequence[str],
    captured: Sequence[str] = (),
    groups: Sequence[Group] = (),
    calls: KernelCalls | None = None,
) -> Conversion:
    """Convert what can be converted.

    1. Nodes are converted in their order, each by the converter of its exact schema version; those of a group as one,
       where its last one stands, or one by one if that is refused.
    2. A node is refused, with a reason, if it contradicts its schema, if it has no converter, if one of its values is
       no dense tensor of a known shape, or if its converter or the schema table refuses it. It leaves nothing in the
       model.
    3. What the operations make must be what the graph says of the node's outputs, or the node is refused.
    4. Model inputs are the values that no converted node makes, in the order of their first use.
    5. Outputs after a node's first that nobody reads are taken as not asked for.
    6. A node that was refused, and that a kernel of some device computes, is a call of that kernel; also one that was
       not, if `calls` says so. One without a converter is such an operation, too, if a device declares its domain.
    7. Model outputs are the graph's outputs, what refused nodes read, and `captured`, as far as they have an operand.

    Args:
        nodes: in a topological order; nodes whose inputs are all constant were folded before.
        values: what is known of each value.
        constants: contents of the initializers, read-only.
        outputs: names of the graph's outputs.
        captured: names of outer values that sub-graphs read.
        groups: of nodes that only they hold.
        calls: what kernels compute; None where there are none.
    """
    wanted = dict.fromkeys((*outputs, *captured))
    growing = GrowingConversion(ConversionContext(values, constants), nodes, wanted, groups, calls)
    for position in range(len(nodes)):
        growing.add(position)
    return growing.finish()


class GrowingConversion:
    """A conversion that grows node by node.

    Args:
        context: what it is made with.
        nodes: in a topological order.
        wanted: values that are read outside of the nodes.
        groups: see `convert_graph`.
        calls: see `convert_graph`.
    """

    def __init__(
        self,
        context: ConversionContext,
        nodes: Sequence[OnnxNode],
        wanted: Iterable[str],
        groups: Sequence[Group] = (),
        calls: KernelCalls | None = None,
    ) -> None:
        self.context = context
        self._calls = calls
        self._wanted = dict.fromkeys(wanted)
        read = {*self._wanted, *(name for node in nodes for name in node.inputs)}
        self._nodes = [trimmed(node, read) for node in nodes]
        self._group_at = {group.target: group for group in groups}
        self._waiting = {member for group in groups for member in group.members if member != group.target}
        self._groups: list[tuple[int, ...]] = []
        self._verdicts: list[Verdict] = [SUPPORTED] * len(nodes)
        self._operations: list[tuple[int, ...]] = [()] * len(nodes)
        self._left: dict[str, None] = {}
        self._tables: set[int] = set()

    def add(self, position: int) -> None:
        """Convert one node, or leave a hole; those before it were added."""
        if position in self._waiting:
            return
        group = self._group_at.get(position)
        if group is None:
            self._add_node(position)
        elif not self._add_group(group):
            for member in group.members:
                self._add_node(member)

    def add_table(self, node: OnnxNode) -> bool:
        """Convert a node that stands beside the others, and makes of shapes what they read; whether that was done."""
        before = self.context.builder.mark()[1]
        verdict = _convert(self.context, node, None)
        self._tables.update(range(before, self.context.builder.mark()[1]))
        return bool(verdict)

    def _add_node(self, position: int) -> None:
        node, before = self._nodes[position], self.context.builder.mark()[1]
        verdict = self._verdicts[position] = _convert(self.context, node, self._calls)
        self._operations[position] = tuple(range(before, self.context.builder.mark()[1]))
        if not verdict:
            self._left.update(dict.fromkeys(node.inputs))

    def _add_group(self, group: Group) -> bool:
        nodes, before = self._nodes, self.context.builder.mark()[1]
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
        self._operations[group.node] = tuple(range(before, self.context.builder.mark()[1]))
        self._groups.append(group.members)
        return True

    def finish(self) -> Conversion:
        """Return the conversion, after every node was added."""
        operand_of = dict(self.context.operand_of)
        outputs = [operand_of[name] for name in {**self._wanted, **self._left} if name in operand_of]
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
    """Older exporters name optional outputs, such as Dropout's mask, that nothing uses."""
    if len(node.outputs) == 1 or all(name in read for name in node.outputs[1:]):
        return node
    kept = tuple(name if name in read else "" for name in node.outputs[1:])
    return replace(node, outputs=(node.outputs[0], *kept))


def _convert(context: ConversionContext, node: OnnxNode, calls: KernelCalls | None) -> Verdict:
    if calls is None or node.contradiction or not calls.concerns(node):
        return _tried(context, node, _convert_node)
    call = partial(_convert_call, calls)
    if node.name in calls.forced:
        return _tried(context, node, call)
    verdict = _tried(context, node, _convert_node)
    is_converted = lookup(node.domain, node.op_type, node.since_version) is not None
    if isinstance(verdict, Supported) or (is_converted and not calls.has_kernel(node)):
        return verdict
    call_verdict = _tried(context, node, call)
    return _both(verdict, call_verdict) if isinstance(call_verdict, Unsupported) else call_verdict


def _both(verdict: Unsupported, call_verdict: Unsupported) -> Unsupported:
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


def _convert_call(calls: KernelCalls, context: ConversionContext, node: OnnxNode) -> None:
    convert_call(context, node, calls)


def _convert_node(context: ConversionContext, node: OnnxNode) -> None:
    if node.contradiction:
        raise Refusal(Reason.INVALID_NODE, node.contradiction)
    convert = _converter_of(node)
    for name in filter(None, node.inputs):
        context.type_of(name)
    _check_known(context, node, convert)
    convert(context, node)


def _check_known(context: ConversionContext, node: OnnxNode, convert: Converter) -> None:
    """Refuse a node of whose results too little is known, as invalid where its converter says so: that may be why."""
    try:
        for name in filter(None, node.outputs):
            context.declared(name)
    except Refusal as unknown:
        try:
            convert(context, node)
        except Refusal as refusal:
            if refusal.verdict.reason is Reason.INVALID_NODE or node.domain:  # its results follow from the conversion
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
        known = ", ".join(sorted({domain or "ai.onnx" for domain, _ in converted()}))
        return Refusal(
            Reason.UNSUPPORTED_DOMAIN,
            f"domain {node.domain!r} of {node.op_type} has no converters, here or in an installed "
            f"package; these have: {known}",
        )
    versions = converted().get((node.domain, node.op_type)) or brought or None
    if versions is None:
        others = ANOTHER_GRAPH if node.bodies else NO_CONVERTER
        reason, why = others if node.domain else UNCONVERTED.get(node.op_type, others)
        bodies = "; ".join(f"{name}: {_listed(types)}" for name, types in node.bodies)
        return Refusal(reason, f"{node.op_type} {why}{f' ({bodies})' if bodies else ''}")
    return Refusal(
        Reason.UNSUPPORTED_VERSION,
        f"{node.op_type} of schema version {node.since_version} has no converter; versions {list(versions)} have",
    )


def _listed(op_types: Mapping[str, int]) -> str:
    return ", ".join(f"{op_type} x{number}" for op_type, number in op_types.items()) or "no nodes"


def _check_outputs(context: ConversionContext, node: OnnxNode) -> None:
    for name in filter(None, node.outputs):
        operand = context.operand_of.get(name)
        if operand is None:
            raise Refusal(Reason.INVALID_NODE, f"output {name!r} of {node.op_type} is not one that the op has")
        made, declared = context.type_of(operand), context.declared(name)
        if made.dtype != declared.dtype or size_hint(made.dimensions) != declared.dimensions:
            raise Refusal(
                Reason.INVALID_NODE, f"output {name!r} of {node.op_type} is {made}; the graph says {declared}"
            )


def contradiction(
    node: OnnxNode, values: Mapping[str, Value], constants: Mapping[str, Array] = MappingProxyType({})
) -> Unsupported | None:
    """Return what is wrong with a node, None if nothing is known to be.

    Args:
        node: the node.
        values: what is known of the values that it reads and makes.
        constants: the contents of those that are known.
    """
    if node.contradiction:
        return Unsupported(Reason.INVALID_NODE, node.contradiction)
    convert = lookup(node.domain, node.op_type, node.since_version) if node.since_version else None
    if convert is None:
        return None
    context = ConversionContext(values, constants)
    context.begin(node)
    try:
        convert(context, node)
    except Refusal as refusal:
        return refusal.verdict if refusal.verdict.reason is Reason.INVALID_NODE else None
    return None


def output_types(
    node: OnnxNode, values: Mapping[str, Value], constants: Mapping[str, Array]
) -> Mapping[str, OperandType] | None:
    """Return the types of a node's outputs by name, None where it has no converter or is refused.

    Args:
        node: the node.
        values: what is known of the values that it reads.
        constants: the contents of those that are known.
    """
    convert = lookup(node.domain, node.op_type, node.since_version)
    if convert is None:
        return None
    context = ConversionContext(values, constants)
    context.begin(node)
    try:
        convert(context, node)
    except Refusal:
        return None
    made = context.operand_of
    return {name: context.type_of(made[name]) for name in node.outputs if name in made}


_TELLING = 64
"""Elements of a constant that may decide what a node becomes: axes, sizes, exponents. Weights do not."""


def convert_per_node(
    members: Sequence[int],
    nodes: Sequence[OnnxNode],
    values: Mapping[str, Value],
    constants: Mapping[str, Array],
    read: Collection[str],
) -> PerNodeConversions:
    """Convert nodes each by itself. Of those that are alike but for names and weights one is converted.

    Args:
        members: positions of the nodes in question.
        nodes: the whole graph's.
        values: what is known of each value.
        constants: contents of what is known.
        read: values that something reads.
    """
    first: dict[Hashable, int] = {}
    like = []
    for member in members:
        kind = tuple(_kind(nodes[member], values, constants, read))
        like.append(first.setdefault(kind, len(first)))
    taken = dict(reversed(list(zip(like, members, strict=True))))
    chosen = [nodes[taken[position]] for position in range(len(first))]
    made = [name for node in chosen for name in node.outputs if name in read]
    conversion = convert_graph(chosen, values, constants, made)
    return PerNodeConversions(nodes=tuple(members), conversion=conversion, like=tuple(like))


def _kind(
    node: OnnxNode, values: Mapping[str, Value], constants: Mapping[str, Array], read: Collection[str]
) -> Iterator[Hashable]:
    """What decides which operations a node becomes, and how much work they are."""
    yield node.domain, node.op_type, node.since_version
    for name, attribute in sorted(node.attributes.items()):
        yield name, _hashable(attribute)
    for name in node.inputs:
        value, constant = values.get(name), constants.get(name) if name else None
        yield (value.dtype, value.shape) if value is not None else (name == "",)
        if constant is not None:
            yield constant.dtype.str, constant.shape, constant.tobytes() if constant.size <= _TELLING else b""
    for name in node.outputs:
        value = values.get(name)
        yield name in read, value and value.dtype, value and value.shape


def _hashable(attribute: object) -> Hashable:
    if isinstance(attribute, np.ndarray):
        return attribute.dtype.str, attribute.shape, attribute.tobytes()
    return attribute if isinstance(attribute, Hashable) else id(attribute)
