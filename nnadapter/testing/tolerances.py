"""How far results may be off in the conformance kit: by `nnadapter.accuracy.bands`, as everywhere."""

from __future__ import annotations

from enum import StrEnum

import numpy as np

from nnadapter.accuracy.bands import tolerance_of
from nnadapter.ir.operand import Array, DataType
from nnadapter.running.deviation import distances


class Precision(StrEnum):
    """In what a device computes float32: one that says float16 or bfloat16 is held to what that can do."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


STEP = 1
"""Steps that an 8-bit integer may be off in onnx's operator tests: rounding of a half is not laid down for devices."""
_EIGHT_BITS = ("int8", "uint8")


def furthest(got: Array, expected: Array, precision: Precision, *, steps: int = 0) -> str:
    """Say where `got` is beyond the band around `expected`, of the same type and shape; empty if nowhere.

    Args:
        got: what a device computed.
        expected: what is right.
        precision: in what the device computes.
        steps: how far 8-bit integers may be off.
    """
    wrong = _wrong(got, expected, precision, steps)
    if not wrong.any():
        return ""
    where = tuple(int(axis[0]) for axis in np.nonzero(wrong)) if wrong.ndim else ()
    count = f"{int(wrong.sum())} of {wrong.size} elements are off"
    return f"{list(where)}: got {got[where]}, expected {expected[where]}; {count}"


def _wrong(got: Array, expected: Array, precision: Precision, steps: int) -> Array:
    name = expected.dtype.name
    allowed = steps if name in _EIGHT_BITS else 0
    return distances(got, expected, tolerance_of(name, DataType(precision.value), allowed)).tolerances > 1
