"""Elements of four bits: a byte each in arrays, two to a byte where they are stored, the first in the low four bits."""

from __future__ import annotations

from math import prod

import numpy as np

from nnadapter.ir.operand import Array, DataType


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
