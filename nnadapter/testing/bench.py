"""Device under test in a process of its own, the cases that run on it, and commands that repeat them."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from types import MappingProxyType
from typing import Any

from nnadapter.drivers.capability import Capability
from nnadapter.drivers.interface import Admission, Context, Execution, Program, SegmentModel
from nnadapter.drivers.isolation.isolated_device import TIME_LIMIT_S, IsolatedDevice
from nnadapter.errors import DeviceLostError, DeviceTimeoutError, NNAdapterError
from nnadapter.session.device import taking_ir
from nnadapter.testing.subjects import (
    Evidence,
    FailedOutcome,
    Outcome,
    OutcomeKind,
    PassedOutcome,
    Precision,
    SkippedOutcome,
    Subject,
)
from partition.graph import Supported, Unsupported


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is tested, and how."""

    device: str
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Of the device's context."""
    precision: Precision = Precision.FLOAT32
    """In what the device computes."""
    seed: int = 0
    """Of everything that is random."""
    time_limit_s: float = TIME_LIMIT_S
    """Seconds that one request to the driver may take."""
    short: bool = False
    """Fewer cases of each kind: for every change, where the whole kit is for a release."""


class CaseFailure(Exception):  # noqa: N818  it is an outcome on its way, not an error
    """Ends a case with what the driver did wrong."""

    def __init__(self, failed: FailedOutcome) -> None:
        super().__init__(failed.detail)
        self.failed = failed


class Bench:
    """Holds the device of a run of the kit.

    Raises:
        NNAdapterError: the device does not open with these options, which is no case but the end.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._device: IsolatedDevice | None = None
        self._context: Context | None = None
        self.capability: Capability = self.device.capability
        """What the device says of itself."""
        self.notes: dict[str, Any] = {}
        """What cases found out and others may use, by name."""

    @property
    def device(self) -> IsolatedDevice:
        """The device, open."""
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
        """A context that cases share; it takes adapter IR, whatever its device does."""
        _ = self.device
        assert self._context is not None
        return self._context

    def new_context(self) -> Context:
        """A context of its own, which takes adapter IR as well."""
        return self._taking_ir(self.device.create_context(self.settings.options))

    def _taking_ir(self, context: Context) -> Context:
        return taking_ir(self._device.capability, context)[1] if self._device is not None else context

    def takes(self, model: SegmentModel) -> bool:
        """Whether the device says that it takes every operation of a model."""
        return all(isinstance(verdict, Supported) for verdict in self.context.supported(model))

    def examine(self, subject: Subject) -> Outcome:
        """Put a model before the device: asked, compiled, computed, compared."""
        refusal = self.refusal(subject)
        if refusal:
            return SkippedOutcome(refusal)
        with self.compiled(subject) as program, self.execution(subject, program) as execution:
            self.run(subject, execution)
        return PassedOutcome()

    def refusal(self, subject: Subject) -> str:
        """Why the device does not take a model; empty if it does. Raises `CaseFailure` for an answer that is none."""
        verdicts = self.context.supported(subject.model)
        if len(verdicts) != len(subject.operations):
            detail = f"got {len(verdicts)} verdicts, expected one for each of {len(subject.operations)} operations"
            raise CaseFailure(FailedOutcome(OutcomeKind.WRONG_ANSWER, detail, Evidence(model=subject.model)))
        for verdict, operation in zip(verdicts, subject.operations, strict=True):
            if not isinstance(verdict, (Supported, Unsupported)):
                detail = f"got {type(verdict).__name__} as verdict on {operation}, expected Supported or Unsupported"
                raise CaseFailure(FailedOutcome(OutcomeKind.WRONG_ANSWER, detail, Evidence(model=subject.model)))
            if isinstance(verdict, Unsupported):
                return f"{operation}: {verdict.detail}"
        return self.not_admitted(subject)

    def not_admitted(self, subject: Subject) -> str:
        """Why the device does not admit a model; empty if it does. Raises `CaseFailure` for an answer that is none."""
        admission = self.context.admit(subject.model)
        if not isinstance(admission, Admission):
            detail = f"got {type(admission).__name__} when asked to admit a model, expected an Admission"
            raise CaseFailure(FailedOutcome(OutcomeKind.WRONG_ANSWER, detail, Evidence(model=subject.model)))
        return admission.verdict.detail if isinstance(admission.verdict, Unsupported) else ""

    @contextmanager
    def compiled(self, subject: Subject, context: Context | None = None) -> Iterator[Program]:
        """A program of what the device said it takes; closed afterwards."""
        with blamed(OutcomeKind.DOES_NOT_COMPILE, subject, "compile raised"):
            program = (context or self.context).compile(subject.model)
        with closing(program):
            yield program

    @contextmanager
    def execution(self, subject: Subject, program: Program) -> Iterator[Execution]:
        """An execution; closed afterwards."""
        with blamed(OutcomeKind.DOES_NOT_RUN, subject, "create_execution raised"):
            execution = program.create_execution()
        with closing(execution):
            yield execution

    def run(self, *pairs: Any, at_once: bool = False) -> None:
        """Compute subjects with executions, given in turn, and compare. Raises `CaseFailure` for what is wrong."""
        subjects, executions = pairs[::2], pairs[1::2]
        jobs = [(execution, subject.feeds) for subject, execution in zip(subjects, executions, strict=True)]
        with blamed(OutcomeKind.DOES_NOT_RUN, subjects[0], "compute raised"):
            computed = self.device.compute(jobs, at_once=at_once)
        for subject, computation in zip(subjects, computed, strict=True):
            failed = subject.judge(computation.results, computation.changed_inputs)
            if failed is not None:
                raise CaseFailure(failed)

    def close(self) -> None:
        """End the device's process."""
        device, self._device, self._context = self._device, None, None
        if device is not None:
            device.close()


