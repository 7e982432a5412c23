"""Models with inputs, expected outputs and tolerances, and the process that runs them."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from random import Random
from types import MappingProxyType
from typing import Any

import numpy as np

from nnadapter.accuracy.tolerances import element_differences, tolerance_of
from nnadapter.drivers import Admission, Capability, Context, Execution, Program, SegmentModel, Supported, Unsupported
from nnadapter.drivers.isolation.isolated_device import TIME_LIMIT_S, IsolatedDevice
from nnadapter.errors import DeviceLostError, DeviceTimeoutError, NNAdapterError
from nnadapter.ir.model import Model
from nnadapter.ir.operand import Array, DataType, Operand, freeze
from nnadapter.records import dataclass, field, replace
from nnadapter.session.device import taking_ir
from nnadapter.testing.random_models.maker import RandomCase, check, outputs_of


class OutcomeKind(StrEnum):
    """Kind of a failed outcome."""

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
    """Outcome of a successful case."""


@dataclass(frozen=True, slots=True)
class SkippedOutcome:
    """Outcome of a case that is not for this device."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Data to reproduce a failure."""

    model: Any = None
    inputs: tuple[Array, ...] = ()
    expected: tuple[Array, ...] = ()
    got: tuple[Array, ...] = ()


@dataclass(frozen=True, slots=True)
class FailedOutcome:
    """Outcome of a failed case."""

    kind: OutcomeKind
    detail: str
    evidence: Evidence = Evidence()


Outcome = PassedOutcome | SkippedOutcome | FailedOutcome


class Precision(StrEnum):
    """Data type in which the device computes float32 nodes; it sets the tolerance."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


STEP = 1
"""Tolerance of 8-bit integers in onnx's tests: rounding of ties is undefined."""
_EIGHT_BITS = ("int8", "uint8")


def first_difference(got: Array, expected: Array, precision: Precision, *, steps: int = 0) -> str:
    """Describe the first element beyond the tolerance; empty if none. `steps` is the tolerance of 8-bit integers."""
    wrong = _wrong(got, expected, precision, steps)
    if not wrong.any():
        return ""
    where = tuple(int(axis[0]) for axis in np.nonzero(wrong)) if wrong.ndim else ()
    count = f"{int(wrong.sum())} of {wrong.size} elements are off"
    return f"{list(where)}: got {got[where]}, expected {expected[where]}; {count}"


def _wrong(got: Array, expected: Array, precision: Precision, steps: int) -> Array:
    name = expected.dtype.name
    allowed = steps if name in _EIGHT_BITS else 0
    return element_differences(got, expected, tolerance_of(name, DataType(precision.value), allowed)).tolerances > 1


Differ = Callable[[Sequence[Array]], str]
"""Function that describes a difference of results; empty if there is none."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """Model to test, with inputs, expected outputs and tolerances."""

    model: SegmentModel
    operations: tuple[str, ...]
    feeds: tuple[Array, ...]
    expected: tuple[Array, ...]
    differ: Differ
    refeed: Callable[[Sequence[Array]], Subject] | None = field(default=None, repr=False)
    """Function that returns the subject with other inputs; None if their expected outputs cannot be computed."""
    rebind: Callable[[], Subject] | None = field(default=None, repr=False)
    """Function that returns the subject with other names and constants; None if these cannot change."""

    @property
    def evidence(self) -> Evidence:
        return Evidence(model=self.model, inputs=self.feeds, expected=self.expected)

    def judge(self, got: Sequence[Array], changed_inputs: Sequence[int] = ()) -> FailedOutcome | None:
        evidence = replace(self.evidence, got=tuple(got))
        if changed_inputs:
            return FailedOutcome(
                OutcomeKind.CHANGED_INPUTS, f"input {changed_inputs[0]} changed during the run", evidence
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
        """Return the subject with halved floating-point inputs, or unchanged if their results are undefined."""
        if self.refeed is None:
            return self
        try:
            return self.refeed([np.asarray(feed / 2, feed.dtype) if _real(feed) else feed for feed in self.feeds])
        except (ArithmeticError, LookupError, ValueError):  # undefined results
            return self


def of_ir(case: RandomCase, precision: Precision) -> Subject:
    """Return a subject of a random model, which expects the results of the operations' definitions."""
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
    """Return a subject that expects these results, within the tolerance of `precision`.

    Devices of a lower precision than float32 may also round the inputs.
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
    differences = ((position, first_difference(*pair, precision, steps=1)) for position, pair in pairs)
    return next((f"output {position}{text}" for position, text in differences if text), "")


def _rounded(array: Array, precision: Precision) -> Array:
    coarse = DataType(precision.value).array_type
    return array.astype(coarse).astype(array.dtype) if array.dtype == np.float32 else array


def _real(array: Array) -> bool:
    return array.dtype.kind == "f"


def _more_nan(got: Array, expected: Array) -> bool:
    return _real(got) and bool((np.isnan(got) & ~np.isnan(expected.astype(got.dtype))).any())


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Device to test, and options of the tests."""

    device: str
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    precision: Precision = Precision.FLOAT32
    seed: int = 0
    time_limit_s: float = TIME_LIMIT_S
    short: bool = False


