"""Converters of ops that move, join, split, pad or generate elements.

Preparation folds most generated tensors; too large ones, and EyeLike of run-time values, are converted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from math import ceil, isfinite, prod

import numpy as np

from nnadapter.converters.context import ConversionContext, data_type_attribute, invalid, normalize_axes, normalize_axis
from nnadapter.converters.registry import NodeWriter, OnnxNode, Reason, Refusal, converter, exporter
from nnadapter.ir.operand import Array, DataType
from nnadapter.ir.symbolic_numbers import size_hint, symbolic_max


@converter("Reshape", 5, 13, 14, 19, 21, 23, 24, 25)
def convert_reshape(context: ConversionContext, node: OnnxNode) -> None:
    """Convert Reshape, with a constant shape, to RESHAPE."""
    shape = context.required_integers(node, 1)
    dimensions = context.dimensions(node.input(0))
    _reshape(context, node, resolve_shape(dimensions, shape, allowzero=bool(node.integer("allowzero", 0))))


def resolve_shape(dimensions: Sequence[int], shape: Sequence[int], *, allowzero: bool) -> tuple[int, ...]:
    """Resolve a Reshape: 0 copies a dimension unless `allowzero`, -1 is inferred. Raises Refusal."""
    resolved = [
        dimensions[axis] if size == 0 and not allowzero and axis < len(dimensions) else size
        for axis, size in enumerate(shape)
    ]
    stated_elements = prod(size for size in resolved if size != -1)
    size = prod(dimensions)
    if resolved.count(-1) == 1 and stated_elements and size % stated_elements == 0:
        resolved[resolved.index(-1)] = size // stated_elements
    copies_nothing = not allowzero and any(extra_size == 0 for extra_size in shape[len(dimensions) :])
    if copies_nothing or any(value < 0 for value in resolved) or prod(resolved) != size:
        raise invalid(f"Reshape of {list(dimensions)} to {list(shape)}; expected the same number of elements")
    return tuple(resolved)


def _reshape(context: ConversionContext, node: OnnxNode, shape: tuple[int, ...]) -> None:
    context.add_for(node, "RESHAPE", {"shape": shape})


@converter("Flatten", 1, 9, 11, 13, 21, 23, 24, 25)
def convert_flatten(context: ConversionContext, node: OnnxNode) -> None:
    """Convert Flatten to RESHAPE."""
    dimensions = context.dimensions(node.input(0))
    axis, rank = node.integer("axis", 1), len(dimensions)
    axis = rank if axis == rank else normalize_axis(node, axis, rank)
    _reshape(context, node, (prod(dimensions[:axis]), prod(dimensions[axis:])))


@converter("Squeeze", 1, 11, 13, 21, 23, 24, 25)
def convert_squeeze(context: ConversionContext, node: OnnxNode) -> None:
    """Convert Squeeze, with constant axes, to RESHAPE."""
    axes = context.attribute_or_input(node, "axes", 1)
    dimensions = context.dimensions(node.input(0))
    if axes is None:
        removed_axes = tuple(axis for axis, size in enumerate(dimensions) if size == 1)
    else:
        removed_axes = normalize_axes(node, axes, len(dimensions))
    wide = [axis for axis in removed_axes if dimensions[axis] != 1]
    if wide:
        raise invalid(f"axes {wide} of Squeeze on shape {list(dimensions)} do not have size 1")
    _reshape(context, node, tuple(size for axis, size in enumerate(dimensions) if axis not in removed_axes))


@converter("Unsqueeze", 1, 11, 13, 21, 23, 24, 25)
def convert_unsqueeze(context: ConversionContext, node: OnnxNode) -> None:
    """Convert Unsqueeze, with constant axes, to RESHAPE."""
    axes = context.attribute_or_input(node, "axes", 1)
    if axes is None:
        raise invalid("Unsqueeze lacks 'axes'; expected a list of integers")
    dimensions = context.dimensions(node.input(0))
    rank = len(dimensions) + len(axes)
    added_axes = normalize_axes(node, axes, rank)
    input_sizes = iter(dimensions)
    _reshape(context, node, tuple(1 if axis in added_axes else next(input_sizes) for axis in range(rank)))


@converter("Transpose", 1, 13, 21, 23, 24, 25)
def convert_transpose(context: ConversionContext, node: OnnxNode) -> None:
    """Convert Transpose to TRANSPOSE."""
    perm = node.integers("perm")
    context.add_for(node, "TRANSPOSE", {"perm": tuple(reversed(range(context.rank(node)))) if perm is None else perm})


@converter("Expand", 8, 13)
def convert_expand(context: ConversionContext, node: OnnxNode) -> None:
    """Convert Expand, with a constant shape, to EXPAND."""
    dimensions, shape = context.dimensions(node.input(0)), context.required_integers(node, 1)
    pairs = list(zip_longest(reversed(dimensions), reversed(shape), fillvalue=1))
    result = tuple(reversed([right if left == 1 else left for left, right in pairs]))
    context.add_for(node, "EXPAND", {"shape": result})


@converter("SpaceToDepth", 1, 13, 28)
def convert_space_to_depth(context: ConversionContext, node: OnnxNode) -> None:
    """Convert SpaceToDepth to SPACE_TO_DEPTH; mode CRD adds a TRANSPOSE."""
    mode, block = node.text("mode", "DCR"), node.integer("blocksize")
    if mode == "DCR":
        context.add_for(node, "SPACE_TO_DEPTH", {"block_size": block})
        return
    if mode != "CRD":
        raise invalid(f"attribute 'mode' of SpaceToDepth is {mode!r}; expected 'DCR' or 'CRD'")
    result = context.apply("SPACE_TO_DEPTH", context.operand(node.input(0)), block_size=block)
    batch, channels, height, width = context.type_of(result).dimensions
    by_block = context.apply("RESHAPE", result, shape=(batch, block * block, channels // block**2, height, width))
    by_channel = context.apply("TRANSPOSE", by_block, perm=(0, 2, 1, 3, 4))
    context.apply("RESHAPE", by_channel, outputs=node.outputs, shape=(batch, channels, height, width))


@converter("Concat", 4, 11, 13)
def convert_concat(context: ConversionContext, node: OnnxNode) -> None:
    """Convert Concat to CONCAT, without empty inputs."""
    axis = context.axis(node)
    parts = parts_with_elements(context, node.inputs, axis) or node.inputs
    context.apply("CONCAT", *map(context.operand, parts), outputs=node.outputs, axis=axis)


def parts_with_elements(context: ConversionContext, names: Sequence[str], axis: int) -> list[str]:
    """Return inputs that are not empty along the axis."""
    return [name for name in names if context.dimensions(name)[axis] != 0]


@converter("Split", 2, 11, 13, 18)
def convert_split(context: ConversionContext, node: OnnxNode) -> None:
    """Convert Split, with constant sizes or `num_outputs`, to SPLIT."""
    axis, outputs = context.axis(node, 0), len(node.outputs)
    size = context.dimensions(node.input(0))[axis]
    sizes, count = context.attribute_or_input(node, "split", 1), node.integer("num_outputs", outputs)
    if count < 1:
        raise invalid(f"attribute 'num_outputs' of Split is {count}; expected 1 or more")
    if sizes is None:
        if size % count and node.since_version < 18:
            raise invalid(f"Split cuts {size} elements into {count} equal parts; expected a divisor of {size}")
        part = -(-size // count)
        sizes = (part,) * (count - 1) + (size - part * (count - 1),)
    if len(sizes) != outputs:
        raise invalid(f"Split has sizes {list(sizes)} for {outputs} outputs; expected one size for each output")
    context.add_for(node, "SPLIT", {"axis": axis, "split": sizes})


_READERS: Mapping[str, Callable[[OnnxNode], Array]] = {
    "value_float": lambda node: np.array(node.number("value_float"), np.float32),
    "value_floats": lambda node: np.array(node.numbers("value_floats"), np.float32),
    "value_int": lambda node: np.array(node.integer("value_int"), np.int64),
    "value_ints": lambda node: np.array(node.integers("value_ints"), np.int64),
}


@converter("Constant", 1, 9, 11, 12, 13, 19, 21, 23, 24, 25)
def convert_constant(context: ConversionContext, node: OnnxNode) -> None:
    """Convert Constant to a constant; strings and sparse tensors are refused."""
    if len(node.attributes) != 1:
        raise invalid(f"Constant has attributes {list(node.attributes)}; expected exactly one")
    ((name, value),) = node.attributes.items()
    if name in _READERS:
        add_result(context, node, _READERS[name](node))
    elif name == "value" and isinstance(value, np.ndarray):
        add_result(context, node, value)
    else:
        raise Refusal(Reason.UNSUPPORTED_TYPE, f"attribute {name!r} of Constant is not a dense tensor of numbers")


def add_result(context: ConversionContext, node: OnnxNode, value: Array) -> None:
    """Make a constant the node's first output, or raise Refusal."""
    context.apply("ASSIGN", _constant(context, node, value), outputs=node.outputs[:1])


