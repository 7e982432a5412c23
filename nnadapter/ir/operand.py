"""Operands: the values of a model, their types, and digests of their contents.

Operands: the values of an adapter IR model, and their types.

Names follow NNAPI and NNAdapter: an operand has a type (data type, dimensions, layout, quantization) and a
lifetime. Data types carry numpy's and ml_dtypes' names, so that `numpy.dtype(data_type)` is the array type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from math import prod
from typing import Any

import numpy as np

from nnadapter.process.resources import memoize
from partition.graph import ITEMSIZE_OF_DTYPE

Array = np.ndarray[tuple[Any, ...], np.dtype[Any]]
"""A numpy array of any data type."""


def array_type_of(name: str) -> np.dtype[Any]:
    """Return numpy's type of a name, which may be one of those that ml_dtypes adds."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes  # noqa: F401  it teaches numpy the names that numpy has not, and is loaded where one is used

        return np.dtype(name)


class DataType(StrEnum):
    """Element types. Source: NNAdapter's precisions, extended by ONNX's narrow types."""

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
        """Bytes of one element; half a byte for the 4-bit types, which are stored two to a byte."""
        return _ITEMSIZE[self]

    @property
    def array_type(self) -> np.dtype[Any]:
        """The type of arrays of it; the 4-bit types take a byte for each element there."""
        return array_type_of(self.value)

    @property
    def is_floating(self) -> bool:
        """True for the floating-point types."""
        return self in FLOATING


_ITEMSIZE = {data_type: ITEMSIZE_OF_DTYPE[data_type.value] for data_type in DataType}
PACKED = frozenset(data_type for data_type, size in _ITEMSIZE.items() if size < 1)
"""Whose elements share bytes where they are stored, and not in arrays: see `ir.packing`."""
FLOATING = frozenset(data_type for data_type in DataType if "float" in data_type)
INTEGER = frozenset(data_type for data_type in DataType if "int" in data_type)
NUMERIC = FLOATING | INTEGER
ANY = frozenset(DataType)


class Layout(StrEnum):
    """Order of the axes of a rank-4 operand in memory. Source: NNADAPTER_NCHW, NNADAPTER_NHWC."""

    NCHW = "NCHW"
    """ONNX's order, and the order of every operand that is not an image."""
    NHWC = "NHWC"


class Lifetime(StrEnum):
    """Where an operand's contents come from. Source: NNAdapterOperandLifetimeCode."""

    CONSTANT = "constant"
    TEMPORARY = "temporary"
    MODEL_INPUT = "model_input"
    MODEL_OUTPUT = "model_output"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """How integers stand for reals: real = scale * (integer - zero_point), per tensor or along one axis."""

    scale: tuple[float, ...]
    """One per tensor, or one per index of `axis`."""
    zero_point: tuple[int, ...]
    """As many as scales."""
    axis: int | None = None
    """The axis that the scales run along; None for per tensor."""

    def __post_init__(self) -> None:
        """Take numpy's numbers and lists for what they are; what is no number stays, for `verify` to refuse."""
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
    """What a quantized result is: its data type and quantization, which no shape rule can tell."""

    dtype: DataType
    quantization: Quantization


@dataclass(frozen=True, slots=True)
class OperandType:
    """The type of an operand: `OperandType(DataType.FLOAT32, (1, 3, 224, 224))`.

    Args:
        dtype: the data type of the elements.
        dimensions: every one known, in the order that `layout` says; () for a scalar. In a model with open sizes, some
            are traced numbers (`nnadapter.ir.symbolic_numbers`).
        layout: of operands of rank 4, whether axes are N, C, H, W or N, H, W, C; all others are NCHW.
        quantization: how the integers stand for reals; None if they do not. `quantized` joins it with `dtype`.

    Types are equal if all four are. `rank`, `size` (elements) and `nbytes` follow from them.

    Source: NNAdapterOperandType.
    """

    dtype: DataType
    dimensions: tuple[int, ...]
    layout: Layout = Layout.NCHW
    quantization: Quantization | None = None

    @property
    def quantized(self) -> QuantizedType | None:
        """Data type and quantization together; None if it is not quantized."""
        return None if self.quantization is None else QuantizedType(self.dtype, self.quantization)

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.dimensions)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.dimensions)

    @property
    def nbytes(self) -> int:
        """Bytes of the contents; 4-bit types rounded up to whole bytes."""
        return int(-(-self.size * round(_ITEMSIZE[self.dtype] * 8) // 8))

    def at(self, sizes: Sequence[Any]) -> OperandType:
        """The type with what traced dimensions are now: see `ir.symbolic_numbers.substitute_sizes`."""
        from nnadapter.ir.symbolic_numbers import substitute_sizes  # most models have none

        return OperandType(self.dtype, substitute_sizes(self.dimensions, sizes), self.layout, self.quantization)

    def __str__(self) -> str:
        """As in the text form: `float32[1, 3, 224, 224]`, with the layout where it is not ONNX's."""
        layout = "" if self.layout is Layout.NCHW else f" {self.layout.value}"
        return f"{self.dtype.value}{list(self.dimensions)}{layout}"


@dataclass(frozen=True, slots=True, eq=False)
class Operand:
    """One value of a model. `ModelBuilder` makes them; `Model.operands` holds them by number.

    Args:
        name: unique in the model; the ONNX value's name where it stands for one.
        type: data type, dimensions, layout and quantization.
        lifetime: `CONSTANT` (its contents are in the model), `MODEL_INPUT` (a run is given it), `MODEL_OUTPUT` (a run
            gives it back) or `TEMPORARY` (it lives within a run). An input that is also an output is a `MODEL_INPUT`.
        value: the contents of a constant, a read-only array of the type's data type and dimensions; None for all
            others. Elements of 4 bits take a byte each.

    Operands are equal only if they are the same object.
    """

    name: str
    type: OperandType
    lifetime: Lifetime
    value: Array | None = None


@memoize(64)
def dtype_name(dtype: np.dtype[Any]) -> str:
    """The name of an array type as numpy has it, which is put together anew each time that numpy is asked."""
    return dtype.name


def freeze(array: Array) -> Array:
    """Return `array` as a contiguous array that cannot be written to, in this machine's byte order.

    It is copied only where it must be.
    """
    array = np.asarray(array)  # numpy gives a number, not an array, where nothing has axes
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.flags.c_contiguous and not array.flags.writeable:
        return array
    # Reshaped so that a scalar stays one, and so that the caller's own array object keeps its flags.
    contiguous = np.ascontiguousarray(array).reshape(array.shape)
    contiguous.flags.writeable = False
    return contiguous


def digest_of(array: Array) -> str:
    """Return the SHA-256 of an array's bytes in C order, 64 hexadecimal digits; neither type nor dimensions count."""
    return sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).hexdigest()
