"""Converters of elementwise ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from nnadapter.converters.context import ConversionContext, data_type_attribute, invalid
from nnadapter.converters.registry import Converter, NodeWriter, OnnxNode, Reason, Refusal, converter, exporter
from nnadapter.ir.operand import Array, DataType
from nnadapter.ir.operand_checks import integer_range


@converter("Cast", 6, 9, 13, 19, 21, 23, 24, 25, 28)
def convert_cast(context: ConversionContext, node: OnnxNode) -> None:
    """Convert Cast to CAST. Refused: `saturate` 0 for float8.

    `round_mode` only affects float8e8m0, which the IR lacks.
    """
    target = data_type_attribute(node, "to")
    check_saturation(node, target)
    context.add_for(node, "CAST", {"to": target})


def check_saturation(node: OnnxNode, target: str) -> None:
    """Refuse a float8 cast without saturation."""
    if target.startswith("float8") and not node.integer("saturate", 1):
        raise Refusal(
            Reason.UNSUPPORTED_ATTRIBUTE, f"attribute 'saturate' of {node.op_type} to {target} is 0; expected 1"
        )


@converter("Clip", 6, 11, 12, 13)
def convert_clip(context: ConversionContext, node: OnnxNode) -> None:
    """Convert Clip to CLIP, or to MAX and MIN if bounds are run-time values."""
    bounds = [context.is_fixed(name) for name in node.inputs[1:3] if name]
    limits = [context.optional_constant(node, position) for position in (1, 2)] if all(bounds) else []
    if limits and all(map(_is_exact, limits)):
        defaults = {"min": node.number("min", float("-inf")), "max": node.number("max", float("inf"))}
        pairs = zip(defaults.items(), limits, strict=True)
        context.add_for(
            node,
            "CLIP",
            {name: default if limit is None else float(limit.reshape(-1)[0]) for (name, default), limit in pairs},
        )
        return
    result = context.operand(node.input(0))
    if node.input(1):
        result = context.apply(
            "MAX", result, context.operand(node.input(1)), outputs=() if node.input(2) else node.outputs
        )
    if node.input(2):
        context.apply("MIN", result, context.operand(node.input(2)), outputs=node.outputs)


def _is_exact(limit: Array | None) -> bool:
    if limit is None:
        return True
    return limit.size == 1 and (limit.dtype.kind not in "iu" or abs(int(limit.reshape(-1)[0])) <= 2**53)


@converter("Dropout", 7, 10, 12, 13, 22)
def convert_dropout(context: ConversionContext, node: OnnxNode) -> None:
    """Convert Dropout to ASSIGN. The mask is zeros before version 12, and ones since. Training mode is refused."""
    training = context.optional_constant(node, 2)
    if training is not None and training.any():
        raise Refusal(Reason.UNSUPPORTED_ATTRIBUTE, "input 'training_mode' of Dropout is true; expected false")
    context.apply("ASSIGN", context.operand(node.input(0)), outputs=node.outputs[:1])
    if node.output(1):
        mask = context.declared(node.output(1)).dtype
        value = context.add_constant(np.full((), node.since_version >= 12, np.dtype(mask)))
        context.apply("EXPAND", value, outputs=node.outputs[1:2], shape=context.dimensions(node.input(0)))


@converter("Mod", 10, 13, 28)
def convert_mod(context: ConversionContext, node: OnnxNode) -> None:
    """Convert Mod to MOD, but floored remainders of reals (version 28) to several operations."""
    fmod = bool(node.integer("fmod", 0))
    floored = not fmod and context.type_of(node.input(0)).dtype.is_floating
    if floored and node.since_version < 28:
        raise invalid(
            f"attribute 'fmod' of Mod on {context.type_of(node.input(0))} is 0; expected 1 for floats before opset 28"
        )
    if floored:
        _add_floored_remainder(context, node, *context.operands(node, 2))
    else:
        context.add_for(node, "MOD", {"fmod": fmod}, 2)


def _add_floored_remainder(context: ConversionContext, node: OnnxNode, x: int, y: int) -> None:
    remainder = context.apply("MOD", x, y, fmod=True)
    zero = context.add_constant(np.zeros((), np.dtype(context.type_of(x).dtype)))
    signs = (context.apply("LESS", operand, zero) for operand in (remainder, y))
    differs = context.apply("XOR", *signs)
    is_nonzero = context.apply("NOT", context.apply("EQUAL", remainder, zero))
    moved = context.apply("ADD", remainder, y)
    context.apply("WHERE", context.apply("AND", differs, is_nonzero), moved, remainder, outputs=node.outputs)


def _extreme(type_: str, context: ConversionContext, node: OnnxNode) -> None:
    operands = _operands(context, node)
    if len(operands) == 1:
        context.add("ASSIGN", operands, outputs=node.outputs)
        return
    result = operands[0]
    for position, operand in enumerate(operands[1:], 2):
        last = position == len(operands)
        result = context.apply(type_, result, operand, outputs=node.outputs if last else ())


def _sum(context: ConversionContext, node: OnnxNode) -> None:
    operands = _operands(context, node)
    context.add("SUM" if len(operands) > 1 else "ASSIGN", operands, outputs=node.outputs)


def _mean(context: ConversionContext, node: OnnxNode) -> None:
    operands = _operands(context, node)
    if len(operands) == 1:
        context.add("ASSIGN", operands, outputs=node.outputs)
        return
    total = context.apply("SUM", *operands)
    count = context.add_constant(np.array(len(operands), np.dtype(context.type_of(total).dtype)))
    context.apply("DIV", total, count, outputs=node.outputs)


def _operands(context: ConversionContext, node: OnnxNode) -> tuple[int, ...]:
    if not node.inputs:
        raise invalid(f"{node.op_type} has no inputs; expected one or more")
    return tuple(map(context.operand, node.inputs))


_VARIADIC: Mapping[str, tuple[Converter, tuple[int, ...]]] = {
    "Max": (partial(_extreme, "MAX"), (8, 12, 13)),
    "Mean": (_mean, (8, 13)),
    "Min": (partial(_extreme, "MIN"), (8, 12, 13)),
    "Sum": (_sum, (8, 13)),
}
"""Op -> converter and versions, except version 6, which requires equal shapes."""


def _of_one_shape(convert: Converter) -> Converter:
    def convert_of_one_shape(context: ConversionContext, node: OnnxNode) -> None:
        shapes = {context.dimensions(name) for name in node.inputs if name}
        if len(shapes) > 1:
            shapes_text = " and ".join(str(list(shape)) for shape in sorted(shapes))
            raise invalid(f"inputs of {node.op_type}-6 have shapes {shapes_text}; expected the same shape for all")
        convert(context, node)

    return convert_of_one_shape


for _op_type, (_convert, _versions) in _VARIADIC.items():
    converter(_op_type, *_versions)(_convert)
    converter(_op_type, 6)(_of_one_shape(_convert))


@converter("CastLike", 15, 19, 21, 23, 24, 25)
def convert_cast_like(context: ConversionContext, node: OnnxNode) -> None:
    """Convert CastLike to CAST, see `convert_cast`."""
    target = context.type_of(node.input(1)).dtype.value
    check_saturation(node, target)
    context.add_for(node, "CAST", {"to": target})


@converter("BitShift", 11, 28)
def convert_bit_shift(context: ConversionContext, node: OnnxNode) -> None:
    """Convert BitShift to BIT_SHIFT."""
    direction = node.text("direction", "")
    if direction not in ("LEFT", "RIGHT"):
        raise invalid(f"attribute 'direction' of BitShift is {direction!r}; expected 'LEFT' or 'RIGHT'")
    context.add_for(node, "BIT_SHIFT", {"direction": direction.lower()}, 2)


def clip(write: NodeWriter, x: str, low: float, high: float) -> str:
    """Write Clip (13); bounds of integers are limited to the data type's range."""
    dtype = write.dtype_of(x) or DataType.FLOAT32
    bounds = [_bound(write, limit, dtype) if np.isfinite(limit) else "" for limit in (low, high)]
    return write.node("Clip", x, *bounds)


