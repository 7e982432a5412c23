"""Deferred arrays, computed when read, and the layouts of weights: packed, unpacked, transposed.

Arrays that are computed when somebody asks for them: what is only counted, for a verdict or a report, is not made.

A function that is `deferrable` says what form its result has by what forms its arguments have. A trace of arrays
(`ir.traced_arrays`) then notes the call and makes nothing. A driver asks for contents when it compiles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple, TypeVar

import numpy as np

from nnadapter.ir.operand import Array, DataType, freeze

ArrayForm = tuple[np.dtype[Any], tuple[int, ...]]
"""Data type and dimensions."""
FormRule = Callable[..., ArrayForm]
"""Arrays, of which only forms are looked at, and parameters -> the form of the result."""
_Function = TypeVar("_Function", bound=Callable[..., Array])
_deferrals: dict[Callable[..., Any], Deferral] = {}


class Deferral(NamedTuple):
    """How calls of a function are deferred."""

    form: FormRule
    follows: bool
    """Only where an argument is deferred: the function does nothing, mostly, with one that is there."""

    def applies(self, arrays: Sequence[Any]) -> bool:
        """Whether the call with these arguments is deferred."""
        return not self.follows or any(isinstance(array, DeferredArray) for array in arrays)


class DeferredArray:
    """What a function makes of arrays, not computed yet; it keeps nothing that it computes."""

    __slots__ = ("__weakref__", "_arrays", "_function", "_parameters", "dtype", "shape")

    def __init__(
        self, function: Callable[..., Array], arrays: Sequence[Any], parameters: Mapping[str, Any], form: ArrayForm
    ) -> None:
        self._function, self._arrays, self._parameters = function, tuple(arrays), parameters
        self.dtype, self.shape = form

    @property
    def nbytes(self) -> int:
        """Bytes of the contents."""
        return int(np.prod(self.shape, dtype=np.int64)) * int(self.dtype.itemsize)

    def contents(self) -> Array:
        """The array, computed now."""
        return self._function(*map(contents_of, self._arrays), **self._parameters)


def contents_of(array: Any) -> Any:
    """An array that is there: computed now, if it was deferred."""
    return array.contents() if isinstance(array, DeferredArray) else array


def deferrable(form: FormRule, *, follows: bool = False) -> Callable[[_Function], _Function]:
    """Return a decorator for a pure function that may be deferred, see `Deferral`."""

    def note(function: _Function) -> _Function:
        _deferrals[function] = Deferral(form, follows)
        return function

    return note


def deferral_of(function: Callable[..., Any]) -> Deferral | None:
    """How calls of a function are deferred; None if they are not."""
    return _deferrals.get(function)


def same_form(array: Array) -> ArrayForm:
    """The form of an array that is only laid out anew."""
    return array.dtype.newbyteorder("="), array.shape


deferrable(same_form, follows=True)(freeze)


def pack(array: Array) -> Array:
    """Return the elements in row-major order, two to a byte, as uint8."""
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    nibbles = np.zeros(flat.size + flat.size % 2, np.uint8)
    np.bitwise_and(flat, 15, out=nibbles[: flat.size])
    packed: Array = nibbles[::2] | nibbles[1::2] << 4
    return packed


def unpack(packed: Array, dtype: DataType, dimensions: tuple[int, ...]) -> Array:
    """Return what `pack` packed, as an array of its data type and dimensions."""
    nibbles: Array = np.empty(packed.size * 2, np.uint8)
    nibbles[::2], nibbles[1::2] = packed & 15, packed >> 4
    if dtype is DataType.INT4:
        nibbles = (nibbles << 4).view(np.int8) >> 4  # the shift to the right brings the sign along
    return nibbles[: prod(dimensions)].astype(dtype.array_type).reshape(dimensions)


_ELEMENTS = 1 << 18
"""So many are unpacked at a time: what is made on the way stays in cache."""


def _unpacked_form(
    weight: Array, scale: Array, zero_point: Array | None, *, bits: int, block_size: int, depth: int
) -> ArrayForm:
    return scale.dtype, (weight.shape[0], depth)


@deferrable(_unpacked_form)
def unpacked_weight(
    weight: Array, scale: Array, zero_point: Array | None, *, bits: int, block_size: int, depth: int
) -> Array:
    """Return the weight [N, K] of MAT_MUL_N_BITS, in the data type of its scales.

    Args:
        weight: [N, blocks, bytes], uint8.
        scale: [N, blocks].
        zero_point: [N, bytes] of uint8, or [N, blocks] of reals; None for half of what `bits` bits can say.
        bits: of an integer: 2, 4 or 8.
        block_size: integers in a block.
        depth: K, which need not fill the last block.
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
    """The integers in the bytes of the last axis, lowest bits first."""
    if bits == 8:
        return packed
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return parts.reshape(*packed.shape[:-1], -1)


_ROWS = 64
"""Rows at a time: each is read in its order, and what is written of all of them stays in cache."""


def _transposed_form(matrix: Array) -> ArrayForm:
    return matrix.dtype, matrix.shape[::-1]


@deferrable(_transposed_form)
def transposed(matrix: Array) -> Array:
    """Return a matrix [K, N] as a contiguous matrix [N, K]."""
    result = np.empty(matrix.shape[::-1], matrix.dtype)
    for start in range(0, len(matrix), _ROWS):
        result[:, start : start + _ROWS] = matrix[start : start + _ROWS].T
    return result
