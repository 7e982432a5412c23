"""The one tree of exceptions.

    NNAdapterError
    ├── InvalidModelError        the model: not ONNX, truncated, contradicts itself
    │   ├── ModelFileError       the model's file or its external data cannot be read
    │   └── CompiledModelError   a compiled model: damaged, of a newer version, or not for what it is asked here
    ├── InvalidInputError        the caller: a feed that is missing, superfluous, or of the wrong type or shape
    │   ├── DonatedValueError         a value on a device that was donated to another run, and is gone
    │   ├── InputTypeError       a feed of the wrong data type
    │   ├── InputValueError      a feed with an index, a length or a count out of its range
    │   └── MissingInputError    a feed that is not there
    ├── InvalidOptionError       the caller: an option, a rule or a device's option that does not exist or does not fit
    │   ├── RulesError           rules that cannot be read, contradict each other, or cannot be kept
    │   ├── PlanFileError        a plan file that cannot be read or written
    │   ├── ReportFileError      an old report that cannot be read
    │   └── FaultScriptError     a script of faults, for the device faulty, that cannot be read or does not fit
    ├── DeviceNotFoundError      the caller: a device nobody offers
    ├── MissingExtraError        the installation: a package that an extra brings is not there
    ├── DeviceUnavailableError   the machine: the device is known and cannot be used here
    │   ├── DeviceOpeningError   the driver: it failed when the device was opened, or was to give a context
    │   └── MissingDeviceExtraError  the installation: the device's package is not there; a MissingExtraError as well
    ├── NotDelegatedError        the policy: fallback is forbidden and something would have to fall back
    ├── DriverError              the driver: it broke the interface or a promise
    │   ├── CompilationError     it said yes and could not compile
    │   └── ExecutionError       a compiled program failed while it ran
    │       ├── AccuracyError    what it computed was compared with the CPU, and is wrong
    │       ├── TransientError   it failed now; the same may go well when it is repeated
    │       └── DeviceLostError  the device is gone; nothing on it can be used again
    │           └── DeviceTimeoutError  it gave no answer in time, and was given up
    ├── PassError                the pass: it changed what a model computes, or broke its form
    ├── IncompatibleProgramError a serialized program is damaged, or of another version, device or options
    ├── StoredFileError          a file that is kept between sessions is damaged, or of another version
    ├── OutOfMemoryError         the device: no room
    ├── CancelledError           the caller: it asked to stop
    │   └── DeadlineExceededError  the run was not done in time
    └── ClosedError              the caller: the session was closed before

and four warnings:

    FallbackWarning              something that a device should have done went to the CPU
    DriverWarning                a driver did something wrong that cost nothing
    CacheWarning                 something is wrong with a cache, so that work is done again
    ConversionWarning            a model was converted, and may be another than it was

Every message says what failed, which, what was got and expected, and what to do next. What a program may want
to know is in fields, not in the text: errors about a device name it, the `phase` in which it failed (one of `PHASES`),
and the segment and nodes, where it got that far.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from partition.graph import Unsupported

PHASES = ("open", "context", "judge", "admit", "compile", "deserialize", "create", "run", "close")
"""What a driver is asked for, in the order in which a session asks."""


class NNAdapterError(Exception):
    """The root: every error that this package raises on purpose."""


class InvalidModelError(NNAdapterError):
    """The model is at fault: it is not ONNX, is truncated, or contradicts itself."""


class ModelFileError(InvalidModelError):
    """The model's file, or a file of external data that it names, cannot be read."""


class InvalidInputError(NNAdapterError):
    """The caller is at fault: a feed is missing, superfluous, or has the wrong type or shape."""

    def __init__(self, message: str, *, name: str | None = None) -> None:
        super().__init__(message)
        self.name = name
        """The input in question, if it is one."""


class DonatedValueError(InvalidInputError):
    """The caller is at fault: a run was given a value on a device, and made a result in its memory. It is gone."""


class InputTypeError(InvalidInputError):
    """The caller is at fault: a feed has the wrong data type."""


class InputValueError(InvalidInputError):
    """The caller is at fault: a feed holds an index, a length or a count that is out of its range."""


