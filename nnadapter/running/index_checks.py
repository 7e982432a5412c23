"""Checks of indices and lengths from the caller, before the step that reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from nnadapter.drivers.copies import on_host
from nnadapter.errors import InputValueError
from nnadapter.ir.index_ranges import Bound, IndexCheck, Size
from nnadapter.ir.operand import Array

_WIDTH_BYTES = 8192
_FEW_ROWS = 16
"""Rows of several indices are reduced in blocks, first of `_WIDTH_BYTES` bytes, then of `_FEW_ROWS` rows: numpy's
reductions of short rows take many times as long."""
_Limit = Callable[[Sequence[Any]], int] | int | None


class BoundCheck(NamedTuple):
    """A check with the slots of the values that it asks for."""

    slot: int
    bounds: tuple[tuple[_Limit, _Limit, int | None], ...]
    check_of: IndexCheck
    interval: tuple[_Limit, ...] = ()
    """The interval that is compared in place of the value, see `IndexCheck.interval`."""

    def check(self, values: Sequence[Any]) -> None:
        """Raise InputValueError if an index or a length is out of its range.

        Args:
            values: of the run, by slot.
        """
        if self.interval:
            for low, high, exception in self.bounds:
                ends = _of(self.interval[0], values), _of(self.interval[1], values)
                self._compare(*ends, _of(low, values), _of(high, values), exception, None)
            return
        array = values[self.slot]
        if type(array) is not np.ndarray:
            array = on_host(array)
        if not array.size:
            return
        if len(self.bounds) == 1:
            low, high, exception = self.bounds[0]
            self._compare(array.min(), array.max(), _of(low, values), _of(high, values), exception, array)
            return
        least, most = _extremes_of_columns(array, len(self.bounds))
        for column, (low, high, exception) in enumerate(self.bounds):
            limits = _of(low, values), _of(high, values)
            self._compare(least[column], most[column], *limits, exception, array[..., column])

    def _compare(
        self, least: Any, most: Any, low: int | None, high: int | None, exception: int | None, array: Array | None
    ) -> None:
        if array is not None and array.dtype.kind == "f":  # floats are truncated later; NaN is outside every range
            is_within = (low is None or least > low - 1) and (high is None or most < high + 1) and least <= most
        else:
            is_within = (low is None or least >= low) and (high is None or most <= high)
        if is_within:
            return
        if exception is not None and array is not None:
            others = array[array != exception]
            if others.size < array.size:
                if others.size:
                    self._compare(others.min(), others.max(), low, high, None, others)
                return
        self._fail(most if low is None or (high is not None and most > high) else least, low, high)

    def _fail(self, value: Any, low: int | None, high: int | None) -> NoReturn:
        check = self.check_of
        range_ = (
            f"from {low} to {high}"
            if low is not None and high is not None
            else (f"at most {high}" if low is None else f"at least {low}")
        )
        name = check.source or check.value
        what = f"input {name!r}" if check.source else f"computed value {name!r}"
        raise InputValueError(
            f"{what} holds {value}; as an index, length or coordinate of {check.reader}, expected values {range_}",
            name=check.source or None,
        )


def bound_checks(checks: Sequence[IndexCheck], slots: Mapping[str, int]) -> tuple[BoundCheck, ...]:
    """Return checks with the slots of the values that they read."""

    def limit(bound: Bound | None) -> _Limit:
        if not isinstance(bound, Size):
            return bound
        sign = 1 if bound.axis >= 0 else -1
        places = [(slots[name], axis if axis >= 0 else -1 - axis) for name, axis in bound.terms]
        offset = bound.offset
        return lambda values: sign * sum(int(values[slot].shape[axis]) for slot, axis in places) + offset

    return tuple(
        BoundCheck(
            slots.get(check.value, -1),
            tuple((limit(low), limit(high), exception) for low, high, exception in check.bounds),
            check,
            tuple(map(limit, check.interval or ())),
        )
        for check in checks
    )


def _of(limit: _Limit, values: Sequence[Any]) -> int | None:
    return limit(values) if callable(limit) else limit


def _extremes_of_columns(array: Array, count: int) -> tuple[Array, Array]:
    """Return the least and the largest element of each column."""
    flat = array.reshape(-1)
    return _over_rows(np.minimum, flat, count), _over_rows(np.maximum, flat, count)


def _over_rows(extreme: np.ufunc, flat: Array, count: int) -> Array:
    for rows in (max(1, _WIDTH_BYTES // (count * flat.itemsize)), _FEW_ROWS, 1):
        width = rows * count
        whole = flat.size // width * width
        if whole > width or rows == 1:
            parts = extreme.reduce(flat[:whole].reshape(-1, width), 0), flat[whole:]
            flat = np.concatenate(parts) if parts[1].size else parts[0]
    return flat
