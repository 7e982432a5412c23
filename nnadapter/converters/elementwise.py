"""Converters of elementwise ops: arithmetic, comparisons, functions, activations, casts and bits."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from nnadapter.converters.context import ConversionContext
from nnadapter.converters.registry import Converter, converter
from nnadapter.ir.operand import Array, DataType
from nnadapter.ir.schema import AttributeValue
from nnadapter.onnx.model import OnnxNode
from nnadapter.onnx.refusal import Refusal
from nnadapter.onnx.schemas import data_type_name
from partition.verdict import Reason

_PLAIN: Mapping[str, tuple[str, tuple[int, ...]]] = {
    "Abs": ("ABS", (6, 13)),
    "Ceil": ("CEIL", (6, 13)),
    "Cos": ("COS", (7, 22)),
    "Erf": ("ERF", (9, 13)),
    "Exp": ("EXP", (6, 13)),
    "Floor": ("FLOOR", (6, 13)),
    "Identity": ("ASSIGN", (1, 13, 14, 16, 19, 21, 23, 24, 25)),
    "Log": ("LOG", (6, 13)),
    "Mish": ("MISH", (18, 22)),
    "Neg": ("NEG", (6, 13)),
    "Not": ("NOT", (1,)),
    "Reciprocal": ("RECIPROCAL", (6, 13)),
    "Relu": ("RELU", (6, 13, 14)),
    "Round": ("ROUND", (11, 22)),
    "Sigmoid": ("SIGMOID", (6, 13)),
    "Sign": ("SIGN", (9, 13)),
    "Sin": ("SIN", (7, 22)),
    "Softplus": ("SOFTPLUS", (1, 22)),
    "Softsign": ("SOFTSIGN", (1, 22)),
    "Sqrt": ("SQRT", (6, 13)),
    "Tanh": ("TANH", (6, 13)),
}
"""Ops without attributes whose versions differ in data types alone."""

_PARAMETRIC: Mapping[str, tuple[str, tuple[int, ...], Mapping[str, float]]] = {
    "Elu": ("ELU", (6, 22), {"alpha": 1.0}),
    "HardSigmoid": ("HARD_SIGMOID", (6, 22), {"alpha": 0.2, "beta": 0.5}),
    "LeakyRelu": ("LEAKY_RELU", (6, 16), {"alpha": 0.01}),
    # The defaults are those of the ONNX schema, to its last digit.
    "Selu": ("SELU", (6, 22), {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875}),
    "Swish": ("SWISH", (24,), {"alpha": 1.0}),
}
"""Ops with numbers for attributes, of the same name on both sides, and their defaults."""


def _plain(type_: str) -> Converter:
    def convert_plain(context: ConversionContext, node: OnnxNode) -> None:
        context.add(type_, (context.operand(node.input(0)),), outputs=node.outputs)

    return convert_plain


def _parametric(type_: str, defaults: Mapping[str, float]) -> Converter:
    def convert_parametric(context: ConversionContext, node: OnnxNode) -> None:
        attributes = {name: node.number(name, default) for name, default in defaults.items()}
        context.add(type_, (context.operand(node.input(0)),), attributes, node.outputs)

    return convert_parametric


for _activation_op, (_activation_type, _activation_versions) in _PLAIN.items():
    converter(_activation_op, *_activation_versions)(_plain(_activation_type))
for _activation_op, (_activation_type, _activation_versions, _activation_defaults) in _PARAMETRIC.items():
    converter(_activation_op, *_activation_versions)(_parametric(_activation_type, _activation_defaults))


@converter("HardSwish", 14, 22)
def convert_hard_swish(context: ConversionContext, node: OnnxNode) -> None:
    """HardSwish: x * max(0, min(1, x / 6 + 0.5)). Source: ONNX HardSwish-14."""
    context.add("HARD_SWISH", (context.operand(node.input(0)),), {"alpha": 1 / 6, "beta": 0.5}, node.outputs)


@converter("Gelu", 20)
def convert_gelu(context: ConversionContext, node: OnnxNode) -> None:
    """Gelu, exact or by tanh. Source: ONNX Gelu-20."""
    attributes = {"approximate": node.text("approximate", "none")}
    context.add("GELU", (context.operand(node.input(0)),), attributes, node.outputs)


@converter("Cast", 6, 9, 13, 19, 21, 23, 24, 25, 28)
def convert_cast(context: ConversionContext, node: OnnxNode) -> None:
    """Cast. Source: ONNX Cast-19.

    1. `saturate` matters for the float8 types only; `CAST` saturates, so 0 is refused for those.
    2. `round_mode` matters for float8e8m0 only, which is no data type of the adapter IR.
    """
    target = data_type_name(node.integer("to"))
    if target not in DataType.__members__.values():
        raise Refusal(Reason.UNSUPPORTED_TYPE, f"attribute 'to' of Cast is {target}, which no operand can have")
    check_saturation(node, target)
    context.add("CAST", (context.operand(node.input(0)),), {"to": target}, node.outputs)


def check_saturation(node: OnnxNode, target: str) -> None:
    """Raise Refusal if a cast to that data type is to let what is too large overflow."""
    if target.startswith("float8") and not node.integer("saturate", 1):
        raise Refusal(
            Reason.UNSUPPORTED_ATTRIBUTE, f"attribute 'saturate' of {node.op_type} to {target} is 0; expected 1"
        )


@converter("Clip", 6)
def convert_clip_attributes(context: ConversionContext, node: OnnxNode) -> None:
    """Clip with its bounds in attributes, which default to the ends of float32. Source: ONNX Clip-6."""
    attributes = {"min": node.number("min", float("-inf")), "max": node.number("max", float("inf"))}
    context.add("CLIP", (context.operand(node.input(0)),), attributes, node.outputs)


@converter("Clip", 11, 12, 13)
def convert_clip(context: ConversionContext, node: OnnxNode) -> None:
    """Clip with its bounds in optional inputs: CLIP if they are known, MAX and MIN if not. Source: ONNX Clip-13."""
    bounds = [context.is_fixed(name) for name in node.inputs[1:3] if name]
    limits = [context.optional_constant(node, position) for position in (1, 2)] if all(bounds) else []
    if limits and all(map(_is_exact, limits)):
        low, high = (None if limit is None else float(limit.reshape(-1)[0]) for limit in limits)
        attributes = {"min": float("-inf") if low is None else low, "max": float("inf") if high is None else high}
        context.add("CLIP", (context.operand(node.input(0)),), attributes, node.outputs)
        return
    result = context.operand(node.input(0))
    if node.input(1):
        (result,) = context.add(
            "MAX", (result, context.operand(node.input(1))), outputs=() if node.input(2) else node.outputs
        )
    if node.input(2):
        context.add("MIN", (result, context.operand(node.input(2))), outputs=node.outputs)


def _is_exact(limit: Array | None) -> bool:
    """Whether a bound is one number that float64, in which attributes are kept, can hold."""
    if limit is None:
        return True
    return limit.size == 1 and (limit.dtype.kind not in "iu" or abs(int(limit.reshape(-1)[0])) <= 2**53)


@converter("Dropout", 7, 10)
def convert_dropout(context: ConversionContext, node: OnnxNode) -> None:
    """Dropout at inference: a copy; the mask, if asked for, is not filled, so zeros. Source: ONNX Dropout-7, -10."""
    _copy_with_mask(context, node, filled_with=0)


@converter("Dropout", 12, 13, 22)
def convert_dropout_with_mode(context: ConversionContext, node: OnnxNode) -> None:
    """Dropout, refused in training mode: a copy, and a mask of ones if asked for. Source: ONNX Dropout-13."""
    training = context.optional_constant(node, 2)
    if training is not None and training.any():
        raise Refusal(Reason.UNSUPPORTED_ATTRIBUTE, "input 'training_mode' of Dropout is true; expected false")
    _copy_with_mask(context, node, filled_with=1)


def _copy_with_mask(context: ConversionContext, node: OnnxNode, filled_with: int) -> None:
    context.add("ASSIGN", (context.operand(node.input(0)),), outputs=node.outputs[:1])
    if node.output(1):
        mask = context.declared(node.output(1)).dtype
        value = context.add_constant(np.full((), filled_with, np.dtype(mask)))
        context.add("EXPAND", (value,), {"shape": context.dimensions(node.input(0))}, node.outputs[1:2])


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


_FUNCTIONS: Mapping[str, tuple[str, tuple[int, ...], Mapping[str, float]]] = {
    "Acos": ("ACOS", (7, 22), {}),
    "Acosh": ("ACOSH", (9, 22), {}),
    "Asin": ("ASIN", (7, 22), {}),
    "Asinh": ("ASINH", (9, 22), {}),
    "Atan": ("ATAN", (7, 22), {}),
    "Atanh": ("ATANH", (9, 22), {}),
    "Celu": ("CELU", (12, 28), {"alpha": 1.0}),
    "Cosh": ("COSH", (9, 22), {}),
    "IsNaN": ("IS_NAN", (9, 13, 20), {}),
    "Shrink": ("SHRINK", (9,), {"bias": 0.0, "lambd": 0.5}),
    "Sinh": ("SINH", (9, 22), {}),
    "SwiGLU": ("SWIGLU", (28,), {"alpha": 1.0}),
    "Tan": ("TAN", (7, 22), {}),
    "ThresholdedRelu": ("THRESHOLDED_RELU", (10, 22), {"alpha": 1.0}),
}
"""Ops whose versions differ in data types alone, and the defaults of their numbers, of the same name on both sides."""


def _function(type_: str, count: int, defaults: Mapping[str, float]) -> Converter:
    def convert_function(context: ConversionContext, node: OnnxNode) -> None:
        attributes: dict[str, AttributeValue] = {name: node.number(name, value) for name, value in defaults.items()}
        inputs = [context.operand(node.input(position)) for position in range(count)]
        context.add(type_, inputs, attributes, node.outputs)

    return convert_function


for _function_op, (_function_type, _function_versions, _function_defaults) in _FUNCTIONS.items():
    converter(_function_op, *_function_versions)(
        _function(_function_type, 2 if _function_type == "SWIGLU" else 1, _function_defaults)
    )


@converter("IsInf", 10, 20)
def convert_is_inf(context: ConversionContext, node: OnnxNode) -> None:
    """IsInf, of either sign or both. Source: ONNX IsInf-20."""
    signs = ("detect_negative", "detect_positive")
    attributes: dict[str, AttributeValue] = {name: bool(node.integer(name, 1)) for name in signs}
    context.add("IS_INF", (context.operand(node.input(0)),), attributes, node.outputs)


@converter("CastLike", 15, 19, 21, 23, 24, 25)
def convert_cast_like(context: ConversionContext, node: OnnxNode) -> None:
    """CastLike: a cast to the data type of the second input, of which nothing else is read.

    Source: ONNX CastLike-25, with the limits of Cast.
    """
    target = context.type_of(node.input(1)).dtype.value
    check_saturation(node, target)
    context.add("CAST", (context.operand(node.input(0)),), {"to": target}, node.outputs)


_BITWISE: Mapping[str, tuple[str, int]] = {
    "BitwiseAnd": ("BITWISE_AND", 2),
    "BitwiseNot": ("BITWISE_NOT", 1),
    "BitwiseOr": ("BITWISE_OR", 2),
    "BitwiseXor": ("BITWISE_XOR", 2),
}
"""How each is called in the adapter IR, and how many inputs it has."""


def _bitwise(type_: str, count: int) -> Converter:
    def convert_bitwise(context: ConversionContext, node: OnnxNode) -> None:
        inputs = [context.operand(node.input(position)) for position in range(count)]
        context.add(type_, inputs, outputs=node.outputs)

    return convert_bitwise


for _bitwise_op, (_bitwise_type, _count) in _BITWISE.items():
    converter(_bitwise_op, 18)(_bitwise(_bitwise_type, _count))


@converter("BitShift", 11, 28)
def convert_bit_shift(context: ConversionContext, node: OnnxNode) -> None:
    """BitShift; version 28 adds signed integers, and says what a shift beyond the bits gives.

    Source: ONNX BitShift-28.
    """
    direction = node.text("direction", "")
    if direction not in ("LEFT", "RIGHT"):
        raise Refusal(
            Reason.INVALID_NODE, f"attribute 'direction' of BitShift is {direction!r}; expected 'LEFT' or 'RIGHT'"
        )
    inputs = (context.operand(node.input(0)), context.operand(node.input(1)))
    context.add("BIT_SHIFT", inputs, {"direction": direction.lower()}, node.outputs)


@converter("BitCast", 26)
def convert_bit_cast(context: ConversionContext, node: OnnxNode) -> None:
    """BitCast: the same bits as another data type of equal width. Source: ONNX BitCast-26."""
    target = data_type_name(node.integer("to"))
    if target not in DataType.__members__.values():
        raise Refusal(Reason.UNSUPPORTED_TYPE, f"attribute 'to' of BitCast is {target}, which no operand can have")
    context.add("BIT_CAST", (context.operand(node.input(0)),), {"to": target}, node.outputs)