def _constant(context: ConversionContext, node: OnnxNode, value: Array) -> int:
    if value.dtype.name not in DataType.__members__.values():
        raise Refusal(Reason.UNSUPPORTED_TYPE, f"{node.op_type} returns {value.dtype.name}, which the adapter IR lacks")
    return context.add_constant(value)


@converter("Shape", 1, 13, 15, 19, 21, 23, 24, 25)
def convert_shape(context: ConversionContext, node: OnnxNode) -> None:
    """Convert Shape to a constant."""
    dimensions = context.dimensions(node.input(0))
    sizes = dimensions[node.integer("start", 0) : node.integer("end", len(dimensions))]
    add_result(context, node, np.array([int(size) for size in sizes], np.int64))


@converter("Size", 1, 13, 19, 21, 23, 24, 25)
def convert_size(context: ConversionContext, node: OnnxNode) -> None:
    """Convert Size to a constant."""
    add_result(context, node, np.array(int(prod(context.dimensions(node.input(0)))), np.int64))


@converter("ConstantOfShape", 9, 20, 21, 23, 24, 25)
def convert_constant_of_shape(context: ConversionContext, node: OnnxNode) -> None:
    """Convert ConstantOfShape, with a known shape, to FILL."""
    shape = context.required_integers(node, 0)
    value = node.attributes.get("value", np.zeros(1, np.float32))
    if not isinstance(value, np.ndarray) or value.size != 1:
        raise invalid("attribute 'value' of ConstantOfShape is not a tensor of one element")
    context.apply("FILL", _constant(context, node, value.reshape(())), outputs=node.outputs, shape=shape)


