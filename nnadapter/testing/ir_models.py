"""Random models of the adapter IR that a device takes: of one operation, with unusual shapes, and whole graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import MappingProxyType

from nnadapter.drivers.capability import ModelForm, OperationSupport
from nnadapter.ir.extract import submodel
from nnadapter.ir.model import ABSENT, Model
from nnadapter.ir.operand import DataType, Lifetime
from nnadapter.ir.operations import BROUGHT, SCHEMAS
from nnadapter.testing.bench import Bench
from nnadapter.testing.random_models.maker import Maker, RandomCase
from nnadapter.testing.random_models.recipes import FROM_SCHEMA, RECIPES, UNREACHED

_ATTEMPTS = 40
"""Tries of one operation before a device is taken not to take it."""
_USUAL = (DataType.FLOAT32, DataType.FLOAT32, DataType.FLOAT32, DataType.FLOAT16, *sorted(DataType))


@dataclass(frozen=True, slots=True, kw_only=True)
class OperandShapes:
    """Of what fresh operands are made."""

    sizes: tuple[int, ...] = (1, 2, 3, 4, 6)
    ranks: tuple[int, ...] = (0, 1, 2, 2, 3, 3, 4, 4, 4, 5)


USUAL = OperandShapes()
"""Small sizes, up to 5 axes."""
BOUNDARIES: Mapping[str, OperandShapes] = MappingProxyType(
    {
        "zero": OperandShapes(sizes=(0, 0, 1, 3), ranks=(1, 2, 3, 4)),
        "one": OperandShapes(sizes=(1,)),
        "odd": OperandShapes(sizes=(5, 7, 11, 13), ranks=(1, 2, 3)),
        "large": OperandShapes(sizes=(1, 2, 3, 251, 1021), ranks=(1, 2, 3)),
        "high-rank": OperandShapes(sizes=(1, 2), ranks=(6, 7, 8)),
    }
)
"""Shapes at which drivers go wrong, by name."""


def operation_types(bench: Bench) -> Sequence[str]:
    """Operations that the device may take: those of its own table, or all of the schema table if it has none of them.

    The table of a device that takes ONNX names ops, and says nothing of operations.
    """
    listed = {row.type for row in _rows(bench)}
    brought = sorted(type_ for type_ in listed if type_ not in SCHEMAS and BROUGHT.get(type_))
    return [*(type_ for type_ in SCHEMAS if type_ not in UNREACHED and (not listed or type_ in listed)), *brought]


def of_one_operation(bench: Bench, random: Random, type_: str, shapes: OperandShapes = USUAL) -> RandomCase | None:
    """A model of one operation that the device takes; None if no try gave one."""
    recipe, accept = RECIPES.get(type_, FROM_SCHEMA), accepted_by(bench)
    for _ in range(_ATTEMPTS):
        maker = _maker(bench, random, [type_], shapes)
        if maker.attempt(type_, recipe, accept) and _has(maker, shapes):
            return maker.finish(produced_only=True)
    return None


def of_many(bench: Bench, random: Random, operations: int) -> RandomCase | None:
    """A model of up to so many operations that the device takes; None if it takes none."""
    types = _types_taken(bench)
    if not types:
        return None
    maker, accept = _maker(bench, random, types, USUAL), accepted_by(bench)
    chosen = random.sample(types, min(len(types), random.choice((3, 6, 12))))
    for _ in range(3 * operations):
        type_ = random.choice(chosen)
        maker.attempt(type_, RECIPES.get(type_, FROM_SCHEMA), accept)
        if len(maker.made) >= operations:
            break
    return maker.finish(produced_only=True) if maker.made else None


def accepted_by(bench: Bench) -> Callable[[Model], bool]:
    """Whether the device takes the last operation of a model."""

    def accept(model: Model) -> bool:
        position = len(model.operations) - 1
        operation = model.operations[position]
        read = [operand for operand in dict.fromkeys(operation.inputs) if operand != ABSENT]
        inputs = [operand for operand in read if model.operands[operand].lifetime is not Lifetime.CONSTANT]
        return bench.takes(submodel(model, [position], inputs, operation.outputs))

    return accept


def _types_taken(bench: Bench) -> list[str]:
    """Operations of which the device takes one in a few tries, found out once."""
    if "types" not in bench.notes:
        fits = [type_ for type_ in operation_types(bench) if of_one_operation(bench, Random(type_), type_)]
        bench.notes["types"] = fits
    return list(bench.notes["types"])


def _maker(bench: Bench, random: Random, types: Sequence[str], shapes: OperandShapes) -> Maker:
    maker = Maker(random, _dtypes(bench, random, types), shapes.sizes, shapes.ranks)
    for _ in range(random.choice((1, 1, 2, 3))):
        maker.fresh_of(random.choice(maker.dtypes), maker.dimensions(), 0.1)
    return maker


def _dtypes(bench: Bench, random: Random, types: Sequence[str]) -> list[DataType]:
    """Three data types that the device lists for these operations, float32 more often."""
    listed = {dtype for row in _rows(bench) if row.type in types for dtype in row.dtypes}
    return random.sample([dtype for dtype in _USUAL if not listed or dtype in listed] * 3, 3)


def _rows(bench: Bench) -> Sequence[OperationSupport]:
    return bench.capability.operations if bench.capability.form is ModelForm.IR else ()


def _has(maker: Maker, shapes: OperandShapes) -> bool:
    """Whether the operation met the shapes in question: some of its operands were at hand from elsewhere."""
    types = [maker.type_of(operand) for operand in maker.read if operand != ABSENT]
    if 0 in shapes.sizes:
        return any(0 in type_.dimensions for type_ in types)
    return not types or any(type_.rank >= min(shapes.ranks) for type_ in types)
