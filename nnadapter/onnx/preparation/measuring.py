"""What nodes make that measure values: sizes, which are known where types are, though contents are not.

Of a shape that is known in part, a Gather or a Slice may take known sizes alone: the width of a hidden state, say, of
which only the rows are open. What follows from those is then the same in every run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import cast

import numpy as np

from nnadapter.ir.operand import Array
from nnadapter.onnx.model import OnnxModel
from nnadapter.onnx.node import OnnxNode
from partition.graph import Value

_Sizes = Sequence[int | str | None]
_SINCE_INPUTS = 10
"""The version of Slice that reads from where to where."""
_STEP = 3
"""Which of its inputs behind the first."""


def measured(node: OnnxNode, values: Mapping[str, Value], constants: Mapping[str, Array]) -> Array | None:
    """The result of Shape or Size where the shape of the input is known, though its contents are not.

    Args:
        node: any.
        values: types and shapes, by name.
        constants: contents, by name.
    """
    if node.domain or node.contradiction:
        return None
    if node.op_type == "Shape":
        return _of_numbers(_shape(node, values, constants))
    shape = _dimensions(node, values, constants) if node.op_type == "Size" else None
    return None if shape is None or not _are_numbers(shape) else _read_only(prod(cast("Sequence[int]", shape)))


def taken_sizes(
    read: OnnxModel, index: int, values: Mapping[str, Value], constants: Mapping[str, Array]
) -> Array | None:
    """The result of the node at `index` where it takes sizes of a Shape, and none but those that are known.

    Args:
        read: the model.
        index: of any node.
        values: types and shapes, by name.
        constants: contents, by name.
    """
    node = read.nodes[index]
    take = None if node.domain or node.contradiction else _TAKING.get(node.op_type)
    position = read.graph.producer.get(node.inputs[0]) if take is not None else None
    if take is None or position is None:
        return None
    source = read.nodes[position]
    is_shape = source.op_type == "Shape" and not source.domain and not source.contradiction
    sizes = _shape(source, values, constants) if is_shape else None
    return None if sizes is None else take(node, sizes, constants)


def _dimensions(node: OnnxNode, values: Mapping[str, Value], constants: Mapping[str, Array]) -> _Sizes | None:
    """Of what a node measures."""
    name = node.inputs[0]
    return constants[name].shape if name in constants else values[name].shape if name in values else None


def _shape(node: OnnxNode, values: Mapping[str, Value], constants: Mapping[str, Array]) -> _Sizes | None:
    """What a Shape makes."""
    dimensions = _dimensions(node, values, constants)
    start, end = node.attributes.get("start", 0), node.attributes.get("end")
    return None if dimensions is None else dimensions[cast("int", start) : cast("int | None", end)]


def _gathered(node: OnnxNode, sizes: _Sizes, constants: Mapping[str, Array]) -> Array | None:
    indices = constants.get(node.inputs[1])
    if indices is None or any(not -len(sizes) <= index < len(sizes) for index in indices.reshape(-1).tolist()):
        return None
    gathered_sizes = _of_numbers([sizes[index] for index in indices.reshape(-1).tolist()])
    return None if gathered_sizes is None else _read_only(gathered_sizes.reshape(indices.shape))


def _sliced(node: OnnxNode, sizes: _Sizes, constants: Mapping[str, Array]) -> Array | None:
    bound_arrays = [constants.get(name) if name else None for name in node.inputs[1:]]
    if node.since_version < _SINCE_INPUTS or any(array is not None and array.size != 1 for array in bound_arrays):
        return None
    bounds = [None if array is None else int(array.reshape(-1)[0]) for array in (*bound_arrays, None, None)]
    missing = any(name and array is None for name, array in zip(node.inputs[1:], bound_arrays, strict=True))
    step = 1 if bounds[_STEP] is None else bounds[_STEP]
    return None if missing or not step else _of_numbers(sizes[bounds[0] : bounds[1] : step])


_TAKING = {"Gather": _gathered, "Slice": _sliced}


def _of_numbers(sizes: _Sizes | None) -> Array | None:
    return None if sizes is None or not _are_numbers(sizes) else _read_only(np.array(sizes, np.int64))


def _are_numbers(sizes: _Sizes) -> bool:
    return all(isinstance(size, int) for size in sizes)


def _read_only(sizes: int | Array) -> Array:
    array = np.asarray(sizes, np.int64)
    array.flags.writeable = False
    return array
