"""Constants that are brought into another form once, when a segment is compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nnadapter.drivers.tables.lowering import Computes
from nnadapter.ir.operand import Array

Pack = Callable[[Array], Array]
"""A constant as the model has it -> as what computes an operation is given it."""


class Packing:
    """What computes an operation, some of whose constants it wants packed.

    Args:
        compute: is called with them.
        packs: by position of an input, what packs it.
    """

    def __init__(self, compute: Computes, packs: Mapping[int, Pack]) -> None:
        self._compute, self.packs = compute, packs

    def __call__(self, *inputs: Any) -> Any:
        """See `Computes`."""
        return self._compute(*inputs)


def packs_of(compute: Computes) -> Mapping[int, Pack]:
    """What packs constants of an operation, by the position of its input."""
    return compute.packs if isinstance(compute, Packing) else {}
