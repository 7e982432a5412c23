"""Converters of ONNX Runtime's own ops by their function bodies; MatMulNBits has its own converter.

Bodies use the newest opset they support, so that ops such as Attention and Gelu stay one operation. Quantized groups in
bodies are fused. Symbolic sizes become dynamic dimensions in bodies, so conversion adds no guards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from nnadapter.converters.context import ConversionContext, invalid
from nnadapter.converters.quantization import reshaped
from nnadapter.converters.quantized_groups import Group, convert_quantized_group, find_groups
from nnadapter.converters.registry import OnnxNode, Reason, Refusal, converter, is_builtin, lookup
from nnadapter.ir import ABSENT, Array
from nnadapter.ir.operations.linear_algebra import PACKED_BITS
from nnadapter.onnx.body import Body, body_of, function_ops
from nnadapter.onnx.schemas import MICROSOFT
from nnadapter.records import replace
from partition.graph import ITEMSIZE_OF_DTYPE, Value

_GROUP_INDICES = 4


@converter("MatMulNBits", 1, domain=MICROSOFT)
def convert_mat_mul_n_bits(context: ConversionContext, node: OnnxNode) -> None:
    """Convert com.microsoft MatMulNBits to MAT_MUL_N_BITS.

    `accuracy_level` is ignored. Refused: `g_idx`, prepacked weights.
    """
    if node.input(_GROUP_INDICES):
        raise Refusal(
            Reason.UNSUPPORTED_ATTRIBUTE, "input 'g_idx' of MatMulNBits, which groups rows of B, is present; omit it"
        )
    if node.integer("weight_prepacked", 0):
        raise Refusal(Reason.UNSUPPORTED_ATTRIBUTE, "attribute 'weight_prepacked' of MatMulNBits is not 0; expected 0")
    bits, block_size = node.integer("bits", 4), node.integer("block_size")
    if bits not in PACKED_BITS:
        raise Refusal(
            Reason.UNSUPPORTED_ATTRIBUTE,
            f"attribute 'bits' of MatMulNBits is {bits}; expected one of {list(PACKED_BITS)}",
        )
    units, blocks = node.integer("N"), -(-node.integer("K") // max(block_size, 1))
    scale = _as_matrix(context, node, 2, (units, blocks))
    zero_point = ABSENT
    if node.input(3):
        packed = not context.type_of(node.input(3)).dtype.is_floating
        columns = -(-blocks * bits // 8) if packed else blocks
        zero_point = _as_matrix(context, node, 3, (units, columns))
    inputs = [context.operand(node.input(0)), context.operand(node.input(1)), scale, zero_point]
    inputs.append(context.optional_operand(node.input(5)))
    while inputs[-1] == ABSENT:
        inputs.pop()
    context.add("MAT_MUL_N_BITS", inputs, {"bits": bits, "block_size": block_size}, node.outputs)


def _as_matrix(context: ConversionContext, node: OnnxNode, position: int, shape: tuple[int, int]) -> int:
    type_ = context.type_of(node.input(position))
    if type_.size != prod(shape):
        raise invalid(
            f"{node.input(position)!r} of MatMulNBits is {type_}; expected {list(shape)} by the node's attributes"
        )
    return reshaped(context, context.operand(node.input(position)), shape)


def convert_body(context: ConversionContext, node: OnnxNode) -> None:
    """Convert a node by its ONNX function body; operations have the node as origin."""
    inputs = [_value(context, name) if name else None for name in node.inputs]
    contents_by_position = _Contents(context, node)
    body = body_of(node, inputs, contents_by_position, integers=contents_by_position.integers)
    if body is None:
        raise Refusal(Reason.UNSUPPORTED_OPERATION, f"ONNX lacks ops for {node.op_type} with such inputs or attributes")
    names = _names(body, node)
    for name, contents in body.constants.items():
        context.record_inner_constant(names[name], contents)
    nodes = [_called(body_node, names) for body_node in body.nodes]
    groups = {group.target: group for group in find_groups(nodes, node.outputs)}
    waiting = {member for group in groups.values() for member in group.members} - groups.keys()
    for position in range(len(nodes)):
        group = groups.get(position)
        if position in waiting or (group is not None and _convert_group(context, nodes, group)):
            continue
        for member in (position,) if group is None else group.members:
            _convert_inner(context, node, nodes[member])


def _called(inner: OnnxNode, names: Mapping[str, str]) -> OnnxNode:
    read, outputs = (tuple(names[name] if name else "" for name in part) for part in (inner.inputs, inner.outputs))
    return replace(inner, inputs=read, outputs=outputs)


def _convert_group(context: ConversionContext, nodes: Sequence[OnnxNode], group: Group) -> bool:
    mark = context.mark()
    sources = {name: nodes[source] for name, source in group.sources.items()}
    try:
        convert_quantized_group(context, nodes[group.node], sources, nodes[group.target])
    except Refusal:
        context.undo(mark)
        return False
    return True


def _convert_inner(context: ConversionContext, node: OnnxNode, inner: OnnxNode) -> None:
    convert = lookup("", inner.op_type, inner.since_version)
    if convert is None:
        raise Refusal(Reason.UNSUPPORTED_OPERATION, f"{inner.op_type} in the body of {node.op_type} has no converter")
    convert(context, inner)


def _value(context: ConversionContext, name: str) -> Value:
    type_ = context.type_of(name)
    return Value(name, type_.dtype.value, type_.dimensions, ITEMSIZE_OF_DTYPE[type_.dtype.value])


class _Contents(Mapping[int, Array]):
    def __init__(self, context: ConversionContext, node: OnnxNode) -> None:
        self._context = context
        self._names = {
            position: name for position, name in enumerate(node.inputs) if name and context.is_constant(name)
        }

    def __getitem__(self, position: int) -> Array:
        return self._context.constant(self._names[position])

    def __iter__(self) -> Iterator[int]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def integers(self, position: int) -> tuple[int, ...] | None:
        return self._context.integers(self._names[position]) if position in self._names else None


def _names(body: Body, node: OnnxNode) -> dict[str, str]:
    prefix = next(filter(None, node.outputs))
    inner = (*body.constants, *(name for body_node in body.nodes for name in body_node.outputs if name))
    names = {name: f"{prefix}%{name}" for name in inner}
    names.update(zip(body.inputs, node.inputs, strict=True))
    names.update((inside, outside) for inside, outside in zip(body.outputs, node.outputs, strict=False) if inside)
    return names


def register_bodies() -> None:
    """Register `convert_body` for ops with a function body and no converter."""
    for domain, op_type, version in function_ops():
        if not is_builtin(domain, op_type, version):
            converter(op_type, version, domain=domain)(convert_body)


register_bodies()
