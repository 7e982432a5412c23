"""Small arrays of sizes whose elements remember how they came about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnadapter.ir.operand import Array
from nnadapter.ir.tracing import Traced, current


@dataclass(frozen=True, slots=True, eq=False)
class SymbolicArray:
    """An array whose elements may be traced."""

    items: Array
    """Python numbers and traced ones, of numpy type `object`."""
    dtype: np.dtype[Any]
    """The type that the model has."""

    @classmethod
    def of(cls, array: Array) -> SymbolicArray:
        """The same contents; nothing is traced yet."""
        return cls(array.astype(object), array.dtype)

    @property
    def is_traced(self) -> bool:
        """Whether an element is a traced number."""
        return any(isinstance(item, Traced) for item in self.items.flat)

    def plain(self) -> Array:
        """The contents now, on which something is decided from here on."""
        for item in self.items.flat:
            if isinstance(item, Traced):
                item.trace.answer(item)
        return self.now()

    def now(self) -> Array:
        """The contents for the sizes that are traced."""
        return self._filled(list(map(current, self.items.flat)))

    def filled(self, replay_values: Sequence[Any]) -> Array:
        """The contents for the sizes of a replay."""
        return self._filled([replay_values[item.number] if type(item) is Traced else item for item in self.items.flat])

    def _filled(self, items: list[Any]) -> Array:
        array = np.array(items, self.dtype).reshape(self.items.shape)
        array.flags.writeable = False
        return array