def _bound(write: NodeWriter, limit: float, dtype: DataType) -> str:
    if dtype.is_floating:
        return write.number(limit, dtype)
    smallest, largest = integer_range(dtype)
    return write.number(min(max(int(limit), smallest), largest), dtype)


def _scaled(write: NodeWriter, x: str, factor: float) -> str:
    dtype = write.dtype_of(x) or DataType.FLOAT32
    return x if factor == 1 else write.node("Mul", x, write.number(factor, dtype))


def swish(write: NodeWriter, x: str, alpha: float = 1.0) -> str:
    """Write x * sigmoid(alpha * x): ONNX Runtime has no kernel for Swish (24)."""
    return write.node("Mul", x, write.node("Sigmoid", _scaled(write, x, alpha)))


def hard_swish(write: NodeWriter, x: str, alpha: float, beta: float) -> str:
    """Write HardSwish (22) for the parameters that ONNX fixes, otherwise HardSigmoid and Mul."""
    if (np.float32(alpha), beta) == (np.float32(1 / 6), 0.5):
        return write.node("HardSwish", x)
    return write.node("Mul", x, write.node("HardSigmoid", x, alpha=alpha, beta=beta))


FUSED: Mapping[str, Callable[..., str]] = {
    "relu": lambda write, x: write.node("Relu", x),
    "clip": clip,
    "sigmoid": lambda write, x: write.node("Sigmoid", x),
    "hard_sigmoid": lambda write, x, alpha, beta: write.node("HardSigmoid", x, alpha=alpha, beta=beta),
    "hard_swish": hard_swish,
    "tanh": lambda write, x: write.node("Tanh", x),
    "leaky_relu": lambda write, x, alpha: write.node("LeakyRelu", x, alpha=alpha),
    "gelu": lambda write, x: write.node("Gelu", x),
    "gelu_tanh": lambda write, x: write.node("Gelu", x, approximate="tanh"),
    "swish": swish,
}


