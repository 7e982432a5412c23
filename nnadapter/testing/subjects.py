"""Models with inputs and expected outputs, the tolerances they are compared with, and outcomes of cases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any

import numpy as np

from nnadapter.accuracy.tolerances import distances, tolerance_of
from nnadapter.drivers.interface import SegmentModel
from nnadapter.ir.model import Model
from nnadapter.ir.operand import Array, DataType, Operand, freeze
from nnadapter.testing.random_models.maker import RandomCase
from nnadapter.testing.random_models.oracle import check, outputs_of


class OutcomeKind(StrEnum):
    """What a driver did wrong."""

    WRONG_VALUES = "wrong values"
    NOT_A_NUMBER = "NaN where there is a number"
    WRONG_TYPE = "wrong data type"
    WRONG_SHAPE = "wrong shape"
    WRONG_COUNT = "wrong number of outputs"
    CHANGED_INPUTS = "writes to its inputs"
    CHANGED_RESULTS = "writes to results that it gave away"
    CRASHED = "crashes"
    HUNG = "gives no answer in time"
    DOES_NOT_COMPILE = "says that it takes what it does not compile"
    DOES_NOT_RUN = "fails while it computes"
    WRONG_ANSWER = "answers wrongly when asked"
    ACCEPTS_INVALID = "takes an invalid model"
    ACCEPTS_DAMAGED = "does not refuse a damaged program as it should"
    LEAKS = "leaks"


@dataclass(frozen=True, slots=True)
class PassedOutcome:
    """It did what it should."""


@dataclass(frozen=True, slots=True)
class SkippedOutcome:
    """The case is not for this device."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What it takes to see a failure with one's own eyes."""

    model: Any = None
    """In the form that the device takes."""
    inputs: tuple[Array, ...] = ()
    expected: tuple[Array, ...] = ()
    got: tuple[Array, ...] = ()


@dataclass(frozen=True, slots=True)
class FailedOutcome:
    """It did not."""

    kind: OutcomeKind
    detail: str
    """One sentence with what was found and what was expected."""
    evidence: Evidence = Evidence()


Outcome = PassedOutcome | SkippedOutcome | FailedOutcome
"""What became of a case."""


class Precision(StrEnum):
    """In what a device computes float32: one that says float16 or bfloat16 is held to what that can do."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


STEP = 1
"""Steps that an 8-bit integer may be off in onnx's operator tests: rounding of a half is not laid down for devices."""
_EIGHT_BITS = ("int8", "uint8")


def furthest(got: Array, expected: Array, precision: Precision, *, steps: int = 0) -> str:
    """Say where `got` is beyond the band around `expected`, of the same type and shape; empty if nowhere.

    Args:
        got: what a device computed.
        expected: what is right.
        precision: in what the device computes.
        steps: how far 8-bit integers may be off.
    """
    wrong = _wrong(got, expected, precision, steps)
    if not wrong.any():
        return ""
    where = tuple(int(axis[0]) for axis in np.nonzero(wrong)) if wrong.ndim else ()
    count = f"{int(wrong.sum())} of {wrong.size} elements are off"
    return f"{list(where)}: got {got[where]}, expected {expected[where]}; {count}"


def _wrong(got: Array, expected: Array, precision: Precision, steps: int) -> Array:
    name = expected.dtype.name
    allowed = steps if name in _EIGHT_BITS else 0
    return distances(got, expected, tolerance_of(name, DataType(precision.value), allowed)).tolerances > 1


