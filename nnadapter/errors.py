"""Exception tree of the package.

    NNAdapterError
        InvalidModelError
            ModelFileError
            CompiledModelError
        InvalidInputError
            DonatedValueError
            InputTypeError
            InputValueError
            MissingInputError
            CalibrationDataError
        InvalidOptionError
            RulesError
            PlanFileError
            ReportFileError
            FaultScriptError
        DeviceNotFoundError
        MissingExtraError
        DeviceUnavailableError
            DeviceOpeningError
            MissingDeviceExtraError (also a MissingExtraError)
        NotDelegatedError
        DriverError
            CompilationError
            ExecutionError
                AccuracyError
                TransientError
                DeviceLostError
                    DeviceTimeoutError
        PassError
        MetricError
        BudgetError
        IncompatibleProgramError
        StoredFileError
        OutOfMemoryError
        CancelledError
            DeadlineExceededError
        ClosedError

and the warnings FallbackWarning, DriverWarning, CacheWarning and ConversionWarning.

Programs read fields instead of messages: device errors have `device`, `phase`, and if known `segment` and `nodes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from partition.graph import Unsupported

PHASES = ("open", "context", "judge", "admit", "compile", "deserialize", "create", "run", "close")
"""Calls to a driver, in the order of a session."""


class NNAdapterError(Exception):
    """Root of all errors that this package raises deliberately."""


class InvalidModelError(NNAdapterError):
    """The model is not ONNX, is truncated, or contradicts itself."""


class ModelFileError(InvalidModelError):
    """The model's file or its external data cannot be read."""


class InvalidInputError(NNAdapterError):
    """A feed is missing, superfluous, or of the wrong type or shape."""

    def __init__(self, message: str, *, name: str | None = None) -> None:
        super().__init__(message)
        self.name = name


class DonatedValueError(InvalidInputError):
    """A fed device value was donated to an earlier run, which overwrote it."""


class InputTypeError(InvalidInputError):
    """A feed has the wrong data type."""


class InputValueError(InvalidInputError):
    """A feed holds an index, a length or a count out of range."""


class MissingInputError(InvalidInputError):
    """A required input is not fed."""

    @classmethod
    def of(cls, missing: Sequence[str], fed_names: Iterable[str], needed: Sequence[str]) -> MissingInputError:
        """Return the error for a feed that lacks required inputs."""
        return cls(
            f"Required inputs ({[*missing]}) are missing from input feed ({[*fed_names]}); "
            f"feed every one of {[*needed]}",
            name=missing[0],
        )


class CalibrationDataError(InvalidInputError):
    """Sample data is missing, unreadable, or does not fit the model."""


class InvalidOptionError(NNAdapterError):
    """An option does not exist, or its value is not valid."""


class _FileError(NNAdapterError):
    """Error about a file of nnadapter."""

    def __init__(self, message: str, *, file: str = "", entry: str = "", key: str = "") -> None:
        super().__init__(message)
        self.file = file
        self.entry = entry
        """Entry in the file, counted from 1: `pin 2`."""
        self.key = key


class CompiledModelError(_FileError, InvalidModelError):
    """A compiled model is damaged, of a newer version, or does not support the requested devices, shapes or options."""


class RulesError(_FileError, InvalidOptionError, ValueError):
    """Rules cannot be read, contradict each other, or cannot be satisfied."""


class PlanFileError(_FileError, InvalidOptionError):
    """A plan file cannot be read, is of another version, or contradicts itself."""


class ReportFileError(_FileError, InvalidOptionError):
    """A saved report cannot be read, is of another version, or is not a report."""


class FaultScriptError(_FileError, InvalidOptionError, ValueError):
    """A fault script of the device `faulty` cannot be read, or uses unknown entries."""


class _SegmentError(NNAdapterError):
    """Error about nodes on a device."""

    def __init__(
        self,
        message: str,
        *,
        device: str | None = None,
        segment: int | None = None,
        nodes: Sequence[str] = (),
        phase: str | None = None,
    ) -> None:
        NNAdapterError.__init__(self, message)  # not super(): the second base of a subclass has its own fields
        self.device = device
        self.segment = segment
        self.nodes = tuple(nodes)
        self.phase = phase
        """Call that failed, one of `PHASES`; None if no device failed."""


class DeviceNotFoundError(NNAdapterError):
    """No driver offers a device of that name."""


class DeviceUnavailableError(_SegmentError):
    """The device is known but cannot be used on this machine."""


class DeviceOpeningError(DeviceUnavailableError):
    """The driver failed to open the device or to create a context."""


