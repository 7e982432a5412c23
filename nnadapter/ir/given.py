"""What segments are given that follows from shapes alone: single sizes and shapes, and tables, for the sizes that come.

Tables (a mask made by Range, a slice of positions) are what the operations say that make them, by the definition of the
adapter IR, computed on the host.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from nnadapter.ir.model import Model
from nnadapter.ir.operand import Array, freeze
from nnadapter.ir.size_arrays import SymbolicArray
from nnadapter.ir.structure import SymbolicModel, numbers
from nnadapter.ir.tracing import Traced


@dataclass(frozen=True, eq=False)
class TableComputation:
    """Operations that make tables, as one model."""

    model: Model
    """Of traced numbers."""
    sizes: Mapping[str, SymbolicArray]
    """What it reads, in the order of its inputs."""
    outputs: tuple[str, ...]

    @cached_property
    def _traced(self) -> SymbolicModel:
        return SymbolicModel(self.model)

    def at(self, replay_values: Sequence[Any]) -> dict[str, Array]:
        """The tables with the numbers of a replay."""
        from nnadapter.ir.definition import by_definition  # of every operation, and few models have tables

        tables = by_definition(
            self._traced.filled(replay_values), [array.filled(replay_values) for array in self.sizes.values()]
        )
        return {name: freeze(array) for name, array in zip(self.outputs, tables, strict=True)}


class Given:
    """Values by name, for the sizes of a replay.

    Args:
        names: of all of them.
        sizes: those that are single sizes and shapes.
        tables: makes the others; None where there are none.
    """

    def __init__(
        self, names: Iterable[str], sizes: Mapping[str, SymbolicArray], tables: TableComputation | None
    ) -> None:
        self.names, self.sizes, self.tables = tuple(names), sizes, tables
        self._last: tuple[Sequence[Any], Mapping[str, Array]] | None = None

    @cached_property
    def numbers(self) -> frozenset[int]:
        """Numbers of the trace that say what the values are."""
        tables = self.tables
        arrays = (*self.sizes.values(), *(tables.sizes.values() if tables is not None else ()))
        items = (item for array in arrays for item in array.items.flat)
        of_tables = numbers(tables.model) if tables is not None else ()
        return frozenset(value.number for value in (*of_tables, *items) if isinstance(value, Traced))

    def at(self, replay_values: Sequence[Any]) -> Mapping[str, Array]:
        """The values with the numbers of a replay.

        Raises:
            OverflowError: a size that the model's own type cannot hold.
        """
        last = self._last
        if last is not None and last[0] is replay_values:  # as in a run like the one before
            return last[1]
        values = {name: array.filled(replay_values) for name, array in self.sizes.items()}
        if self.tables is not None:
            values |= self.tables.at(replay_values)
        self._last = replay_values, values
        return values