class CaseFailure(Exception):  # noqa: N818  an outcome, not an error
    """Failure that ends a case."""

    def __init__(self, failed: FailedOutcome) -> None:
        super().__init__(failed.detail)
        self.failed = failed


class Bench:
    """Device under test, in a process of its own.

    Raises:
        NNAdapterError: the device cannot be opened with these options.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._device: IsolatedDevice | None = None
        self._context: Context | None = None
        self.capability: Capability = self.device.capability
        self.notes: dict[str, Any] = {}

    @property
    def device(self) -> IsolatedDevice:
        if self._device is None or self._device.loss_reason:
            self.close()
            self._device = IsolatedDevice(self.settings.device, time_limit_s=self.settings.time_limit_s)
            try:
                self._context = self._taking_ir(self._device.create_context(self.settings.options))
            except NNAdapterError:
                self.close()
                raise
        return self._device

    @property
    def context(self) -> Context:
        _ = self.device
        assert self._context is not None
        return self._context

    def new_context(self) -> Context:
        return self._taking_ir(self.device.create_context(self.settings.options))

    def _taking_ir(self, context: Context) -> Context:
        return taking_ir(self._device.capability, context)[1] if self._device is not None else context

    def takes(self, model: SegmentModel) -> bool:
        return all(isinstance(verdict, Supported) for verdict in self.context.supported(model))

    def examine(self, subject: Subject) -> Outcome:
        refusal = self.refusal(subject)
        if refusal:
            return SkippedOutcome(refusal)
        with self.started(subject) as execution:
            self.run(subject, execution)
        return PassedOutcome()

    def refusal(self, subject: Subject) -> str:
        verdicts = self.context.supported(subject.model)
        if len(verdicts) != len(subject.operations):
            detail = f"got {len(verdicts)} verdicts, expected one for each of {len(subject.operations)} operations"
            raise _wrong_answer(subject, detail)
        for verdict, operation in zip(verdicts, subject.operations, strict=True):
            if not isinstance(verdict, (Supported, Unsupported)):
                detail = f"got {type(verdict).__name__} as verdict on {operation}, expected Supported or Unsupported"
                raise _wrong_answer(subject, detail)
            if isinstance(verdict, Unsupported):
                return f"{operation}: {verdict.detail}"
        return self.not_admitted(subject)

    def not_admitted(self, subject: Subject) -> str:
        """Return the reason if admission refuses the model, otherwise "". Raises CaseFailure for a wrong type."""
        admission = self.context.admit(subject.model)
        if not isinstance(admission, Admission):
            detail = f"got {type(admission).__name__} when asked to admit a model, expected an Admission"
            raise _wrong_answer(subject, detail)
        return admission.verdict.detail if isinstance(admission.verdict, Unsupported) else ""

    @contextmanager
    def compiled(self, subject: Subject, context: Context | None = None) -> Iterator[Program]:
        with blamed(OutcomeKind.DOES_NOT_COMPILE, subject, "compile raised"):
            program = (context or self.context).compile(subject.model)
        with closing(program):
            yield program

    @contextmanager
    def execution(self, subject: Subject, program: Program) -> Iterator[Execution]:
        with blamed(OutcomeKind.DOES_NOT_RUN, subject, "create_execution raised"):
            execution = program.create_execution()
        with closing(execution):
            yield execution

    @contextmanager
    def started(self, subject: Subject, context: Context | None = None) -> Iterator[Execution]:
        with self.compiled(subject, context) as program, self.execution(subject, program) as execution:
            yield execution

    def run(self, *pairs: Any, at_once: bool = False) -> None:
        """Run subjects, and compare results. `pairs` alternates subjects and their executions. Raises CaseFailure."""
        subjects, executions = pairs[::2], pairs[1::2]
        jobs = [(execution, subject.feeds) for subject, execution in zip(subjects, executions, strict=True)]
        with blamed(OutcomeKind.DOES_NOT_RUN, subjects[0], "compute raised"):
            computed = self.device.compute(jobs, at_once=at_once)
        for subject, computation in zip(subjects, computed, strict=True):
            failed = subject.judge(computation.results, computation.changed_inputs)
            if failed is not None:
                raise CaseFailure(failed)

    def close(self) -> None:
        device, self._device, self._context = self._device, None, None
        if device is not None:
            device.close()


def _wrong_answer(subject: Subject, detail: str) -> CaseFailure:
    return CaseFailure(FailedOutcome(OutcomeKind.WRONG_ANSWER, detail, Evidence(model=subject.model)))


def _loss(error: DeviceLostError) -> OutcomeKind:
    return OutcomeKind.HUNG if isinstance(error, DeviceTimeoutError) else OutcomeKind.CRASHED


@contextmanager
def blamed(kind: OutcomeKind, subject: Subject, prefix: str) -> Iterator[None]:
    """Raise CaseFailure for errors of the driver inside the `with` block."""
    try:
        yield
    except DeviceLostError as error:
        raise CaseFailure(FailedOutcome(_loss(error), str(error), subject.evidence)) from error
    except NNAdapterError as error:
        operations = ", ".join(dict.fromkeys(subject.operations))
        raise CaseFailure(FailedOutcome(kind, f"{prefix} {error} ({operations})", subject.evidence)) from error


@contextmanager
def closing(resource: Program | Execution | Context) -> Iterator[None]:
    """Close a resource at the end of the block, unless the device is lost."""
    try:
        yield
    finally:
        with contextlib.suppress(DeviceLostError):
            resource.close()


@dataclass(frozen=True, slots=True)
class Case:
    """Conformance case, reproducible by name, seed and device."""

    name: str
    act: Callable[[Bench, Random], Outcome]

    @property
    def group(self) -> str:
        return self.name.partition("/")[0]

    def run(self, bench: Bench) -> Outcome:
        try:
            return self.act(bench, Random(f"{bench.settings.seed}/{self.name}"))
        except CaseFailure as broken:
            return broken.failed
        except DeviceLostError as error:
            return FailedOutcome(_loss(error), str(error))
        except NNAdapterError as error:
            return FailedOutcome(OutcomeKind.WRONG_ANSWER, f"{type(error).__name__}: {error}")


Cases = Callable[[Bench], Iterator[Case]]
"""Function that yields the cases of one group for a device."""


_USUAL = Settings(device="")


def repeat_command(settings: Settings, name: str = "") -> str:
    """Return the shell command that repeats a case."""
    return shlex.join(_words(settings, name))


def _words(settings: Settings, name: str) -> Iterator[str]:
    yield from ("nnadapter", "conformance", settings.device)
    for option, value in settings.options.items():
        text = ",".join(value) if isinstance(value, (tuple, list)) else str(value)
        yield from ("--option", f"{settings.device}.{option}={text}")
    if settings.precision is not Precision.FLOAT32:
        yield from ("--precision", settings.precision.value)
    if settings.seed != _USUAL.seed:
        yield from ("--seed", str(settings.seed))
    if settings.time_limit_s != _USUAL.time_limit_s:
        yield from ("--time-limit", f"{settings.time_limit_s:g}")
    if settings.short:
        yield "--short"
    if name:
        yield from ("-k", name)