class MissingExtraError(NNAdapterError):
    """A package of an optional extra is not installed."""

    def __init__(self, message: str, *, extra: str, package: str) -> None:
        super().__init__(message)
        self.extra = extra
        """Extra to install: `pip install 'nnadapter[EXTRA]'`."""
        self.package = package


class MissingDeviceExtraError(DeviceUnavailableError, MissingExtraError):
    """The package of a device, from an optional extra, is not installed."""

    def __init__(self, message: str, *, extra: str, package: str) -> None:
        super().__init__(message, phase="open")
        self.extra = extra
        self.package = package


class NotDelegatedError(_SegmentError):
    """Fallback to the CPU is forbidden, and would be needed."""


class DriverError(_SegmentError):
    """The driver violated its interface or its declared capability."""


class CompilationError(DriverError):
    """The driver accepted a segment and could not compile it."""

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
        """Reasons by index of the node at fault."""


class ExecutionError(DriverError):
    """A compiled program failed at run time."""


class AccuracyError(ExecutionError):
    """Results of a device differ from the CPU's by more than the tolerance of its precision."""

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
        """Largest difference divided by the tolerance; infinite if only one side is a number."""


class TransientError(ExecutionError):
    """The failure may go away on a retry. Drivers raise it; all other failures are permanent."""


class DeviceLostError(ExecutionError):
    """The device is gone; nothing on it can be used again."""


class DeviceTimeoutError(DeviceLostError):
    """The device did not answer in time and was abandoned."""


class MetricError(NNAdapterError):
    """A metric raised an exception, or returned no finite number."""


class BudgetError(NNAdapterError):
    """No configuration of a tuned model is within the accuracy budget."""


class PassError(NNAdapterError):
    """A graph pass changed the model's results, inputs or outputs, or returned an invalid model."""

    def __init__(self, message: str, *, name: str, output: str = "") -> None:
        super().__init__(message)
        self.name = name
        self.output = output
        """Model output that differs."""


class IncompatibleProgramError(_SegmentError):
    """A serialized program is damaged, or of another version, device or options."""


class StoredFileError(_FileError):
    """A file stored between sessions is damaged, of another version, or not writable."""


class OutOfMemoryError(_SegmentError):
    """The device has no memory for the request."""


class CancelledError(_SegmentError):
    """The caller stopped the run. Device, segment and nodes are of the current step, or of the next one."""


class DeadlineExceededError(CancelledError):
    """The run missed its deadline. The fields name the current or next step."""


class ClosedError(NNAdapterError):
    """The session is used after it was closed."""


class FallbackWarning(UserWarning):
    """Work of a device went to another device or to the CPU."""


class DriverWarning(UserWarning):
    """A driver misbehaved, without an effect on results."""


class CacheWarning(UserWarning):
    """A cache entry is damaged, or the cache cannot be written. Work is repeated."""


class ConversionWarning(UserWarning):
    """A converted model may compute something else than its source."""


FAILURES = (Exception, SystemExit, GeneratorExit)
"""Exceptions of drivers to handle as failures."""


def located(
    error: NNAdapterError,
    device: str | None = None,
    phase: str | None = None,
    segment: int | None = None,
    nodes: Sequence[str] = (),
) -> NNAdapterError:
    """Set the empty fields of a device error, and return the error."""
    if isinstance(error, _SegmentError):
        error.device = device if error.device is None else error.device
        error.phase = phase if error.phase is None else error.phase
        error.segment = segment if error.segment is None else error.segment
        error.nodes = error.nodes or tuple(nodes)
    return error


def describe(error: BaseException) -> str:
    """Return an error as one line; only its type if it has no text."""
    try:
        text = " ".join(str(error).split())
    except FAILURES:
        text = ""
    if text and isinstance(error, NNAdapterError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def close_names(name: object, known: Iterable[str]) -> str:
    """Return advice for an unknown name: close names, or all known."""
    known = sorted(known)
    return near_names(name, known) or f"known: {', '.join(known) or 'none'}"


def near_names(name: object, known: Iterable[str], before: str = "") -> str:
    """Return a question that suggests close names, preceded by `before`; empty if none."""
    from difflib import get_close_matches  # lazily: most sessions have no wrong name

    by_upper = {valid_name.upper(): valid_name for valid_name in known}
    close = get_close_matches(str(name).upper(), by_upper, n=3, cutoff=0.6)
    return f"{before}did you mean {' or '.join(repr(by_upper[close_name]) for close_name in close)}?" if close else ""