class MissingInputError(InvalidInputError):
    """The caller is at fault: a required input is not fed."""

    @classmethod
    def of(cls, missing: Sequence[str], fed_names: Iterable[str], needed: Sequence[str]) -> MissingInputError:
        """The error of a feed of `fed_names` inputs that lacks some, in ONNX Runtime's words and with advice."""
        return cls(
            f"Required inputs ({[*missing]}) are missing from input feed ({[*fed_names]}); "
            f"feed every one of {[*needed]}",
            name=missing[0],
        )


class InvalidOptionError(NNAdapterError):
    """The caller is at fault: an option does not exist or its value does not fit."""


class _FileError(NNAdapterError):
    """What concerns a file of ours, and a place in it."""

    def __init__(self, message: str, *, file: str = "", entry: str = "", key: str = "") -> None:
        super().__init__(message)
        self.file = file
        """The file, or what stands for it."""
        self.entry = entry
        """Which of its entries, counted from 1 (`pin 2`); empty for the file as a whole."""
        self.key = key
        """The key there; empty for the entry as a whole."""


class CompiledModelError(_FileError, InvalidModelError):
    """The compiled model is at fault: it is damaged, of a newer version, or not for what it is asked here."""


class RulesError(_FileError, InvalidOptionError, ValueError):
    """The rules are at fault: they cannot be read, contradict each other, or ask for what cannot be."""


class PlanFileError(_FileError, InvalidOptionError):
    """The plan file is at fault: it cannot be read, is of another version, or contradicts itself."""


class ReportFileError(_FileError, InvalidOptionError):
    """The report is at fault: it cannot be read, is of another version, or is no report."""


class FaultScriptError(_FileError, InvalidOptionError, ValueError):
    """The script of the device `faulty` is at fault: it cannot be read, or asks for what there is not."""


class _SegmentError(NNAdapterError):
    """What concerns a device, and nodes on it."""

    def __init__(
        self,
        message: str,
        *,
        device: str | None = None,
        segment: int | None = None,
        nodes: Sequence[str] = (),
        phase: str | None = None,
    ) -> None:
        NNAdapterError.__init__(self, message)  # a class with another base has that one's fields itself
        self.device = device
        """The device that did not take it or did not do it."""
        self.segment = segment
        """The segment's position in the plan, where it got that far."""
        self.nodes = tuple(nodes)
        """Names of the nodes concerned."""
        self.phase = phase
        """What the device was asked for, one of `PHASES`; None where it is not a device that failed."""


class DeviceNotFoundError(NNAdapterError):
    """The caller is at fault: no driver offers a device of that name."""


class DeviceUnavailableError(_SegmentError):
    """The machine is at fault: the device is known and cannot be used here."""


class DeviceOpeningError(DeviceUnavailableError):
    """The driver is at fault: it failed when the device was to be opened, or to give a context."""


class MissingExtraError(NNAdapterError):
    """The installation is at fault: a package that an extra brings is not there."""

    def __init__(self, message: str, *, extra: str, package: str) -> None:
        super().__init__(message)
        self.extra = extra
        """The extra: `pip install 'nnadapter[EXTRA]'` brings the package."""
        self.package = package
        """What is missing, as package indexes call it."""


class MissingDeviceExtraError(DeviceUnavailableError, MissingExtraError):
    """The installation is at fault: the package that a device needs, which an extra brings, is not there."""

    def __init__(self, message: str, *, extra: str, package: str) -> None:
        super().__init__(message, phase="open")
        self.extra = extra
        self.package = package


class NotDelegatedError(_SegmentError):
    """The policy forbids fallback, and something would have to fall back to the CPU."""


class DriverError(_SegmentError):
    """The driver is at fault: it broke the interface, or a promise."""


class CompilationError(DriverError):
    """The driver said yes to a segment and could not compile it."""

    def __init__(
        self,
        message: str,
        *,
        device: str | None = None,
        segment: int | None = None,
        nodes: Sequence[str] = (),
        phase: str | None = "compile",
        refused: Mapping[int, Unsupported] | None = None,
    ) -> None:
        super().__init__(message, device=device, segment=segment, nodes=nodes, phase=phase)
        self.refused = dict(refused or {})
        """Why, by position of the node in the segment's model, where the driver knows which nodes are to blame."""


