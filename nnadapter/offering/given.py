"""What segments are given that follows from shapes alone: single sizes and shapes, and tables, for the sizes that come.

Tables (a mask made by Range, a slice of positions) are what the operations say that make them, by the definition of the
adapter IR, computed on the host.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nnadapter.converters.sizes import SizeArray
from nnadapter.ir.definition import by_definition
from nnadapter.ir.model import Model
from nnadapter.ir.operand import Array, freeze
from nnadapter.ir.structure import TracedModel, numbers
from nnadapter.ir.tracing import Traced
from nnadapter.offering.conversion_tracing import OpenConversion


@dataclass(frozen=True, slots=True, eq=False)
class _Tables:
    """Operations that make tables, as one model."""

    model: TracedModel
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class Given:
    """Values by name, for the sizes of a replay.

    Args:
        opening: the model for all sizes.
        names: of sizes (`opening.sizes`) and of tables (`opening.tables`).
    """

    def __init__(self, opening: OpenConversion, names: Iterable[str]) -> None:
        self.names = tuple(names)
        wanted = [name for name in self.names if name not in opening.sizes]
        self._sizes: Mapping[str, SizeArray] = {
            name: opening.sizes[name] for name in self.names if name in opening.sizes
        }
        self._tables, self._table_sizes = None, dict[str, SizeArray]()
        of_tables: Sequence[Any] = ()
        if wanted:
            part, inputs = _table_model(opening, wanted)
            self._tables = _Tables(TracedModel(part), inputs, tuple(wanted))
            self._table_sizes = {name: opening.sizes[name] for name in inputs}
            of_tables = numbers(part)
        self.numbers = frozenset(
            each.number
            for each in (
                *of_tables,
                *(item for array in (*self._sizes.values(), *self._table_sizes.values()) for item in array.items.flat),
            )
            if isinstance(each, Traced)
        )
        """Numbers of the trace that say what the values are."""
        self._last: tuple[Sequence[Any], Mapping[str, Array]] | None = None

    def at(self, known: Sequence[Any]) -> Mapping[str, Array]:
        """The values with the numbers of a replay.

        Raises:
            OverflowError: a size that the model's own type cannot hold.
        """
        last = self._last
        if last is not None and last[0] is known:  # as in a run like the one before
            return last[1]
        values = {name: array.filled(known) for name, array in self._sizes.items()}
        if self._tables is not None:
            values |= self._made(self._tables, known)
        self._last = known, values
        return values

    def _made(self, tables: _Tables, known: Sequence[Any]) -> dict[str, Array]:
        made = by_definition(
            tables.model.filled(known), [self._table_sizes[name].filled(known) for name in tables.inputs]
        )
        return {name: freeze(array) for name, array in zip(tables.outputs, made, strict=True)}


def _table_model(opening: OpenConversion, names: Sequence[str]) -> tuple[Model, tuple[str, ...]]:
    """The operations behind some tables, and the sizes that they read."""
    conversion = opening.conversion
    operand_of, model = conversion.operand_of, conversion.model
    wanted = [operand_of[name] for name in names]
    operations = sorted(opening.behind(wanted))
    read = {operand for operation in operations for operand in model.operations[operation].inputs}
    inputs = tuple(opening.given_sizes(read))
    return conversion.part(operations, [operand_of[name] for name in inputs], wanted), inputs
