"""Elementwise operations of one input: functions, activations, copies."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nnadapter.converters.context import ConversionContext
from nnadapter.converters.registry import Converter, converter
from nnadapter.ir.operand import Array, DataType
from nnadapter.onnx.node import OnnxNode
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
