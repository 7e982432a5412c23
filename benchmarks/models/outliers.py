"""Planted channels with a thousand times the range of the others, which do not change the results of a network."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

_HOMOGENEOUS = ("Relu", "LeakyRelu", "MaxPool", "AveragePool", "GlobalAveragePool", "Identity")
"""Operators that pass a positive factor of a channel."""


def with_outliers(model: onnx.ModelProto, layer: str, channels: int = 3, factor: float = 1000.0) -> onnx.ModelProto:
    """Return a model in which some channels of a layer are scaled up, and down in the weights that read them.

    With one scale per tensor, int8 then rounds all other channels of the layer to 0.

    Args:
        model: with constant weights.
        layer: name of a convolution whose only reader is another one, after operators such as Relu.
        channels: number of scaled channels.
        factor: the factor of these channels.

    Raises:
        ValueError: there is no such layer, or another operator reads it.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    node = next((node for node in copy.graph.node if node.name == layer and node.op_type == "Conv"), None)
    if node is None:
        raise ValueError(f"there is no convolution {layer!r}")
    reader = _reader(copy, node)
    if reader.op_type == "BatchNormalization":
        scaled, reader = reader.input[1:3], _reader(copy, reader)
    else:
        scaled = node.input[1:]
    if reader.op_type != "Conv":
        raise ValueError(f"{reader.op_type} reads {layer!r}, expected a convolution")
    for name in scaled:
        _scale(copy, name, 0, channels, factor)
    _scale(copy, reader.input[1], 1, channels, 1 / factor)
    return copy


def _scale(model: onnx.ModelProto, name: str, axis: int, count: int, factor: float) -> None:
    """Multiply the first positions along an axis of a constant."""
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == name)
    array = numpy_helper.to_array(tensor).copy()
    array.swapaxes(0, axis)[:count] *= np.float32(factor)
    tensor.CopyFrom(numpy_helper.from_array(array, name))


def _reader(model: onnx.ModelProto, node: onnx.NodeProto) -> onnx.NodeProto:
    """Return the only node that reads a node's output, after operators that pass a factor."""
    readers = [other for other in model.graph.node if node.output[0] in other.input]
    if len(readers) != 1:
        raise ValueError(f"{len(readers)} nodes read {node.name!r}, expected one")
    return _reader(model, readers[0]) if readers[0].op_type in _HOMOGENEOUS else readers[0]
