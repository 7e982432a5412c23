"""Conformance cases for devices that take the adapter IR."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from random import Random
from types import MappingProxyType

from nnadapter.drivers.capability import ModelForm, OperationSupport
from nnadapter.errors import DeviceLostError, InvalidModelError, NNAdapterError
from nnadapter.ir import ABSENT, SCHEMAS, DataType, Lifetime, Model, submodel, verify
from nnadapter.ir.operations import BROUGHT
from nnadapter.records import dataclass
from nnadapter.testing.mutations import MUTATIONS
from nnadapter.testing.random_models.maker import Maker, RandomCase
from nnadapter.testing.random_models.recipes import UNREACHED, attempt
from nnadapter.testing.subjects import (
    Bench,
    Case,
    Evidence,
    FailedOutcome,
    Outcome,
    OutcomeKind,
    PassedOutcome,
    SkippedOutcome,
    closing,
    of_ir,
)

_ATTEMPTS = 40
_USUAL = (DataType.FLOAT32, DataType.FLOAT32, DataType.FLOAT32, DataType.FLOAT16, *sorted(DataType))


@dataclass(frozen=True, slots=True, kw_only=True)
class OperandShapes:
    """Sizes and ranks of new operands."""

    sizes: tuple[int, ...] = (1, 2, 3, 4, 6)
    ranks: tuple[int, ...] = (0, 1, 2, 2, 3, 3, 4, 4, 4, 5)


USUAL = OperandShapes()
BOUNDARIES: Mapping[str, OperandShapes] = MappingProxyType(
    {
        "zero": OperandShapes(sizes=(0, 0, 1, 3), ranks=(1, 2, 3, 4)),
        "one": OperandShapes(sizes=(1,)),
        "odd": OperandShapes(sizes=(5, 7, 11, 13), ranks=(1, 2, 3)),
        "large": OperandShapes(sizes=(1, 2, 3, 251, 1021), ranks=(1, 2, 3)),
        "high-rank": OperandShapes(sizes=(1, 2), ranks=(6, 7, 8)),
    }
)
"""Name -> shapes that break drivers."""


def operation_types(bench: Bench) -> Sequence[str]:
    """Return the operations in the device's support table; without a table, all."""
    listed = {row.type for row in _rows(bench)}
    brought = sorted(type_ for type_ in listed if type_ not in SCHEMAS and BROUGHT.get(type_))
    return [*(type_ for type_ in SCHEMAS if type_ not in UNREACHED and (not listed or type_ in listed)), *brought]


def of_one_operation(bench: Bench, random: Random, type_: str, shapes: OperandShapes = USUAL) -> RandomCase | None:
    """Return a model of one supported operation, or None if no attempt succeeds."""
    for _ in range(_ATTEMPTS):
        maker = _maker(bench, random, [type_], shapes)
        if attempt(maker, type_, partial(_accepts, bench)) and _has(maker, shapes):
            return maker.finish(produced_only=True)
    return None


def of_many(bench: Bench, random: Random, operations: int) -> RandomCase | None:
    """Return a model of up to `operations` supported operations, or None if no attempt succeeds."""
    types = _types_taken(bench)
    if not types:
        return None
    maker = _maker(bench, random, types, USUAL)
    chosen = random.sample(types, min(len(types), random.choice((3, 6, 12))))
    for _ in range(3 * operations):
        attempt(maker, random.choice(chosen), partial(_accepts, bench))
        if len(maker.produced_operands) >= operations:
            break
    return maker.finish(produced_only=True) if maker.produced_operands else None


def _accepts(bench: Bench, model: Model) -> bool:
    position = len(model.operations) - 1
    operation = model.operations[position]
    read = [operand for operand in dict.fromkeys(operation.inputs) if operand != ABSENT]
    inputs = [operand for operand in read if model.operands[operand].lifetime is not Lifetime.CONSTANT]
    return bench.takes(submodel(model, [position], inputs, operation.outputs))