@converter("EyeLike", 9, 22)
def convert_eye_like(context: ConversionContext, node: OnnxNode) -> None:
    """Convert EyeLike to EYE_LIKE."""
    source = context.operand(node.input(0))
    target = context.type_of(source).dtype.value
    if "dtype" in node.attributes:
        target = data_type_attribute(node, "dtype")
    context.apply("EYE_LIKE", source, outputs=node.outputs, to=target, k=node.integer("k", 0))


@converter("Range", 11, 27)
def convert_range(context: ConversionContext, node: OnnxNode) -> None:
    """Convert Range, with known bounds, to RANGE.

    `stash_type` (27) is irrelevant: each element follows from its index.
    """
    delta = _single(context, node, 2)
    if delta == 0:
        raise invalid("input 2 of Range, the step, is 0; expected a nonzero number")
    if delta.dtype.kind in "iu":
        start = _operand_of_one(context, node.input(0))
        count = -(-(context.single_integer(node, 1) - context.single_integer(node, 0)) // int(delta))
    else:
        first, limit = _single(context, node, 0), context.real(node.input(1))
        start = context.add_constant(first)
        if limit is None or not isfinite(size_hint(limit)):
            raise invalid("input 1 of Range is not a single finite number")
        steps = (limit - float(first)) / float(delta)
        count = ceil(steps) if isfinite(size_hint(steps)) else -1
    context.apply("RANGE", start, context.add_constant(delta), outputs=node.outputs, count=symbolic_max(count, 0))


def _operand_of_one(context: ConversionContext, name: str) -> int:
    operand = context.operand(name)
    if not context.type_of(operand).dimensions:
        return operand
    return context.apply("RESHAPE", operand, shape=())


def _single(context: ConversionContext, node: OnnxNode, position: int) -> Array:
    value = context.constant(node.input(position))
    if value.size != 1 or not np.isfinite(value.astype(np.float64)).all():
        raise invalid(f"input {position} of Range is not a single finite number")
    return value.reshape(())


@exporter("RANGE")
def export_range(write: NodeWriter) -> str:
    """Export RANGE as start + index * delta, because Range accumulates rounding errors."""
    start, delta = write.inputs
    limits = [write.number(limit, DataType.INT64) for limit in (0, write.operation.count, 1)]
    index = write.cast(write.node("Range", *limits), write.type.dtype)
    return write.node("Add", start, write.node("Mul", index, delta))


@exporter("RESHAPE")
def export_reshape(write: NodeWriter) -> str:
    """Export RESHAPE as Reshape."""
    shape = write.operation.shape
    return write.node("Reshape", write.inputs[0], write.integers(*shape), allowzero=1 if 0 in shape else None)


@exporter("SPLIT")
def export_split(write: NodeWriter) -> Sequence[str]:
    """Export SPLIT as Split."""
    sizes = write.integers(*write.operation.split)
    return write.nodes("Split", (write.inputs[0], sizes), len(write.operation.outputs), axis=write.operation.axis)