class ExecutionError(DriverError):
    """A compiled program failed while it ran."""


class AccuracyError(ExecutionError):
    """What a device computed was compared with the CPU, and is beyond what its precision allows."""

    def __init__(
        self,
        message: str,
        *,
        device: str | None = None,
        segment: int | None = None,
        nodes: Sequence[str] = (),
        phase: str | None = "run",
        deviation: float = 0.0,
    ) -> None:
        super().__init__(message, device=device, segment=segment, nodes=nodes, phase=phase)
        self.deviation = deviation
        """The largest difference over what is allowed; infinite where one side alone is a number."""


class TransientError(ExecutionError):
    """It failed now, and the same may go well when it is repeated; drivers raise it. All other failures persist."""


class DeviceLostError(ExecutionError):
    """The device is gone; nothing on it can be used again."""


class DeviceTimeoutError(DeviceLostError):
    """The device gave no answer in time, and was given up."""


class PassError(NNAdapterError):
    """The pass is at fault: what it made computes something else, has another border or is no sound model."""

    def __init__(self, message: str, *, name: str, output: str = "") -> None:
        super().__init__(message)
        self.name = name
        """The pass."""
        self.output = output
        """The model output that differs, where it came to that."""


class IncompatibleProgramError(_SegmentError):
    """A serialized program is damaged, or from another version, for another device, or for options that do not fit."""


class StoredFileError(_FileError):
    """A file that is kept between sessions (a calibration) is damaged, of another version, or cannot be written."""


class OutOfMemoryError(_SegmentError):
    """The device has no room for what was asked."""


class CancelledError(_SegmentError):
    """The caller asked for the run to stop: what was under way, or next, is in the fields."""


class DeadlineExceededError(CancelledError):
    """The run was not done within `Options.deadline_s`: what was under way, or next, is in the fields."""


class ClosedError(NNAdapterError):
    """The caller is at fault: it uses a session that was closed."""


class FallbackWarning(UserWarning):
    """Something that a device should have done went to another one, or to the CPU."""


class DriverWarning(UserWarning):
    """A driver did something wrong that cost no result."""


class CacheWarning(UserWarning):
    """Something is wrong with a cache: an entry is damaged, say, or nothing can be written. Work is done again."""


class ConversionWarning(UserWarning):
    """A model was converted, and may compute something else than what it was converted from, as far as is known."""


FAILURES = (Exception, SystemExit, GeneratorExit)
"""What a driver may raise, to be dealt with as its failure: one that tries to end the process, too."""


def located(
    error: NNAdapterError,
    device: str | None = None,
    phase: str | None = None,
    segment: int | None = None,
    nodes: Sequence[str] = (),
) -> NNAdapterError:
    """Fill in what an error that passes a border does not say yet: where it was. Returns the error.

    Args:
        error: of a driver, say, which knows neither its segment nor how a person calls its device.
        device: that failed.
        phase: one of `PHASES`.
        segment: position in the plan.
        nodes: names of the segment's nodes.
    """
    if isinstance(error, _SegmentError):
        error.device = device if error.device is None else error.device
        error.phase = phase if error.phase is None else error.phase
        error.segment = segment if error.segment is None else error.segment
        error.nodes = error.nodes or tuple(nodes)
    return error


def describe(error: BaseException) -> str:
    """Return an error in one line, as reports show it; its type alone, where a driver's own cannot say what it is."""
    try:
        text = " ".join(str(error).split())
    except FAILURES:
        text = ""
    if text and isinstance(error, NNAdapterError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def close_names(name: object, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: the known ones that are close to it, or all of them."""
    known = sorted(known)
    return near_names(name, known) or f"known: {', '.join(known) or 'none'}"


def near_names(name: object, known: Iterable[str], before: str = "") -> str:
    """Return a question for the known names that are close to an unknown one, behind `before`; empty if none is."""
    from difflib import get_close_matches  # most sessions end without a wrong name

    by_upper = {valid_name.upper(): valid_name for valid_name in known}
    close = get_close_matches(str(name).upper(), by_upper, n=3, cutoff=0.6)
    return f"{before}did you mean {' or '.join(repr(by_upper[close_name]) for close_name in close)}?" if close else ""
