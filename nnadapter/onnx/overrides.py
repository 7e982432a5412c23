"""Overrides: initializers and free dimensions that a client replaces before a model is planned."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import onnx
from onnx import numpy_helper

from nnadapter.errors import InvalidOptionError
from nnadapter.ir.operand import Array
from nnadapter.onnx.graphs import graphs_of, with_nested
from partition.graph import DTYPE_OF_ELEMENT_TYPE


@dataclass(slots=True)
class Overrides:
    """As ONNX Runtime's `SessionOptions` take them, which do not tell them again."""

    initializers: dict[str, Any] = field(default_factory=dict)
    """By name, a value with `numpy()`."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Of dimensions of inputs, by the name of the dimension."""
    sizes_by_denotation: dict[str, int] = field(default_factory=dict)
    """The same, by what the dimension stands for."""
    files: dict[str, memoryview] = field(default_factory=dict)
    """Contents of files of external data, by the name that the model gives them."""

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self.initializers or self.sizes or self.sizes_by_denotation or self.files)


def override(model: onnx.ModelProto, overrides: Overrides) -> None:
    """Change a model; names that it has not count for nothing, as with ONNX Runtime.

    Raises:
        InvalidOptionError: an initializer has another data type or shape than what is to take its place.
    """
    for initializer in _initializers(model.graph):
        value = overrides.initializers.get(initializer.name)
        if value is not None:
            _replace(initializer, _array(initializer.name, value))
    dimensions = list(_dimensions(model.graph.input))
    sizes = {
        dimension.dim_param: overrides.sizes_by_denotation[dimension.denotation]
        for dimension in dimensions
        if dimension.dim_param and dimension.denotation in overrides.sizes_by_denotation
    } | overrides.sizes
    for dimension in (*dimensions, *_dimensions((*model.graph.output, *model.graph.value_info))):
        _fix(dimension, sizes, overrides.sizes_by_denotation)


def _initializers(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Those of the graph, and of the graphs inside of it."""
    yield from graph.initializer
    for node in with_nested(graph.node):
        for inner in chain.from_iterable(map(graphs_of, node.attribute)):
            yield from inner.initializer


def _array(name: str, value: Any) -> Array:
    try:
        return value.numpy()  # type: ignore[no-any-return]
    except RuntimeError as error:
        raise InvalidOptionError(
            f"what is to take the place of initializer {name!r} cannot be read as an array of numpy's: {error}; put it "
            "into the model"
        ) from error


def _replace(initializer: onnx.TensorProto, array: Array) -> None:
    dtype, shape = DTYPE_OF_ELEMENT_TYPE.get(initializer.data_type), tuple(initializer.dims)
    if (array.dtype.name, array.shape) != (dtype, shape):
        raise InvalidOptionError(
            f"initializer {initializer.name!r} is {dtype}{list(shape)}, and {array.dtype.name}{list(array.shape)} "
            "is to take its place; give the session options an array of its type and shape"
        )
    initializer.CopyFrom(numpy_helper.from_array(array, initializer.name))


def _fix(dimension: Any, sizes: Mapping[str, int], by_denotation: Mapping[str, int]) -> None:
    if dimension.HasField("dim_value"):
        return
    size = sizes.get(dimension.dim_param, by_denotation.get(dimension.denotation))
    if size is not None:
        dimension.dim_value = size


def _dimensions(values: Iterable[onnx.ValueInfoProto]) -> Iterable[Any]:
    for value in values:
        if value.type.HasField("tensor_type"):
            yield from value.type.tensor_type.shape.dim