Differ = Callable[[Sequence[Array]], str]
"""Says how results of the right number, types and shapes differ from what is right; empty if they do not."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """One model for one device."""

    model: SegmentModel
    operations: tuple[str, ...]
    """For every operation (node), what it is."""
    feeds: tuple[Array, ...]
    expected: tuple[Array, ...]
    differ: Differ
    refeed: Callable[[Sequence[Array]], Subject] | None = field(default=None, repr=False)
    """The same model with other contents of its inputs, where they can be computed."""
    rebind: Callable[[], Subject] | None = field(default=None, repr=False)
    """A model that differs in names, and in what its constants hold; None where that is not to be had."""

    def judge(self, got: Sequence[Array], changed_inputs: Sequence[int] = ()) -> FailedOutcome | None:
        """What is wrong with the results; None if nothing is."""
        evidence = Evidence(model=self.model, inputs=self.feeds, expected=self.expected, got=tuple(got))
        if changed_inputs:
            return FailedOutcome(
                OutcomeKind.CHANGED_INPUTS, f"input {changed_inputs[0]} holds something else afterwards", evidence
            )
        if len(got) != len(self.expected):
            return FailedOutcome(
                OutcomeKind.WRONG_COUNT, f"got {len(got)} outputs, expected {len(self.expected)}", evidence
            )
        for position, (output, expected) in enumerate(zip(got, self.expected, strict=True)):
            if output.dtype != expected.dtype and expected.dtype.kind not in "OUS":
                text = f"output {position} is {output.dtype}, expected {expected.dtype}"
                return FailedOutcome(OutcomeKind.WRONG_TYPE, text, evidence)
            if output.shape != expected.shape:
                text = f"output {position} is {list(output.shape)}, expected {list(expected.shape)}"
                return FailedOutcome(OutcomeKind.WRONG_SHAPE, text, evidence)
        text = self.differ(got)
        if not text:
            return None
        made_of_nothing = any(_more_nan(*pair) for pair in zip(got, self.expected, strict=True))
        return FailedOutcome(OutcomeKind.NOT_A_NUMBER if made_of_nothing else OutcomeKind.WRONG_VALUES, text, evidence)

    def varied(self) -> Subject:
        """The same model with its floating-point inputs halved; itself where that is not to be had."""
        if self.refeed is None:
            return self
        try:
            return self.refeed([np.asarray(feed / 2, feed.dtype) if _real(feed) else feed for feed in self.feeds])
        except (ArithmeticError, LookupError, ValueError):  # an operation is not defined for these
            return self


def of_ir(case: RandomCase, precision: Precision) -> Subject:
    """A random model, with what the definition makes of it."""
    return _of_model(precision, case.model, case.feeds)


def _of_model(precision: Precision, model: Model, feeds: Sequence[Array]) -> Subject:
    return Subject(
        model=model,
        operations=tuple(operation.type for operation in model.operations),
        feeds=tuple(feeds),
        expected=tuple(outputs_of(model, feeds)),
        differ=partial(_differ_by_noise, model, tuple(feeds), precision),
        refeed=partial(_of_model, precision, model),
        rebind=partial(_with_other_constants, precision, model, feeds),
    )


def _with_other_constants(precision: Precision, model: Model, feeds: Sequence[Array]) -> Subject:
    """Elements in the reverse order: as good as the ones that were there, wherever they are indices or variances."""
    operands = tuple(
        Operand(f"other {operand.name}", operand.type, operand.lifetime, _reversed(operand.value))
        for operand in model.operands
    )
    other = Model(operands, model.operations, model.inputs, model.outputs, model.covarying_number_groups)
    return _of_model(precision, other, feeds)


def _reversed(value: Array | None) -> Array | None:
    return None if value is None else freeze(value.reshape(-1)[::-1].reshape(value.shape))


def _differ_by_noise(model: Model, feeds: Sequence[Array], precision: Precision, got: Sequence[Array]) -> str:
    try:
        check(model, feeds, got, precision=DataType(precision.value))
    except AssertionError as error:
        return " ".join(str(error).split())
    return ""


def by_band(
    model: SegmentModel,
    operations: Sequence[str],
    feeds: Sequence[Array],
    expected: Sequence[Array],
    precision: Precision,
    refeed: Callable[[Sequence[Array]], Subject] | None = None,
) -> Subject:
    """A model with results from elsewhere, compared by the table of bands.

    A device that computes float32 more coarsely may round what it is given: then what the definition makes of that is
    right as well.
    """

    def differ(got: Sequence[Array]) -> str:
        text = _differ_by_band(got, expected, precision)
        if not text or precision is Precision.FLOAT32 or not isinstance(model, Model):
            return text
        of_rounded = outputs_of(model, [_rounded(feed, precision) for feed in feeds])
        return _differ_by_band(got, of_rounded, precision) and text

    return Subject(
        model=model,
        operations=tuple(operations),
        feeds=tuple(feeds),
        expected=tuple(expected),
        differ=differ,
        refeed=refeed,
    )


def _differ_by_band(got: Sequence[Array], expected: Sequence[Array], precision: Precision) -> str:
    pairs = enumerate(zip(got, expected, strict=True))
    differences = ((position, furthest(*pair, precision, steps=1)) for position, pair in pairs)
    return next((f"output {position}{text}" for position, text in differences if text), "")


def _rounded(array: Array, precision: Precision) -> Array:
    """What is left of float32 in a coarser type."""
    coarse = DataType(precision.value).array_type
    return array.astype(coarse).astype(array.dtype) if array.dtype == np.float32 else array


def _real(array: Array) -> bool:
    return array.dtype.kind == "f"


def _more_nan(got: Array, expected: Array) -> bool:
    return _real(got) and bool((np.isnan(got) & ~np.isnan(expected.astype(got.dtype))).any())
