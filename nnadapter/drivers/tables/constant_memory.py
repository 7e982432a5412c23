"""Where the constants of a segment lie, so that no result is given away that looks at one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate

from nnadapter.ir.operand import Array


class ConstantMemory:
    """Spans of the host's memory that hold constants.

    Args:
        arrays: the constants, or what a device gives for them.
    """

    __slots__ = ("_begins", "_ends")

    def __init__(self, arrays: Iterable[Array]) -> None:
        spans = sorted(_span(array) for array in arrays if array.size)
        self._begins = [begin for begin, _ in spans]
        self._ends = list(accumulate((end for _, end in spans), max))
        """For every span the last end of those that begin no later."""

    def may_hold(self, array: Array) -> bool:
        """Whether an array may share memory with a constant."""
        begin, end = _span(array)
        earlier = bisect_left(self._begins, end)
        return earlier > 0 and self._ends[earlier - 1] > begin


def _span(array: Array) -> tuple[int, int]:
    """The first address of an array and the one behind its last."""
    begin: int = array.__array_interface__["data"][0]
    end = begin + array.itemsize
    for size, stride in zip(array.shape, array.strides, strict=True):
        if stride < 0:
            begin += (size - 1) * stride
        else:
            end += (size - 1) * stride
    return begin, end