@exporter("CEIL", "FLOOR", "ROUND")
def export_rounding(write: NodeWriter) -> str:
    """Export CEIL, FLOOR and ROUND as Ceil, Floor and Round, but as Identity for integers."""
    op_type = write.operation.type.capitalize() if write.type.dtype.is_floating else "Identity"
    return write.node(op_type, write.inputs[0])


@exporter("CLIP")
def export_clip(write: NodeWriter) -> str:
    """Export CLIP as Clip."""
    return clip(write, write.inputs[0], write.operation.attributes["min"], write.operation.attributes["max"])  # type: ignore[arg-type]


@exporter("SWISH")
def export_swish(write: NodeWriter) -> str:
    """Export SWISH as Sigmoid and Mul."""
    return swish(write, write.inputs[0], write.operation.alpha)


@exporter("HARD_SWISH")
def export_hard_swish(write: NodeWriter) -> str:
    """Export HARD_SWISH; see `hard_swish`."""
    return hard_swish(write, write.inputs[0], write.operation.alpha, write.operation.beta)


@exporter("RSQRT")
def export_rsqrt(write: NodeWriter) -> str:
    """Export RSQRT as Sqrt and Reciprocal."""
    return write.node("Reciprocal", write.node("Sqrt", write.inputs[0]))


@exporter("SQUARE")
def export_square(write: NodeWriter) -> str:
    """Export SQUARE as Mul."""
    return write.node("Mul", write.inputs[0], write.inputs[0])


@exporter("CELU")
def export_celu(write: NodeWriter) -> str:
    """Export CELU as alpha * Elu(x / alpha); Celu has fewer data types before version 28.

    Negative alpha, for which Elu takes the wrong branch, needs Exp, Max and Min.
    """
    x, dtype = write.inputs[0], write.type.dtype
    alpha = write.number(write.operation.alpha, dtype)
    if write.operation.alpha > 0:
        return write.node("Mul", write.node("Elu", write.node("Div", x, alpha)), alpha)
    zero, unit = (write.number(number, dtype) for number in (0, 1))
    raised = write.node("Sub", write.node("Exp", write.node("Div", x, alpha)), unit)
    below = write.node("Min", write.node("Mul", raised, alpha), zero)
    return write.node("Add", write.node("Max", x, zero), below)


@exporter("SWIGLU")
def export_swiglu(write: NodeWriter) -> str:
    """Export SWIGLU as Sigmoid and Mul: ONNX Runtime has no kernel for SwiGLU (28)."""
    gate, value = write.inputs
    return write.node("Mul", swish(write, gate, write.operation.alpha), value)


@exporter("SUM")
def export_sum(write: NodeWriter) -> str:
    """Export SUM as Sum, but as Add for integers."""
    if write.type.dtype.is_floating:
        return write.node("Sum", *write.inputs)
    total, *addends = write.inputs
    for name in addends:
        total = write.node("Add", total, name)
    return total


@exporter("NOT_EQUAL")
def export_not_equal(write: NodeWriter) -> str:
    """Export NOT_EQUAL as Equal and Not."""
    return write.node("Not", write.node("Equal", *write.inputs))


@exporter("MOD")
def export_mod(write: NodeWriter) -> str:
    """Export MOD as Mod, with a correction for floored remainders of reals."""
    x, y = write.inputs
    if write.operation.fmod or not write.type.dtype.is_floating:
        return write.node("Mod", x, y, fmod=write.operation.fmod)
    remainder = write.node("Mod", x, y, fmod=True)
    return write.node("Where", _rounds_up(write, remainder, y), write.node("Add", remainder, y), remainder)


def _rounds_up(write: NodeWriter, remainder: str, y: str) -> str:
    zero = write.number(0, write.type.dtype)
    signs = [write.node("Less", name, zero) for name in (remainder, y)]
    return write.node("And", write.node("Xor", *signs), write.node("Not", write.node("Equal", remainder, zero)))


@exporter("FLOOR_DIV")
def export_floor_div(write: NodeWriter) -> str:
    """Export FLOOR_DIV as Div and a correction for results that Div rounds up."""
    x, y = write.inputs
    dtype, quotient = write.type.dtype, write.node("Div", x, y)
    if dtype.is_floating:
        return write.node("Floor", quotient)
    if dtype.value.startswith("u"):
        return quotient
    remainder = write.node("Sub", x, write.node("Mul", quotient, y))
    less = write.node("Sub", quotient, write.number(1, dtype))
    return write.node("Where", _rounds_up(write, remainder, y), less, quotient)


@exporter("BIT_SHIFT")
def export_bit_shift(write: NodeWriter) -> str:
    """Export BIT_SHIFT as BitShift (11), or (28) for signed integers."""
    signed = not write.type.dtype.value.startswith("u")
    direction = write.operation.direction.upper()
    return write.node("BitShift", *write.inputs, opset=28 if signed else 0, direction=direction)
