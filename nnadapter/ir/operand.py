"""Operands, their types, and digests of their contents. Names follow NNAPI and NNAdapter."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from hashlib import sha256
from math import prod
from typing import Any

import numpy as np

from nnadapter.process.resources import memoize
from nnadapter.records import dataclass
from partition.graph import ITEMSIZE_OF_DTYPE

Array = np.ndarray[tuple[Any, ...], np.dtype[Any]]


def array_type_of(name: str) -> np.dtype[Any]:
    """Return the numpy dtype with this name, possibly from ml_dtypes."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes  # noqa: F401  registers its names with numpy; loaded only if needed

        return np.dtype(name)


class DataType(StrEnum):
    """Element type, named as in numpy and ml_dtypes. Source: NNAdapter's precisions, and ONNX's narrow types."""

    BOOL = "bool"
    INT4 = "int4"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    UINT4 = "uint4"
    UINT8 = "uint8"
    UINT16 = "uint16"
    UINT32 = "uint32"
    UINT64 = "uint64"
    FLOAT8E4M3FN = "float8_e4m3fn"
    FLOAT8E5M2 = "float8_e5m2"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"

    @property
    def itemsize(self) -> float:
        """Size of one element in bytes; 0.5 for 4-bit types."""
        return _ITEMSIZE[self]

    @property
    def array_type(self) -> np.dtype[Any]:
        """Array dtype, with one byte per element of a 4-bit type."""
        return array_type_of(self.value)

    @property
    def is_floating(self) -> bool:
        return self in FLOATING


_ITEMSIZE = {data_type: ITEMSIZE_OF_DTYPE[data_type.value] for data_type in DataType}
PACKED = frozenset(data_type for data_type, size in _ITEMSIZE.items() if size < 1)
"""Types with two elements per byte in files and devices; see `ir.deferred_arrays.pack`."""
FLOATING = frozenset(data_type for data_type in DataType if "float" in data_type)
INTEGER = frozenset(data_type for data_type in DataType if "int" in data_type)
NUMERIC = FLOATING | INTEGER
ANY = frozenset(DataType)


class Layout(StrEnum):
    """Order of the axes of an image. Source: NNADAPTER_NCHW, NNADAPTER_NHWC."""

    NCHW = "NCHW"
    """Also the layout of operands that are not images."""
    NHWC = "NHWC"


class Lifetime(StrEnum):
    """Origin of an operand's contents. Source: NNAdapterOperandLifetimeCode."""

    CONSTANT = "constant"
    TEMPORARY = "temporary"
    MODEL_INPUT = "model_input"
    MODEL_OUTPUT = "model_output"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """Quantization per tensor or per axis: real = scale * (integer - zero_point)."""

    scale: tuple[float, ...]
    """One number per tensor, or one per index along `axis`."""
    zero_point: tuple[int, ...]
    axis: int | None = None

    def __post_init__(self) -> None:
        """Convert numpy numbers losslessly to Python numbers; `verify` rejects other values."""
        try:
            scale, zero_point = tuple(map(float, self.scale)), tuple(map(int, self.zero_point))
            is_integral = all(point == raw_point for point, raw_point in zip(zero_point, self.zero_point, strict=True))
            texts = any(isinstance(number, str) for number in (*self.scale, *self.zero_point))
        except (TypeError, ValueError, OverflowError):
            return
        if is_integral and not texts:
            object.__setattr__(self, "scale", scale)
            object.__setattr__(self, "zero_point", zero_point)


@dataclass(frozen=True, slots=True)
class QuantizedType:
    """Data type and quantization of a result, which shape rules do not infer."""

    dtype: DataType
    quantization: Quantization


@dataclass(frozen=True, slots=True)
class OperandType:
    """Type of an operand: `OperandType(DataType.FLOAT32, (1, 3, 224, 224))`.

    Args:
        dtype: data type of the elements.
        dimensions: in the order of `layout`; () for a scalar. Dynamic ones are symbolic
            (`nnadapter.ir.symbolic_numbers`).
        layout: NHWC only for rank 4.
        quantization: None if not quantized.

    Source: NNAdapterOperandType.
    """

    dtype: DataType
    dimensions: tuple[int, ...]
    layout: Layout = Layout.NCHW
    quantization: Quantization | None = None

    @property
    def quantized(self) -> QuantizedType | None:
        return None if self.quantization is None else QuantizedType(self.dtype, self.quantization)

    @property
    def rank(self) -> int:
        return len(self.dimensions)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.dimensions)

    @property
    def nbytes(self) -> int:
        """Bytes of the contents, with two 4-bit elements per byte, rounded up."""
        return int(-(-self.size * round(_ITEMSIZE[self.dtype] * 8) // 8))

    def at(self, sizes: Sequence[Any]) -> OperandType:
        """Return the type with symbolic dimensions replaced by `sizes`, the values of all symbolic numbers."""
        from nnadapter.ir.symbolic_numbers import substitute_sizes  # most models do not need it

        return OperandType(self.dtype, substitute_sizes(self.dimensions, sizes), self.layout, self.quantization)

    def __str__(self) -> str:
        """Return `float32[1, 3, 224, 224]`."""
        layout = "" if self.layout is Layout.NCHW else f" {self.layout.value}"
        return f"{self.dtype.value}{list(self.dimensions)}{layout}"


@dataclass(frozen=True, slots=True, eq=False)
class Operand:
    """One value of a model, created by `ModelBuilder`.

    Args:
        name: unique in the model; the name of the ONNX value if there is one.
        type: data type, dimensions, layout and quantization.
        lifetime: origin of the contents; an input that is also an output is a `MODEL_INPUT`.
        value: read-only contents of a constant, one byte per 4-bit element; otherwise None.

    Operands compare by identity.
    """

    name: str
    type: OperandType
    lifetime: Lifetime
    value: Array | None = None


@memoize(64)
def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return `dtype.name`, cached because numpy computes it each time."""
    return dtype.name


def freeze(array: Array) -> Array:
    """Return a read-only, contiguous array in native byte order; copy only if needed."""
    array = np.asarray(array)  # numpy returns scalars instead of arrays of rank 0
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.flags.c_contiguous and not array.flags.writeable:
        return array
    # Reshape to keep rank 0 and to leave the flags of the caller's array object unchanged.
    contiguous = np.ascontiguousarray(array).reshape(array.shape)
    contiguous.flags.writeable = False
    return contiguous


def flat_bytes(array: Array) -> Array:
    """Return the bytes of an array in C order, as uint8; copy only if needed."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def digest_of(array: Array) -> str:
    """Return the SHA-256 of an array's bytes in C order, independent of data type and shape."""
    return sha256(flat_bytes(array).data).hexdigest()
