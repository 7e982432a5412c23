"""Models converted once with symbolic sizes, and the shape-derived values that their segments get."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from nnadapter.converters.convert import Conversion
from nnadapter.ir.guarded_shapes import DynamicDimensions, ShapeDerivedTables, ShapeDerivedValues, SymbolicArray
from nnadapter.ir.structure import SymbolicModel
from nnadapter.ir.symbolic_numbers import SymbolicTrace, substitute_sizes
from nnadapter.onnx.preparation.prepare import Shapes, Specialized
from partition.graph import Value

Converted = tuple[Specialized, Conversion]


@dataclass(frozen=True, eq=False)
class ConversionTemplate:
    """A converted model whose dimensions are traced."""

    shapes: Mapping[str, tuple[Any, ...]]
    """Per input, its dimensions, traced where the model leaves them open."""
    trace: SymbolicTrace
    specialized: Specialized
    conversion: Conversion
    model: SymbolicModel
    """The converted model."""
    traced: Mapping[str, tuple[Any, ...]]
    """Values whose dimensions are traced, and these."""
    sizes: Mapping[str, SymbolicArray]
    """Contents that follow from dimensions."""

    @cached_property
    def _dimensions(self) -> DynamicDimensions:
        return DynamicDimensions(self.shapes)

    def specialize(self, shapes: Shapes) -> Converted | None:
        """The model for other input shapes; None if it would not be this one."""
        variables = self._dimensions.variables(shapes)
        known = None if variables is None else self.trace.replay(variables)
        if known is None:
            return None
        try:
            return self._specialized(known), self._conversion(known)
        except ArithmeticError:  # a size that the model's own type cannot hold
            return None

    def _specialized(self, known: Sequence[Any]) -> Specialized:
        graph = self.specialized.graph
        sizes = {name: array.specialize(known) for name, array in self.sizes.items()}
        return replace(
            self.specialized,
            graph=graph.revalued(_FilledValues(graph.values, self.traced, known)),
            constants=ChainMap(sizes, self.specialized.constants),  # type: ignore[arg-type]
        )

    def _conversion(self, known: Sequence[Any]) -> Conversion:
        return replace(self.conversion, model=self.model.specialize(known), source=(self.model, known))


@dataclass(frozen=True, eq=False)
class DynamicConversion:
    """A model converted for any sizes: its dimensions are traced numbers, and it decides on none of their contents."""

    shapes: Mapping[str, tuple[Any, ...]]
    """Per input, its dimensions, traced where the model leaves them open."""
    trace: SymbolicTrace
    atoms: tuple[tuple[int, ...], ...]
    """Nodes that stand for one thing."""
    conversion: Conversion
    sizes: Mapping[str, SymbolicArray]
    """Contents of what follows from shapes."""

    @cached_property
    def tables(self) -> Mapping[str, int]:
        """Values that are tables, and their operands."""
        conversion = self.conversion
        made = {operand for table in conversion.tables for operand in conversion.model.operations[table].outputs}
        return {name: operand for name, operand in conversion.operand_of.items() if operand in made}

    def given_sizes(self, operands: set[int]) -> Iterator[str]:
        """Those of `sizes` that are among some operands, and inputs of the model: others are constants."""
        given = operands.intersection(self.conversion.model.inputs)
        return (name for name in self.sizes if self.conversion.operand_of.get(name) in given)

    def behind(self, operands: Iterable[int]) -> Iterator[int]:
        """The operations behind some operands that make tables, as far back as they go."""
        model, tables = self.conversion.model, self.conversion.tables
        pending, seen = list(operands), set[int]()
        while pending:
            source = model.producer.get(pending.pop())
            if source in tables and source not in seen:
                seen.add(source)
                pending.extend(model.operations[source].inputs)
                yield source


class _FilledValues(Mapping[str, Value]):
    """What is known of values for the sizes of a replay, worked out when it is asked for."""

    def __init__(
        self, values: Mapping[str, Value], traced: Mapping[str, tuple[Any, ...]], known: Sequence[Any]
    ) -> None:
        self._values = values
        self._traced = traced
        self._known = known

    def __getitem__(self, name: str) -> Value:
        value, dimensions = self._values[name], self._traced.get(name)
        return value if dimensions is None else replace(value, shape=substitute_sizes(dimensions, self._known))

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def shape_derived_values_of(opening: DynamicConversion, names: Iterable[str]) -> ShapeDerivedValues:
    """Return values by name, for the sizes of a replay.

    Args:
        opening: the model for all sizes.
        names: of sizes (`opening.sizes`) and of tables (`opening.tables`).
    """
    wanted = tuple(names)
    tables = [name for name in wanted if name not in opening.sizes]
    sizes = {name: opening.sizes[name] for name in wanted if name in opening.sizes}
    return ShapeDerivedValues(wanted, sizes, _tables(opening, tables) if tables else None)


def _tables(opening: DynamicConversion, names: Sequence[str]) -> ShapeDerivedTables:
    """The operations behind some tables, and the sizes that they read."""
    conversion = opening.conversion
    operand_of, model = conversion.operand_of, conversion.model
    wanted = [operand_of[name] for name in names]
    operations = sorted(opening.behind(wanted))
    read = {operand for operation in operations for operand in model.operations[operation].inputs}
    inputs = tuple(opening.given_sizes(read))
    part = conversion.part(operations, [operand_of[name] for name in inputs], wanted)
    return ShapeDerivedTables(part, {name: opening.sizes[name] for name in inputs}, tuple(names))
