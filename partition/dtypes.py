"""Element types: ONNX's numbers, numpy's and ml_dtypes' names, and sizes, in one table."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_TABLE = (
    (1, "float32", 4),
    (2, "uint8", 1),
    (3, "int8", 1),
    (4, "uint16", 2),
    (5, "int16", 2),
    (6, "int32", 4),
    (7, "int64", 8),
    (8, "string", 0),
    (9, "bool", 1),
    (10, "float16", 2),
    (11, "float64", 8),
    (12, "uint32", 4),
    (13, "uint64", 8),
    (14, "complex64", 8),
    (15, "complex128", 16),
    (16, "bfloat16", 2),
    (17, "float8_e4m3fn", 1),
    (18, "float8_e4m3fnuz", 1),
    (19, "float8_e5m2", 1),
    (20, "float8_e5m2fnuz", 1),
    (21, "uint4", 0.5),
    (22, "int4", 0.5),
    (23, "float4_e2m1fn", 0.5),
    (24, "float8_e8m0fnu", 1),
    (25, "uint2", 0.25),
    (26, "int2", 0.25),
    (27, "float6_e2m3fn", 0.75),
    (28, "float6_e3m2fn", 0.75),
)
"""Number in `TensorProto.DataType`, name, bytes of one element when packed; strings have no size of their own."""

DTYPE_OF_ELEMENT_TYPE: Mapping[int, str] = MappingProxyType({number: name for number, name, _ in _TABLE})
"""The name of each element type. Source: onnx.proto, `TensorProto.DataType`."""
ELEMENT_TYPE_OF_DTYPE: Mapping[str, int] = MappingProxyType({name: number for number, name, _ in _TABLE})
"""The other way round."""
ITEMSIZE_OF_DTYPE: Mapping[str, float] = MappingProxyType({name: size for _, name, size in _TABLE})
"""Bytes of one element by name; types narrower than a byte are packed."""
