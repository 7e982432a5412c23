"""Sparse initializers and constants as ordinary ones: what ONNX Runtime makes of them when it loads a model."""

from __future__ import annotations

from math import prod

import numpy as np
import onnx
from onnx import NodeProto, SparseTensorProto, helper, numpy_helper

from nnadapter import limits
from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import Array
from nnadapter.onnx.building import copied


def with_dense(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with what is sparse in its graph as ordinary; the same object if nothing is.

    1. A sparse initializer is an initializer.
    2. A Constant with a sparse value has an ordinary one, except where the model's output is that sparse tensor.

    Raises:
        InvalidModelError: one contradicts itself, or they have no room.
    """
    outputs = {value.name for value in model.graph.output if value.type.HasField("sparse_tensor_type")}
    nodes = enumerate(model.graph.node)
    positions = [at for at, node in nodes if _makes_sparse(node) and node.output[0] not in outputs]
    if not model.graph.sparse_initializer and not positions:
        return model
    dense = copied(model)
    del dense.graph.sparse_initializer[:]
    room = limits.SPARSE_BYTES
    for sparse in model.graph.sparse_initializer:
        array = _dense(sparse, sparse.values.name, room)
        room -= array.nbytes
        dense.graph.initializer.append(numpy_helper.from_array(array, sparse.values.name))
    for position in positions:
        node = dense.graph.node[position]
        array = _dense(node.attribute[0].sparse_tensor, node.output[0], room)
        room -= array.nbytes
        node.attribute[0].CopyFrom(helper.make_attribute("value", numpy_helper.from_array(array)))
    return dense


def _makes_sparse(node: NodeProto) -> bool:
    return (
        node.op_type == "Constant"
        and not node.domain
        and len(node.output) == 1
        and [attribute.name for attribute in node.attribute] == ["sparse_value"]
    )


def _dense(sparse: SparseTensorProto, name: str, room: int) -> Array:
    """Source: onnx.proto, `SparseTensorProto`: indices count elements, or have a row of numbers for each value."""
    dimensions = tuple(sparse.dims)
    try:
        values, indices = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
    except (TypeError, ValueError, KeyError) as error:
        raise _wrong(name, f"cannot be read ({error})") from error
    if min(dimensions, default=0) < 0 or values.ndim != 1 or indices.dtype != np.int64:
        raise _wrong(name, f"has values of the shape {values.shape} and {indices.dtype} indices for {dimensions}")
    nbytes = prod(dimensions) * values.itemsize
    if nbytes > room:
        raise _wrong(name, f"takes {nbytes} bytes as an ordinary one, and there is room for {room}")
    flat = np.full(prod(dimensions), "", object) if values.dtype == object else np.zeros(prod(dimensions), values.dtype)
    flat[_places(name, indices, values.size, dimensions)] = values
    return flat.reshape(dimensions)


def _places(name: str, indices: Array, count: int, dimensions: tuple[int, ...]) -> Array:
    """The number of each value's element; rows of coordinates, as COO has them, become such numbers."""
    if indices.shape not in ((count,), (count, len(dimensions))):
        raise _wrong(name, f"has {count} values, and indices of the shape {indices.shape} for {dimensions}")
    limits = np.array(dimensions if indices.ndim == 2 else prod(dimensions), np.int64)
    if (indices < 0).any() or (indices >= limits).any():
        raise _wrong(name, f"has indices beyond its shape {dimensions}")
    steps = np.array([prod(dimensions[at + 1 :]) for at in range(len(dimensions))], np.int64)
    return indices @ steps if indices.ndim == 2 else indices


def _wrong(name: str, problem: str) -> InvalidModelError:
    return InvalidModelError(f"sparse tensor {name!r} {problem}; export the model without sparse tensors")
