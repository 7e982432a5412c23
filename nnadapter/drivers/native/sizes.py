"""Open sizes in C: a model's traced numbers, numbered as they come, and what a run is told of them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

from nnadapter.drivers.native.structures import Holder
from nnadapter.ir.model import Model, Operation
from nnadapter.ir.structure import numbers
from nnadapter.ir.tracing import Traced, current

OPEN = -1
"""NNADAPTER_OPEN, and in `sizes` of a structure the place of what is known."""


class NumberedSizes:
    """The sizes that a model leaves open, each once, and once those that were found to be equal until now.

    What is found later counts no more: a model and its runs are told the same.
    """

    def __init__(self, model: Model) -> None:
        traced = {value.number: value for value in numbers(model) if isinstance(value, Traced)}
        firsts = {number: traced_value.trace.alike(number) for number, traced_value in traced.items()}
        self._traced = tuple(dict.fromkeys(firsts.values()))
        places = {number: place for place, number in enumerate(self._traced)}
        self._place: Mapping[int, int] = {number: places[first] for number, first in firsts.items()}
        self._array = ctypes.c_int64 * len(self._traced)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._traced)

    def of(self, sizes: Sequence[Any]) -> list[int]:
        """Those of a run; see `Execution.at`."""
        return [sizes[number] for number in self._traced]

    def told(self, numbers: Sequence[int]) -> Any:
        """Those of a run as an array of C."""
        return self._array(*numbers)

    def places(self, values: Sequence[Any]) -> list[int]:
        """The places of some numbers among the sizes; `OPEN` for what is known."""
        return [self._place[value.number] if isinstance(value, Traced) else OPEN for value in values]

    def address_of_places(self, holder: Holder, values: Sequence[Any]) -> int | None:
        """The address of the places of some numbers among the sizes; None if all are known."""
        places = self.places(values)
        return holder.values("i32", places) if any(place != OPEN for place in places) else None


def known(values: Sequence[Any]) -> list[Any]:
    """Return numbers as C has them: `OPEN` for what is not known."""
    return [OPEN if isinstance(value, Traced) else value for value in values]


def untold(operation: Operation) -> str:
    """The attribute of an operation that drivers in C are not told, a real number that hangs on sizes; or nothing."""
    for name, value in operation.attributes.items():
        each = value if isinstance(value, tuple) else (value,)
        if any(isinstance(number, Traced) and not isinstance(current(number), int) for number in each):
            return name
    return ""
