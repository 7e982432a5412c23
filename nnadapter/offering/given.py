"""What segments of a model converted for all sizes are given. See `nnadapter.ir.given`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nnadapter.ir.given import Given, TableComputation
from nnadapter.offering.traced_conversions import DynamicConversion


def given_of(opening: DynamicConversion, names: Iterable[str]) -> Given:
    """Return values by name, for the sizes of a replay.

    Args:
        opening: the model for all sizes.
        names: of sizes (`opening.sizes`) and of tables (`opening.tables`).
    """
    wanted = tuple(names)
    tables = [name for name in wanted if name not in opening.sizes]
    sizes = {name: opening.sizes[name] for name in wanted if name in opening.sizes}
    return Given(wanted, sizes, _tables(opening, tables) if tables else None)


def _tables(opening: DynamicConversion, names: Sequence[str]) -> TableComputation:
    """The operations behind some tables, and the sizes that they read."""
    conversion = opening.conversion
    operand_of, model = conversion.operand_of, conversion.model
    wanted = [operand_of[name] for name in names]
    operations = sorted(opening.behind(wanted))
    read = {operand for operation in operations for operand in model.operations[operation].inputs}
    inputs = tuple(opening.given_sizes(read))
    part = conversion.part(operations, [operand_of[name] for name in inputs], wanted)
    return TableComputation(part, {name: opening.sizes[name] for name in inputs}, tuple(names))