@contextmanager
def blamed(kind: OutcomeKind, subject: Subject, prefix: str) -> Iterator[None]:
    """Turn what the driver raises within into `CaseFailure`; a lost device passes, as the case itself handles it."""
    evidence = Evidence(model=subject.model, inputs=subject.feeds, expected=subject.expected)
    try:
        yield
    except DeviceLostError as error:
        lost = OutcomeKind.HUNG if isinstance(error, DeviceTimeoutError) else OutcomeKind.CRASHED
        raise CaseFailure(FailedOutcome(lost, str(error), evidence)) from error
    except NNAdapterError as error:
        operations = ", ".join(dict.fromkeys(subject.operations))
        raise CaseFailure(FailedOutcome(kind, f"{prefix} {error} ({operations})", evidence)) from error


@contextmanager
def closing(resource: Program | Execution | Context) -> Iterator[None]:
    """Close what was made, if its device still lives."""
    try:
        yield
    finally:
        with contextlib.suppress(DeviceLostError):
            resource.close()


@dataclass(frozen=True, slots=True)
class Case:
    """One case. The same name, seed and device give the same case again."""

    name: str
    """`group/what/number`."""
    act: Callable[[Bench, Random], Outcome]

    @property
    def group(self) -> str:
        """The first part of its name."""
        return self.name.partition("/")[0]

    def run(self, bench: Bench) -> Outcome:
        """Do it; whatever the driver does, something comes of it."""
        try:
            return self.act(bench, Random(f"{bench.settings.seed}/{self.name}"))
        except CaseFailure as broken:
            return broken.failed
        except DeviceLostError as error:
            return FailedOutcome(
                OutcomeKind.HUNG if isinstance(error, DeviceTimeoutError) else OutcomeKind.CRASHED, str(error)
            )
        except NNAdapterError as error:
            return FailedOutcome(OutcomeKind.WRONG_ANSWER, f"{type(error).__name__}: {error}")


Cases = Callable[[Bench], Iterator[Case]]
"""A group: the cases that there are for a device, made when they are run."""


_USUAL = Settings(device="")


def repeat_command(settings: Settings, name: str = "") -> str:
    """The words that a shell takes."""
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
