"""Tensors of 4 bits at the border of a compiled function: a byte for each element, as numpy has them.

JAX 0.10 does not give compiled functions arguments of 4 bits: it says that their layouts disagree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nnadapter.ir.operand import Array, dtype_name

_CARRIERS: Mapping[str, np.dtype[Any]] = {"int4": np.dtype(np.int8), "uint4": np.dtype(np.uint8)}


def carrier(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The data type that stands for another one at the border; most stand for themselves."""
    return _CARRIERS.get(dtype_name(dtype), dtype)


def carried(array: Array) -> Array:
    """An array as the border has it."""
    return array.astype(_CARRIERS[name]) if (name := dtype_name(array.dtype)) in _CARRIERS else array
