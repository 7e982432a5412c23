"""What ONNX says of values, and the same as the partitioner has it: types and shapes, read and written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import onnx
from onnx import TensorProto, TypeProto, ValueInfoProto

from nnadapter.ir.operand import Array, DataType, OperandType, dtype_name
from partition.dtypes import DTYPE_OF_ELEMENT_TYPE, ELEMENT_TYPE_OF_DTYPE, ITEMSIZE_OF_DTYPE
from partition.graph import Value

_OPERAND_TYPES = frozenset(map(str, DataType))
_UNTYPED = "?"
"""Stands for the element type of a container that does not tell it."""


def value_of(info: ValueInfoProto) -> Value:
    """Return what `info` tells of its value; a dimension below 0 counts as unknown.

    Source: ONNX IR specification, "Types" and "Static tensor shapes".
    """
    return value_of_type(info.name, info.type)


def values_of(infos: Iterable[ValueInfoProto]) -> dict[str, Value]:
    """Return what `infos` tell of their values, by name; of those of one name, what the last one tells.

    A model has few types beside its values, and reading one costs more than knowing it again.
    """
    values_by_type: dict[bytes, Value] = {}
    values_by_name = {}
    for info in infos:
        name, type_proto = info.name, info.type
        written = type_proto.SerializeToString()
        like = values_by_type.get(written)
        if like is None:
            like = values_by_type[written] = value_of_type(name, type_proto)
        values_by_name[name] = Value(name, like.dtype, like.shape, like.itemsize)
    return values_by_name


def constant_value(name: str, array: Array) -> Value:
    """What is known of a value whose contents are known."""
    if array.dtype == object:
        return Value(name, "string", array.shape)
    dtype = dtype_name(array.dtype)
    return Value(name, dtype, array.shape, ITEMSIZE_OF_DTYPE[dtype])


def operand_type(value: Value) -> OperandType | None:
    """The type of an operand that is this value; None where none is, or the shape is not known beforehand."""
    dimensions, dtype = value.static_shape, value.dtype or ""
    return OperandType(DataType(dtype), dimensions) if dimensions is not None and dtype in _OPERAND_TYPES else None


def value_of_type(name: str, type_proto: TypeProto) -> Value:
    """Return what a type tells of the value `name`. See `value_of`."""
    if type_proto.HasField("tensor_type"):  # nearly always
        tensor = type_proto.tensor_type
        dtype = DTYPE_OF_ELEMENT_TYPE.get(tensor.elem_type)
        dimensions = tuple(map(_dimension, tensor.shape.dim)) if tensor.HasField("shape") else None
        return Value(name, dtype, dimensions, ITEMSIZE_OF_DTYPE.get(dtype or "", 0))
    dtype = dtype_of(type_proto)
    kind = type_proto.WhichOneof("value")
    shaped = kind == "sparse_tensor_type" and type_proto.sparse_tensor_type.HasField("shape")
    shape = tuple(map(_dimension, type_proto.sparse_tensor_type.shape.dim)) if shaped else None
    return Value(name, dtype, shape, ITEMSIZE_OF_DTYPE.get(dtype or "", 0))


def _dimension(dimension: Any) -> int | str | None:
    if dimension.HasField("dim_value"):
        size: int = dimension.dim_value
        return size if size >= 0 else None
    return str(dimension.dim_param) or None


def dtype_of(type_proto: TypeProto) -> str | None:
    """Return the data type's name, such as `float32`, `sequence(float32)` or `map(int64, float32)`; None if untold."""
    match type_proto.WhichOneof("value"):
        case "tensor_type":
            return DTYPE_OF_ELEMENT_TYPE.get(type_proto.tensor_type.elem_type)
        case "sparse_tensor_type":
            return f"sparse({DTYPE_OF_ELEMENT_TYPE.get(type_proto.sparse_tensor_type.elem_type, _UNTYPED)})"
        case "sequence_type":
            return f"sequence({dtype_of(type_proto.sequence_type.elem_type) or _UNTYPED})"
        case "optional_type":
            return f"optional({dtype_of(type_proto.optional_type.elem_type) or _UNTYPED})"
        case "map_type":
            key = DTYPE_OF_ELEMENT_TYPE.get(type_proto.map_type.key_type, _UNTYPED)
            return f"map({key}, {dtype_of(type_proto.map_type.value_type) or _UNTYPED})"
        case "opaque_type":
            return f"opaque({type_proto.opaque_type.domain}.{type_proto.opaque_type.name})"
        case _:
            return None


def type_of(value: Value) -> TypeProto | None:
    """Return the type that `value` tells, or None where it tells none."""
    kind, _, arguments = (value.dtype or "").partition("(")
    if value.dtype is None or _UNTYPED in value.dtype or kind == "opaque":
        return None
    if kind == "sparse":
        return onnx.helper.make_sparse_tensor_type_proto(ELEMENT_TYPE_OF_DTYPE[arguments[:-1]], value.shape)
    if kind in ("sequence", "optional"):
        inner = type_of(Value("", arguments[:-1]))
        make = onnx.helper.make_sequence_type_proto if kind == "sequence" else onnx.helper.make_optional_type_proto
        return None if inner is None else make(inner)
    if kind == "map":
        key, _, inner_name = arguments[:-1].partition(", ")
        inner = type_of(Value("", inner_name))
        return None if inner is None else onnx.helper.make_map_type_proto(ELEMENT_TYPE_OF_DTYPE[key], inner)
    return onnx.helper.make_tensor_type_proto(ELEMENT_TYPE_OF_DTYPE[value.dtype], value.shape)


def infos_of(values: Iterable[Value]) -> dict[str, ValueInfoProto]:
    """Return what is known of values in ONNX's form, by name; values of unknown type are left out."""
    types = ((value.name, type_of(value)) for value in values)
    return {name: ValueInfoProto(name=name, type=type_) for name, type_ in types if type_ is not None}


def dense_type(tensor: TensorProto) -> TypeProto:
    """Return the type of an initializer."""
    type_proto: TypeProto = onnx.helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
    return type_proto


def sparse_type(sparse: onnx.SparseTensorProto) -> TypeProto:
    """Return the type of a sparse initializer."""
    type_proto: TypeProto = onnx.helper.make_sparse_tensor_type_proto(sparse.values.data_type, list(sparse.dims))
    return type_proto