def _types_taken(bench: Bench) -> list[str]:
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
    listed = {dtype for row in _rows(bench) if row.type in types for dtype in row.dtypes}
    return random.sample([dtype for dtype in _USUAL if not listed or dtype in listed] * 3, 3)


def _rows(bench: Bench) -> Sequence[OperationSupport]:
    return bench.capability.operations if bench.capability.form is ModelForm.IR else ()


def _has(maker: Maker, shapes: OperandShapes) -> bool:
    types = [maker.type_of(operand) for operand in maker.read if operand != ABSENT]
    if 0 in shapes.sizes:
        return any(0 in type_.dimensions for type_ in types)
    return not types or any(type_.rank >= min(shapes.ranks) for type_ in types)


UNSUPPORTED = "the device supports no such operation"
_LARGEST_GRAPH = 12


def operations(bench: Bench) -> Iterator[Case]:
    """Yield cases of each operation with usual shapes."""
    for type_ in operation_types(bench):
        for number in range(1 if bench.settings.short else 4):
            yield Case(f"operations/{type_}/{number}", partial(_operation, type_=type_, shapes=USUAL))


def boundaries(bench: Bench) -> Iterator[Case]:
    """Yield cases of each operation with each boundary shape."""
    kinds = ("zero", "odd") if bench.settings.short else tuple(BOUNDARIES)
    for type_ in operation_types(bench):
        for kind in kinds:
            yield Case(f"boundary/{kind}/{type_}", partial(_operation, type_=type_, shapes=BOUNDARIES[kind]))


def graphs(bench: Bench) -> Iterator[Case]:
    """Yield cases of random graphs."""
    for number in range(20 if bench.settings.short else 120):
        yield Case(f"graphs/random/{number}", _graph)


def refusals(bench: Bench) -> Iterator[Case]:
    """Yield cases of invalid models, which must be refused."""
    for family in MUTATIONS:
        for number in range(1 if bench.settings.short else 4):
            yield Case(f"refusals/{family}/{number}", partial(_refusal, family=family))


def _operation(bench: Bench, random: Random, type_: str, shapes: OperandShapes) -> Outcome:
    return _examined(bench, of_one_operation(bench, random, type_, shapes))


def _graph(bench: Bench, random: Random) -> Outcome:
    return _examined(bench, of_many(bench, random, random.randint(2, _LARGEST_GRAPH)))


def _examined(bench: Bench, case: RandomCase | None) -> Outcome:
    if case is None:
        return SkippedOutcome(UNSUPPORTED)
    return bench.examine(of_ir(case, bench.settings.precision))


def _refusal(bench: Bench, random: Random, family: str) -> Outcome:
    for _ in range(8):
        case = of_many(bench, random, random.randint(2, 6))
        spoilt = None if case is None else _spoilt(random, family, case.model)
        if spoilt is not None:
            return refused(bench, spoilt, family.replace("_", " "))
    return SkippedOutcome("no model that the device supports can be mutated in this way")


def _spoilt(random: Random, family: str, model: Model) -> Model | None:
    try:
        mutation = MUTATIONS[family](random, model)
    except (IndexError, ValueError):  # no choice
        return None
    if mutation is None:
        return None
    try:
        verify(mutation[0])
    except InvalidModelError:
        return mutation[0]
    return None


def refused(bench: Bench, model: object, defect: str) -> Outcome:
    """Check that the device refuses a model: its operations, the segment or its compilation."""
    try:
        context = bench.context
        if not bench.takes(model) or not context.admit(model).verdict:
            return PassedOutcome()
        with closing(context.compile(model)):
            detail = f"it compiled an invalid model ({defect}), expected an InvalidModelError"
            return FailedOutcome(OutcomeKind.ACCEPTS_INVALID, detail, Evidence(model=model))
    except DeviceLostError:
        raise
    except NNAdapterError:
        return PassedOutcome()
