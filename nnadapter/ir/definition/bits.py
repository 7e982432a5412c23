"""What operations compute with the bits of numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nnadapter.ir.operand import Array

_BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def _shift(x: Array, y: Array, direction: str) -> Array:
    """With Python's integers, which have no end, and then the low bits alone."""
    bits = 8 * x.dtype.itemsize
    shifted = []
    for number, count in np.broadcast(x, y):
        number, count = int(number), int(count)
        beyond = not 0 <= count < bits
        sign_fill = -1 if number < 0 and direction == "right" else 0
        if beyond:
            shifted.append(sign_fill)
        else:
            shifted.append(number << count if direction == "left" else number >> count)
    low = np.array([number % 2**bits for number in shifted], _BITS[x.dtype.itemsize])
    return low.view(x.dtype).reshape(np.broadcast_shapes(x.shape, y.shape))


def bit_cast(x: Array, to: Any) -> Any:
    """The bytes of `x` read as another type; no other byte than 0 and 1 is a truth value."""
    if to == np.bool_:
        return x != 0
    return np.frombuffer(x.tobytes(), to).reshape(x.shape)


BITS: Mapping[str, Callable[..., Any]] = {
    "BITWISE_AND": np.bitwise_and,
    "BITWISE_OR": np.bitwise_or,
    "BITWISE_XOR": np.bitwise_xor,
    "BITWISE_NOT": np.invert,
    "BIT_SHIFT": _shift,
    "BIT_CAST": lambda x, to: bit_cast(x, np.dtype(to)),
}
"""By operation."""
