"""Groups for devices that take the adapter IR: operations, boundary shapes, random graphs, invalid models."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from random import Random

from nnadapter.errors import DeviceLostError, InvalidModelError, NNAdapterError
from nnadapter.ir.model import Model
from nnadapter.ir.verifying import verify
from nnadapter.testing.bench import Bench, closing
from nnadapter.testing.case import Case
from nnadapter.testing.ir_models import BOUNDARIES, USUAL, OperandShapes, of_many, of_one_operation, operation_types
from nnadapter.testing.mutations.families import MUTATIONS
from nnadapter.testing.outcomes import Evidence, FailedOutcome, Outcome, OutcomeKind, PassedOutcome, SkippedOutcome
from nnadapter.testing.subjects import of_ir

_NOT_TAKEN = "the device takes no such operation"
_LARGEST_GRAPH = 12


def operations(bench: Bench) -> Iterator[Case]:
    """Each operation of the schema table, with usual shapes."""
    for type_ in operation_types(bench):
        for number in range(1 if bench.settings.short else 4):
            yield Case(f"operations/{type_}/{number}", partial(_operation, type_=type_, shapes=USUAL))


def boundaries(bench: Bench) -> Iterator[Case]:
    """Each operation, with each kind of unusual shapes."""
    kinds = ("zero", "odd") if bench.settings.short else tuple(BOUNDARIES)
    for type_ in operation_types(bench):
        for kind in kinds:
            yield Case(f"boundary/{kind}/{type_}", partial(_operation, type_=type_, shapes=BOUNDARIES[kind]))


def graphs(bench: Bench) -> Iterator[Case]:
    """Random graphs of what the device takes."""
    for number in range(20 if bench.settings.short else 120):
        yield Case(f"graphs/random/{number}", _graph)


def refusals(bench: Bench) -> Iterator[Case]:
    """Valid models that the device takes, spoilt in one way."""
    for family in MUTATIONS:
        for number in range(1 if bench.settings.short else 4):
            yield Case(f"refusals/{family}/{number}", partial(_refusal, family=family))


def _operation(bench: Bench, random: Random, type_: str, shapes: OperandShapes) -> Outcome:
    case = of_one_operation(bench, random, type_, shapes)
    return SkippedOutcome(_NOT_TAKEN) if case is None else bench.examine(of_ir(case, bench.settings.precision))


def _graph(bench: Bench, random: Random) -> Outcome:
    case = of_many(bench, random, random.randint(2, _LARGEST_GRAPH))
    return SkippedOutcome(_NOT_TAKEN) if case is None else bench.examine(of_ir(case, bench.settings.precision))


def _refusal(bench: Bench, random: Random, family: str) -> Outcome:
    for _ in range(8):
        case = of_many(bench, random, random.randint(2, 6))
        spoilt = None if case is None else _spoilt(random, family, case.model)
        if spoilt is not None:
            return refused(bench, spoilt, family.replace("_", " "))
    return SkippedOutcome("no model that the device takes can be spoilt in this way")


def _spoilt(random: Random, family: str, model: Model) -> Model | None:
    try:
        mutation = MUTATIONS[family](random, model)
    except (IndexError, ValueError):  # there is nothing to choose from
        return None
    if mutation is None:
        return None
    try:
        verify(mutation[0])
    except InvalidModelError:
        return mutation[0]
    return None


def refused(bench: Bench, model: object, defect: str) -> Outcome:
    """Whether the device refuses a model: by a verdict, when it is asked to admit it, or when it compiles."""
    try:
        context = bench.context
        if not bench.takes(model) or not context.admit(model).verdict:
            return PassedOutcome()
        with closing(context.compile(model)):
            detail = f"it compiled a model that contradicts itself ({defect}), expected an InvalidModelError"
            return FailedOutcome(OutcomeKind.ACCEPTS_INVALID, detail, Evidence(model=model))
    except DeviceLostError:
        raise
    except NNAdapterError:
        return PassedOutcome()
