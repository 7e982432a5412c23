"""Paddle's names of types and places."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

from nnadapter.errors import InvalidInputError
from nnadapter.process.versions import own_version


class DataType(Enum):
    """Types of what a handle holds. Source: paddle.inference.DataType."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    INT64 = "int64"
    INT32 = "int32"
    UINT8 = "uint8"
    INT8 = "int8"
    BOOL = "bool"


class PrecisionType(Enum):
    """What a graph engine may compute in. Source: paddle.inference.PrecisionType."""

    Float32 = "float32"
    Int8 = "int8"
    Half = "float16"
    Bfloat16 = "bfloat16"


class PlaceType(Enum):
    """Where memory lies. Source: paddle.inference.PlaceType."""

    UNK = "unknown"
    CPU = "cpu"
    GPU = "gpu"
    XPU = "xpu"
    CUSTOM = "custom"


_BYTES: Mapping[DataType, int] = MappingProxyType(
    {
        DataType.FLOAT64: 8,
        DataType.FLOAT32: 4,
        DataType.FLOAT16: 2,
        DataType.BFLOAT16: 2,
        DataType.INT64: 8,
        DataType.INT32: 4,
        DataType.UINT8: 1,
        DataType.INT8: 1,
        DataType.BOOL: 1,
    }
)

_DECLARED: Mapping[str, str] = MappingProxyType({"float": "float32", "double": "float64"})
"""ONNX Runtime's words for types where they are not numpy's."""


def dtype_of(declared: str) -> str:
    """Return what numpy calls the type that a session declares: `tensor(float)` is `float32`."""
    word = declared.removeprefix("tensor(").removesuffix(")")
    return _DECLARED.get(word, word)


def data_type_of(name: str) -> DataType:
    """Return the type that numpy calls so.

    Raises:
        InvalidInputError: Paddle has no such type.
    """
    try:
        return DataType(name)
    except ValueError:
        type_names = ", ".join(data_type.value for data_type in DataType)
        raise InvalidInputError(f"Paddle has no data type {name!r}; it has {type_names}") from None


def get_num_bytes_of_data_type(dtype: DataType) -> int:
    """Return how many bytes an element takes."""
    return _BYTES[dtype]


def get_version() -> str:
    """Return the version of what runs the models, which is nnadapter."""
    return f"version: nnadapter {own_version()}\n"
