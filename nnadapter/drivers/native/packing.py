"""Elements of four bits: a byte each in our arrays, two to a byte in C, the first in the low four bits."""

from __future__ import annotations

from math import prod

import numpy as np

from nnadapter.ir.operand import Array, DataType

PACKED = frozenset({DataType.INT4, DataType.UINT4})
"""Data types that have another form there."""


def pack(array: Array) -> Array:
    """Return the elements in row-major order, two to a byte, as uint8."""
    nibbles = array.astype(np.int8).reshape(-1).view(np.uint8) & 15
    if nibbles.size % 2:
        nibbles = np.append(nibbles, np.uint8(0))
    packed: Array = nibbles[::2] | nibbles[1::2] << 4
    return packed


def unpack(packed: Array, dtype: DataType, dimensions: tuple[int, ...]) -> Array:
    """Return what `pack` packed, as an array of its data type and dimensions."""
    nibbles: Array = np.empty(packed.size * 2, np.uint8)
    nibbles[::2], nibbles[1::2] = packed & 15, packed >> 4
    size = prod(dimensions)
    if dtype is DataType.INT4:
        nibbles = (nibbles << 4).view(np.int8) >> 4  # the shift to the right brings the sign along
    return nibbles[:size].astype(dtype.array_type).reshape(dimensions)
