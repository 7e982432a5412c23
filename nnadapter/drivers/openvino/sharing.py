"""Arrays as the engine shares their memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from nnadapter.ir.operand import Array

_TWINS = frozenset(char for char in "bBhHiIlLqQ" if np.dtype(np.dtype(char).str).char != char)
"""Numpy has two types for some integers, alike but for names; the engine refuses the one that ONNX Runtime makes."""


class _Memory:
    """Somebody else's memory, as numpy takes it, which lives as long as this does."""

    __slots__ = ("__array_interface__", "_owner")

    def __init__(self, interface: dict[str, Any], owner: Array) -> None:
        self.__array_interface__ = interface
        self._owner = owner


def shareable(array: Array) -> Array:
    """Return the array as the engine takes it for its own.

    Its Python interface refuses what is read-only, although it only reads from inputs and constants. So it gets the
    same memory under an array that does not say so.
    """
    if array.dtype.char not in _TWINS:
        if array.flags.writeable:
            return array
        base = array.base
        if type(base) is np.ndarray and _is_like(base, array):
            return base  # the caller's own array, of which the host gave a view
    interface = array.__array_interface__
    interface["data"] = (interface["data"][0], False)
    return np.asarray(_Memory(interface, array))


def _is_like(base: Array, array: Array) -> bool:
    return base.shape == array.shape and base.dtype == array.dtype and bool(base.flags.carray)
