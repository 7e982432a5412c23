"""Elementwise operations of several inputs, with numpy's broadcasting: arithmetic, comparisons, logic, selection."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from nnadapter.converters.context import ConversionContext
from nnadapter.converters.registry import Converter, converter
from nnadapter.onnx.node import OnnxNode
from nnadapter.onnx.refusal import Refusal
from partition.verdict import Reason

_BINARY: Mapping[str, tuple[str, tuple[int, ...]]] = {
    "Add": ("ADD", (7, 13, 14)),
    "And": ("AND", (7,)),
    "Div": ("DIV", (7, 13, 14)),
    "Equal": ("EQUAL", (7, 11, 13, 19)),
    "Greater": ("GREATER", (7, 9, 13)),
    "GreaterOrEqual": ("GREATER_EQUAL", (12, 16)),
    "Less": ("LESS", (7, 9, 13)),
    "LessOrEqual": ("LESS_EQUAL", (12, 16)),
    "Mul": ("MUL", (7, 13, 14)),
    "Or": ("OR", (7,)),
    "PRelu": ("PRELU", (7, 9, 16)),
    "Pow": ("POW", (7, 12, 13, 15)),
    "Sub": ("SUB", (7, 13, 14)),
    "Xor": ("XOR", (7,)),
}
"""Ops of two inputs without attributes whose versions differ in data types alone."""


def _binary(type_: str) -> Converter:
    def convert_binary(context: ConversionContext, node: OnnxNode) -> None:
        context.add(type_, (context.operand(node.input(0)), context.operand(node.input(1))), outputs=node.outputs)

    return convert_binary


for _op_type, (_type, _versions) in _BINARY.items():
    converter(_op_type, *_versions)(_binary(_type))


@converter("Mod", 10, 13, 28)
def convert_mod(context: ConversionContext, node: OnnxNode) -> None:
    """Mod; floored on floating-point numbers since version 28 alone, spelled out. Source: ONNX Mod-28."""
    fmod = bool(node.integer("fmod", 0))
    floored = not fmod and context.type_of(node.input(0)).dtype.is_floating
    if floored and node.since_version < 28:
        raise Refusal(
            Reason.INVALID_NODE,
            f"attribute 'fmod' of Mod on {context.type_of(node.input(0))} is 0; expected 1 before version 28",
        )
    inputs = (context.operand(node.input(0)), context.operand(node.input(1)))
    if floored:
        _add_floored_remainder(context, node, *inputs)
    else:
        context.add("MOD", inputs, {"fmod": fmod}, node.outputs)


def _add_floored_remainder(context: ConversionContext, node: OnnxNode, x: int, y: int) -> None:
    """The remainder with the sign of the dividend, and y more where that is not the sign of y."""
    (remainder,) = context.add("MOD", (x, y), {"fmod": True})
    zero = context.add_constant(np.zeros((), np.dtype(context.type_of(x).dtype)))
    signs = (context.add("LESS", (operand, zero))[0] for operand in (remainder, y))
    (differs,) = context.add("XOR", tuple(signs))
    (there,) = context.add("NOT", context.add("EQUAL", (remainder, zero)))
    (moved,) = context.add("ADD", (remainder, y))
    context.add("WHERE", (*context.add("AND", (differs, there)), moved, remainder), outputs=node.outputs)


@converter("Where", 9, 16)
def convert_where(context: ConversionContext, node: OnnxNode) -> None:
    """Where. Source: ONNX Where-16."""
    inputs = tuple(context.operand(node.input(position)) for position in range(3))
    context.add("WHERE", inputs, outputs=node.outputs)


def _extreme(type_: str, context: ConversionContext, node: OnnxNode) -> None:
    """One input is copied, more are compared pair by pair."""
    operands = _operands(context, node)
    if len(operands) == 1:
        context.add("ASSIGN", operands, outputs=node.outputs)
        return
    result = operands[0]
    for position, operand in enumerate(operands[1:], 2):
        last = position == len(operands)
        (result,) = context.add(type_, (result, operand), outputs=node.outputs if last else ())


def _sum(context: ConversionContext, node: OnnxNode) -> None:
    operands = _operands(context, node)
    context.add("SUM" if len(operands) > 1 else "ASSIGN", operands, outputs=node.outputs)


def _mean(context: ConversionContext, node: OnnxNode) -> None:
    operands = _operands(context, node)
    if len(operands) == 1:
        context.add("ASSIGN", operands, outputs=node.outputs)
        return
    (total,) = context.add("SUM", operands)
    count = context.add_constant(np.array(len(operands), np.dtype(context.type_of(total).dtype)))
    context.add("DIV", (total, count), outputs=node.outputs)


def _operands(context: ConversionContext, node: OnnxNode) -> tuple[int, ...]:
    if not node.inputs:
        raise Refusal(Reason.INVALID_NODE, f"{node.op_type} has no inputs; expected one or more")
    return tuple(map(context.operand, node.inputs))


_VARIADIC: Mapping[str, tuple[Converter, tuple[int, ...]]] = {
    "Max": (partial(_extreme, "MAX"), (8, 12, 13)),
    "Mean": (_mean, (8, 13)),
    "Min": (partial(_extreme, "MIN"), (8, 12, 13)),
    "Sum": (_sum, (8, 13)),
}
"""Since version 8 these broadcast; in version 6 all inputs must have one shape."""


def _of_one_shape(convert: Converter) -> Converter:
    def convert_of_one_shape(context: ConversionContext, node: OnnxNode) -> None:
        shapes = {context.dimensions(name) for name in node.inputs if name}
        if len(shapes) > 1:
            shapes_text = " and ".join(str(list(shape)) for shape in sorted(shapes))
            raise Refusal(
                Reason.INVALID_NODE, f"inputs of {node.op_type}-6 have shapes {shapes_text}; expected one shape"
            )
        convert(context, node)

    return convert_of_one_shape


for _op_type, (_convert, _versions) in _VARIADIC.items():
    converter(_op_type, *_versions)(_convert)
    converter(_op_type, 6)(_of_one_shape(_convert))
