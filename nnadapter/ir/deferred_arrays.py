"""Deferred arrays, computed when read, and packing and transposition of weights.

Verdicts and reports need only the data type and dimensions of a weight. A `deferrable` function derives them from its
arguments, so that traces (`ir.derived`) record calls without executing them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple, TypeVar

import numpy as np

from nnadapter.ir.operand import Array, DataType, flat_bytes, freeze

ArrayForm = tuple[np.dtype[Any], tuple[int, ...]]
FormRule = Callable[..., ArrayForm]
"""Rule that computes the form of a function's result from its arguments, without reading contents."""
_Function = TypeVar("_Function", bound=Callable[..., Array])
_deferrals: dict[Callable[..., Any], Deferral] = {}


class Deferral(NamedTuple):
    """Rule that decides if calls of a function are deferred, and computes their results' forms."""

    form: FormRule
    follows: bool
    """True if only calls with a deferred argument are deferred, because the function is cheap."""

    def applies(self, arrays: Sequence[Any]) -> bool:
        return not self.follows or any(isinstance(array, DeferredArray) for array in arrays)


class DeferredArray:
    """Result of a deferred call, computed again on each read."""

    __slots__ = ("__weakref__", "_arrays", "_function", "_parameters", "dtype", "shape")

    def __init__(
        self, function: Callable[..., Array], arrays: Sequence[Any], parameters: Mapping[str, Any], form: ArrayForm
    ) -> None:
        self._function, self._arrays, self._parameters = function, tuple(arrays), parameters
        self.dtype, self.shape = form

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    def contents(self) -> Array:
        return self._function(*map(contents_of, self._arrays), **self._parameters)


def contents_of(array: Any) -> Any:
    """Return the array, computed if it is deferred."""
    return array.contents() if isinstance(array, DeferredArray) else array


def deferrable(form: FormRule, *, follows: bool = False) -> Callable[[_Function], _Function]:
    """Decorate a pure function so that its calls may be deferred; see `Deferral`."""

    def note(function: _Function) -> _Function:
        _deferrals[function] = Deferral(form, follows)
        return function

    return note


def deferral_of(function: Callable[..., Any]) -> Deferral | None:
    """Return the deferral rule of a function; None if its calls are never deferred."""
    return _deferrals.get(function)


def same_form(array: Array) -> ArrayForm:
    """Return the data type in native byte order, and the dimensions."""
    return array.dtype.newbyteorder("="), array.shape


deferrable(same_form, follows=True)(freeze)


def pack(array: Array) -> Array:
    """Pack 4-bit elements two to a byte, low half first, in row-major order."""
    flat = flat_bytes(array)
    nibbles = np.zeros(flat.size + flat.size % 2, np.uint8)
    np.bitwise_and(flat, 15, out=nibbles[: flat.size])
    packed: Array = nibbles[::2] | nibbles[1::2] << 4
    return packed


def unpack(packed: Array, dtype: DataType, dimensions: tuple[int, ...]) -> Array:
    """Return the array of 4-bit elements that `pack` packed."""
    nibbles: Array = np.empty(packed.size * 2, np.uint8)
    nibbles[::2], nibbles[1::2] = packed & 15, packed >> 4
    if dtype is DataType.INT4:
        nibbles = (nibbles << 4).view(np.int8) >> 4  # the right shift extends the sign
    return nibbles[: prod(dimensions)].astype(dtype.array_type).reshape(dimensions)


_ELEMENTS = 1 << 18
"""Elements per step, so that temporaries stay in cache."""


def _unpacked_form(
    weight: Array, scale: Array, zero_point: Array | None, *, bits: int, block_size: int, depth: int
) -> ArrayForm:
    return scale.dtype, (weight.shape[0], depth)


@deferrable(_unpacked_form)
def unpacked_weight(
    weight: Array, scale: Array, zero_point: Array | None, *, bits: int, block_size: int, depth: int
) -> Array:
    """Dequantize the weight of MAT_MUL_N_BITS to [N, K], in the data type of its scales.

    Args:
        weight: [N, blocks, bytes], uint8.
        scale: [N, blocks].
        zero_point: packed [N, bytes], or reals [N, blocks]; None for 2 ** (bits - 1).
        bits: 2, 4 or 8.
        block_size: integers per block.
        depth: K; may end within the last block.
    """
    units, blocks = scale.shape
    points = _points(scale, zero_point, bits)
    result = np.empty((units, depth), scale.dtype)
    rows = max(1, _ELEMENTS // max(blocks * block_size, 1))
    for start in range(0, units, rows):
        part = slice(start, start + rows)
        reals = _integers(weight[part], bits).astype(scale.dtype)
        reals -= points[part, :, None]
        reals *= scale[part, :, None]
        result[part] = reals.reshape(len(reals), -1)[:, :depth]
    return result


def _points(scale: Array, zero_point: Array | None, bits: int) -> Array:
    if zero_point is None:
        return np.full(scale.shape, 1 << (bits - 1), scale.dtype)
    if zero_point.dtype == np.uint8:
        zero_point = _integers(zero_point, bits)[:, : scale.shape[1]]
    return zero_point.astype(scale.dtype)


def _integers(packed: Array, bits: int) -> Array:
    if bits == 8:
        return packed
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return parts.reshape(*packed.shape[:-1], -1)


_ROWS = 64
"""Rows per step, so that reads are sequential and writes stay in the cache."""


def _transposed_form(matrix: Array) -> ArrayForm:
    return matrix.dtype, matrix.shape[::-1]


@deferrable(_transposed_form)
def transposed(matrix: Array) -> Array:
    """Transpose [K, N] to a contiguous [N, K]."""
    result = np.empty(matrix.shape[::-1], matrix.dtype)
    for start in range(0, len(matrix), _ROWS):
        result[:, start : start + _ROWS] = matrix[start : start + _ROWS].T
    return result
