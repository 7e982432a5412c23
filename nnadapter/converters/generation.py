"""Ops that make tensors from shapes and single numbers.

Preparation folds most of them. What is converted here is what it leaves: results that are too large to be folded, and
EyeLike of a tensor that is known only when the model runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil, isfinite, prod

import numpy as np

from nnadapter.converters.axes import required_integers
from nnadapter.converters.context import ConversionContext
from nnadapter.converters.registry import converter
from nnadapter.ir.operand import Array, DataType
from nnadapter.ir.tracing import current, greatest
from nnadapter.onnx.node import OnnxNode
from nnadapter.onnx.refusal import Refusal
from nnadapter.onnx.schemas import data_type_name
from partition.verdict import Reason

_READERS: Mapping[str, Callable[[OnnxNode], Array]] = {
    "value_float": lambda node: np.array(node.number("value_float"), np.float32),
    "value_floats": lambda node: np.array(node.numbers("value_floats"), np.float32),
    "value_int": lambda node: np.array(node.integer("value_int"), np.int64),
    "value_ints": lambda node: np.array(node.integers("value_ints"), np.int64),
}


@converter("Constant", 1, 9, 11, 12, 13, 19, 21, 23, 24, 25)
def convert_constant(context: ConversionContext, node: OnnxNode) -> None:
    """Constant: a constant operand; strings and sparse tensors are refused. Source: ONNX Constant-25."""
    if len(node.attributes) != 1:
        raise Refusal(Reason.INVALID_NODE, f"Constant has attributes {list(node.attributes)}; expected exactly one")
    ((name, value),) = node.attributes.items()
    if name in _READERS:
        add_result(context, node, _READERS[name](node))
    elif name == "value" and isinstance(value, np.ndarray):
        add_result(context, node, value)
    else:
        raise Refusal(Reason.UNSUPPORTED_TYPE, f"attribute {name!r} of Constant is no dense tensor of numbers")


def add_result(context: ConversionContext, node: OnnxNode, value: Array) -> None:
    """Let a constant be the first output of the node.

    Raises:
        Refusal: its data type is none that an operand can have.
    """
    context.add("ASSIGN", (_constant(context, node, value),), outputs=node.outputs[:1])


def _constant(context: ConversionContext, node: OnnxNode, value: Array) -> int:
    if value.dtype.name not in DataType.__members__.values():
        raise Refusal(Reason.UNSUPPORTED_TYPE, f"{node.op_type} makes {value.dtype.name}, which no operand can have")
    return context.add_constant(value)


@converter("Shape", 1, 13, 15, 19, 21, 23, 24, 25)
def convert_shape(context: ConversionContext, node: OnnxNode) -> None:
    """Shape of a value of known dimensions, or of some of its axes since version 15. Source: ONNX Shape-25."""
    dimensions = context.dimensions(node.input(0))
    ends = node.integer("end", len(dimensions))
    taken = dimensions[node.integer("start", 0) : ends]
    add_result(context, node, np.array([int(size) for size in taken], np.int64))


@converter("Size", 1, 13, 19, 21, 23, 24, 25)
def convert_size(context: ConversionContext, node: OnnxNode) -> None:
    """Size of a value of known dimensions. Source: ONNX Size-25."""
    add_result(context, node, np.array(int(prod(context.dimensions(node.input(0)))), np.int64))


@converter("ConstantOfShape", 9, 20, 21, 23, 24, 25)
def convert_constant_of_shape(context: ConversionContext, node: OnnxNode) -> None:
    """ConstantOfShape with a known shape; float32 zeros where no value is given. Source: ONNX ConstantOfShape-25."""
    shape = required_integers(context, node, 0)
    value = node.attributes.get("value", np.zeros(1, np.float32))
    if not isinstance(value, np.ndarray) or value.size != 1:
        raise Refusal(Reason.INVALID_NODE, "attribute 'value' of ConstantOfShape is not a tensor of one element")
    context.add("FILL", (_constant(context, node, value.reshape(())),), {"shape": shape}, node.outputs)


@converter("EyeLike", 9, 22)
def convert_eye_like(context: ConversionContext, node: OnnxNode) -> None:
    """EyeLike; without `dtype` the result has the input's. Source: ONNX EyeLike-22."""
    source = context.operand(node.input(0))
    target = context.type_of(source).dtype.value
    if "dtype" in node.attributes:
        target = data_type_name(node.integer("dtype"))
    if target not in DataType.__members__.values():
        raise Refusal(Reason.UNSUPPORTED_TYPE, f"attribute 'dtype' of EyeLike is {target}, which no operand can have")
    context.add("EYE_LIKE", (source,), {"to": target, "k": node.integer("k", 0)}, node.outputs)


@converter("Range", 11, 27)
def convert_range(context: ConversionContext, node: OnnxNode) -> None:
    """Range between known numbers, computed when the model runs.

    1. `stash_type` of version 27 says how float16 and bfloat16 accumulate: nothing accumulates here, each element is
       made from its index.

    Source: ONNX Range-27.
    """
    delta = _single(context, node, 2)
    if delta == 0:
        raise Refusal(Reason.INVALID_NODE, "input 2 of Range, the step, is 0; expected another number")
    if delta.dtype.kind in "iu":
        start = _operand_of_one(context, node.input(0))
        count = -(-(_integer(context, node, 1) - _integer(context, node, 0)) // int(delta))
    else:
        first, limit = _single(context, node, 0), context.real(node.input(1))
        start = context.add_constant(first)
        if limit is None or not isfinite(current(limit)):
            raise Refusal(Reason.INVALID_NODE, "input 1 of Range is no single finite number")
        steps = (limit - float(first)) / float(delta)
        count = ceil(steps) if isfinite(current(steps)) else -1
    context.add("RANGE", (start, context.add_constant(delta)), {"count": greatest(count, 0)}, node.outputs)


def _integer(context: ConversionContext, node: OnnxNode, position: int) -> int:
    """An integer, traced where it follows from shapes."""
    values = required_integers(context, node, position)
    if len(values) != 1:
        raise Refusal(Reason.INVALID_NODE, f"input {position} of Range has {len(values)} elements; expected one")
    return values[0]


def _operand_of_one(context: ConversionContext, name: str) -> int:
    """The operand of a single number, of no dimensions."""
    operand = context.operand(name)
    if not context.type_of(operand).dimensions:
        return operand
    return context.add("RESHAPE", (operand,), {"shape": ()})[0]


def _single(context: ConversionContext, node: OnnxNode, position: int) -> Array:
    value = context.constant(node.input(position))
    if value.size != 1 or not np.isfinite(value.astype(np.float64)).all():
        raise Refusal(Reason.INVALID_NODE, f"input {position} of Range is no single finite number")
    return value.reshape(())
