"""Attributes as plain Python values: the edge to protobuf, which nothing beyond it crosses."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx
import onnx.helper
import onnx.numpy_helper


def value_of_attribute(attribute: onnx.AttributeProto) -> object:
    """Return what an attribute holds: int, float, str, tuples of these, arrays for tensors; a graph as it is."""
    read = _READERS.get(attribute.type)
    return read(attribute) if read else onnx.helper.get_attribute_value(attribute)


_READERS: Mapping[int, Callable[[onnx.AttributeProto], object]] = {
    onnx.AttributeProto.INT: lambda attribute: int(attribute.i),
    onnx.AttributeProto.FLOAT: lambda attribute: float(attribute.f),
    onnx.AttributeProto.STRING: lambda attribute: attribute.s.decode("utf-8", "replace"),
    onnx.AttributeProto.INTS: lambda attribute: tuple(attribute.ints),
    onnx.AttributeProto.FLOATS: lambda attribute: tuple(attribute.floats),
    onnx.AttributeProto.STRINGS: lambda attribute: tuple(item.decode("utf-8", "replace") for item in attribute.strings),
    onnx.AttributeProto.TENSOR: lambda attribute: onnx.numpy_helper.to_array(attribute.t),
    onnx.AttributeProto.TENSORS: lambda attribute: tuple(map(onnx.numpy_helper.to_array, attribute.tensors)),
}
