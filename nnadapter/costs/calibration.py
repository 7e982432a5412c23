"""Calibration files, and the cache of placements chosen by measuring."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from math import exp, log, sqrt
from pathlib import Path
from typing import Annotated, Any, TypeVar

from msgspec import Meta, Struct, to_builtins

from nnadapter.costs.work import Line, OperationClass, Seconds
from nnadapter.drivers.capability import Option, OptionValue, OptionValues
from nnadapter.drivers.interface import INTERFACE_VERSION
from nnadapter.drivers.registry import device_info, device_of, inside
from nnadapter.drivers.selection import ISOLATE, canonical, select_one
from nnadapter.errors import StoredFileError
from nnadapter.files import atomic_files
from nnadapter.files.documents import FileKind
from nnadapter.process.processors import machine_description
from nnadapter.records import dataclass
from partition.by_cost.pricing import Origin

Contents = TypeVar("Contents")
_NO_SUCH_PLACE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)


def read_stored(kind: FileKind[Contents], file: Path) -> Contents:
    """Return a file's contents. Raises FileNotFoundError, or StoredFileError if unreadable or invalid."""
    try:
        return kind.read(file)
    except StoredFileError as error:
        if getattr(error.__cause__, "errno", None) in _NO_SUCH_PLACE:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(file)) from error
        raise


def write_stored(file: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file atomically, creating folders. Raises StoredFileError."""
    text = json.dumps(value, indent=2, allow_nan=False)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        atomic_files.replace_file(file, lambda opened: opened.write(f"{text}\n".encode()))
    except OSError as error:
        raise StoredFileError(
            f"{str(file)!r} cannot be written: {error.strerror or error}; set NNADAPTER_CACHE_DIR to a folder that can "
            "be written to",
            file=str(file),
        ) from error


class MeasuredNetwork(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Small mixed network that ran entirely on the device."""

    seconds: Seconds
    predicted: Seconds

    @property
    def quotient(self) -> float:
        return self.predicted / self.seconds if self.seconds else 1.0


class Calibration(
    Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    rename={"sole_launch_seconds": "alone_seconds", "fused_lines": "riding", "unmeasured_classes": "left_out"},
):
    """Measurements of one device, driver version and set of options; schema of its file."""

    device: str
    driver_version: str
    interface_version: tuple[Annotated[int, Meta(ge=0)], Annotated[int, Meta(ge=0)]]
    options: Mapping[str, OptionValue]
    machine: str
    crowded: bool
    """True if other programs used the processors."""
    processors: Annotated[float, Meta(ge=0)] | None = None
    """Host processors in use during computation; None if not counted."""
    launch_seconds: Seconds
    """Launch of a nearly empty segment between other devices' segments."""
    sole_launch_seconds: Seconds
    """Launch of such a segment as the only one of its plan."""
    transfer_seconds: Seconds
    """Transfer of one tensor in either direction."""
    transfer_seconds_per_byte: Seconds
    networks: Mapping[str, MeasuredNetwork]
    lines: Mapping[OperationClass, Line]
    """Standalone float32 operations by class."""
    fused_lines: Mapping[OperationClass, Mapping[OperationClass, Line]]
    """Fused operations by their producer's class, then their own."""
    unmeasured_classes: Mapping[OperationClass, str]
    """Class -> reason why it was not measured."""

    @property
    def off_by(self) -> float:
        """Relative error: root mean square of log(predicted / measured) over the networks."""
        if not self.networks:
            return max((line.error for line in self.lines.values()), default=0.0)
        return spread(log(network.quotient) for network in self.networks.values() if network.predicted)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"device     {self.device} {self.driver_version}".rstrip()
        for name, value in self.options.items():
            yield f"option     {name} = {value}"
        if self.crowded:
            yield "note       other programs used the processors meanwhile; measure again on an idle machine"
        if self.processors is not None:
            yield f"processors {self.processors:.2g} of the host are used by the device"
        per_segment, alone = 1e6 * self.launch_seconds, 1e6 * self.sole_launch_seconds
        yield f"launch     {per_segment:.1f} us per segment, {alone:.1f} us if the model is one segment"
        rate = _rate(", ", self.transfer_seconds_per_byte, "GB/s")
        yield f"transfer   {1e6 * self.transfer_seconds:.1f} us per tensor{rate}"
        if self.lines and all(line.per_operation(_EVERYDAY) < _NOTHING for line in self.lines.values()):
            yield "work       takes no time: this device computes nothing"
            return
        yield f"error      {100 * self.off_by:.0f} % in the predicted times of test networks"
        for operation_class in OperationClass:
            if operation_class in self.lines:
                yield _line_text(operation_class.value, self.lines[operation_class])
            elif operation_class in self.unmeasured_classes:
                yield f"{operation_class.value:<14} not measured: {self.unmeasured_classes[operation_class]}"
        for carrier, lines in self.fused_lines.items():
            for operation_class, line in lines.items():
                yield _line_text(f"{operation_class} after {carrier}", line)


def spread(logarithms: Iterable[float]) -> float:
    """Return the root mean square of logarithms of ratios, as a relative error; 0 without any."""
    squares = [logarithm * logarithm for logarithm in logarithms]
    return exp(sqrt(sum(squares) / len(squares))) - 1 if squares else 0.0


def _line_text(name: str, line: Line) -> str:
    rates = _rate(" + ", line.seconds_per_flop, "GFLOP/s") + _rate(" + ", line.seconds_per_byte, "GB/s")
    return f"{name:<14} {1e6 * line.seconds:.1f} us{rates}, error {100 * line.error:.0f} %"


_EVERYDAY, _NOTHING = 1e6, 1e-6
"""FLOPs or bytes of an operation, and its shortest possible seconds; a faster device computes nothing."""


def _rate(prefix: str, seconds: float, unit: str) -> str:
    return f"{prefix}{1e-9 / seconds:.3g} {unit}" if seconds else ""


FORMAT_VERSION = 6


@dataclass(frozen=True, slots=True)
class StoredCalibration:
    """Usable calibration of a device, if any."""

    calibration: Calibration | None
    note: str = ""
    """Reason why none is usable, or a warning."""


def find_calibration(
    device: str, table: Sequence[Option], options: OptionValues, *, isolated: bool = False
) -> StoredCalibration:
    """Return the calibration of a device with its options, for this machine and driver version.

    A damaged file gives a note, not an error. `table` lists the device's options.
    """
    requested_options, notes = speed_options(table, options, isolated=isolated), list[str]()
    for name in _names(device):
        try:
            calibration = read_calibration(
                atomic_files.calibration_file(name, requested_options), name, requested_options
            )
        except FileNotFoundError:
            continue
        except StoredFileError as error:
            notes.append(f"the calibration of device {name!r} is not used: {error}")
            continue
        note = _mismatch_text(calibration, device)
        if not note:
            return StoredCalibration(calibration, _crowding_warning(calibration))
        notes.append(note)
    return StoredCalibration(None, notes[0] if notes else _other_options_text(device, requested_options))


def _crowding_warning(calibration: Calibration) -> str:
    if not calibration.crowded:
        return ""
    return (
        f"the calibration of device {calibration.device!r} was made while other programs used the processors; run "
        f"`nnadapter calibrate {calibration.device}` again on an idle machine"
    )


def _mismatch_text(calibration: Calibration, device: str) -> str:
    current_version = driver_version(device)
    if (calibration.driver_version, calibration.interface_version) == (current_version, INTERFACE_VERSION):
        if calibration.machine == machine_description():
            return ""
        return (
            f"the calibration of device {calibration.device!r} was made on another machine ({calibration.machine}; "
            f"here "
            f"{machine_description()}), and is not used; run `nnadapter calibrate {device}`"
        )
    return (
        f"the calibration of device {calibration.device!r} was made with version "
        f"{calibration.driver_version or 'unknown'} of its "
        f"driver and interface {_dotted(calibration.interface_version)}, now {current_version or 'unknown'} and "
        f"{_dotted(INTERFACE_VERSION)}, and is not used; "
        f"run `nnadapter calibrate {device}`"
    )


def _names(device: str) -> Iterator[str]:
    """Yield the names that a device's calibration may have. Drivers without stored calibrations are not queried."""
    device = device_of(device)
    yield device
    if inside(device) != device:
        yield from _names(inside(device))
    driver = device.partition(":")[0]
    if not atomic_files.calibrations_of_driver(driver):
        return
    listed = canonical(device_info(driver).name)
    if device in (driver, listed):
        yield from {driver, listed} - {device}


def is_calibrated(device: str) -> bool:
    """Return whether a device is calibrated with default options."""
    capability = device_info(device).capability
    table = capability.options if capability is not None else ()
    return find_calibration(device, table, select_one(device, {}).options).calibration is not None


def keep_calibration(calibration: Calibration) -> Path:
    """Write a calibration atomically and return its path. Raises StoredFileError."""
    file = atomic_files.calibration_file(calibration.device, calibration.options)
    write_stored(file, contents_of(calibration))
    return file


def contents_of(calibration: Calibration) -> dict[str, object]:
    """Return the contents of a calibration file."""
    return {**_FILE.header, **to_builtins(calibration)}


def speed_options(table: Sequence[Option], options: OptionValues, *, isolated: bool = False) -> dict[str, OptionValue]:
    """Return the options that affect speed, including isolation, which adds messages to each launch."""
    relevant_options = {option.name: options[option.name] for option in table if option.affects_speed}
    return {**relevant_options, ISOLATE: True} if isolated else relevant_options


def driver_version(device: str) -> str:
    """Return a device's driver version; if undeclared, the driver's Python distribution."""
    info = device_info(device)
    return info.version or info.distribution


def _other_options_text(device: str, requested_options: Mapping[str, OptionValue]) -> str:
    settings, files = [], [(name, file) for name in _names(device) for file in atomic_files.calibrations_of(name)]
    for whose, file in files:
        with suppress(FileNotFoundError, StoredFileError):  # only files of the requested options may raise
            options = {ISOLATE: False, **read_calibration(file, whose).options}
            differing = {name: value for name, value in options.items() if value != requested_options.get(name, False)}
            settings.append(", ".join(f"{name}={option_text(value)}" for name, value in differing.items()))
    if not any(settings):
        return ""
    command = (
        f"; run `nnadapter calibrate {device} --option {device}.{ISOLATE}=true`"
        if requested_options.get(ISOLATE)
        else ""
    )
    return (
        f"there is a calibration of device {device!r} for {' and for '.join(filter(None, settings))}, and none for its "
        f"options here{command}"
    )


def read_calibration(
    file: Path, device: str | None = None, options: Mapping[str, OptionValue] | None = None
) -> Calibration:
    """Return the calibration in a file, which must be of `device` and `options` unless they are None.

    Raises:
        FileNotFoundError: it does not exist.
        StoredFileError: it is damaged, of another format, or has a wrong value.
    """
    calibration = read_stored(_FILE, file)
    if device is not None and device != calibration.device:
        _FILE.refuse(f"expected {device!r}, got {calibration.device!r}; {_FILE.advice}", str(file), ("device",))
    if options is not None:
        _check_options(file, calibration.options, options)
    unknown = sorted(_CLASSES - {*calibration.lines, *calibration.unmeasured_classes})
    if unknown or not calibration.lines:
        lacking = ", ".join(unknown) or "class"
        _FILE.refuse(f"it lacks {lacking}, without a reason in 'left_out'; {_FILE.advice}", str(file), ("lines",))
    return calibration


_FILE = FileKind(
    name="calibration",
    contents=Calibration,
    error=StoredFileError,
    advice="delete it, or run `nnadapter calibrate` for its device again",
    header={"format_version": FORMAT_VERSION},
)
_CLASSES = frozenset(OperationClass) - {OperationClass.OTHER, OperationClass.VIEW}


def _check_options(
    file: Path, stored_options: Mapping[str, OptionValue], requested_options: Mapping[str, OptionValue]
) -> None:
    for name in sorted({*stored_options, *requested_options}):
        stored, requested = stored_options.get(name), requested_options.get(name)
        if (type(stored), stored) != (type(requested), requested):
            actual, expected = ("nothing" if value is None else option_text(value) for value in (stored, requested))
            problem = f"it is {actual} in the file, but {expected} by its name; {_FILE.advice}"
            _FILE.refuse(problem, str(file), ("options", name))


def option_text(value: OptionValue) -> str:
    """Return an option's value as on the command line."""
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


CHOICES_FORMAT_VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredDevice:
    """Measured device."""

    name: str
    version: str
    options: Mapping[str, OptionValue]


class MeasuredCandidate(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Timed placement."""

    origin: Origin
    seconds: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredChoice:
    """Chosen placement, with all timed candidates."""

    placement: Mapping[str, str]
    timed: tuple[MeasuredCandidate, ...]
    """The chosen one first."""


def choice_key(
    model_digest: str,
    devices: Sequence[MeasuredDevice],
    shapes: Mapping[str, Sequence[int]],
    version: str,
    constraints: str = "",
    machine: str = "",
) -> str:
    """Return a choice's cache key.

    `model_digest` includes weights, `devices` are in the user's order, `version` is nnadapter's, and `machine` names
    machine and threads.
    """
    key_fields = {
        "model": model_digest,
        "devices": [[device.name, device.version, dict(device.options)] for device in devices],
        "shapes": {name: list(map(int, shapes[name])) for name in sorted(shapes)},
        "version": version,
        "constraints": constraints,
        "machine": machine,
    }
    return sha256(json.dumps(key_fields, sort_keys=True).encode()).hexdigest()


def remember(key: str, choice: MeasuredChoice) -> Path:
    """Store a timed choice of placement under `key`, atomically, and return its file. Raises StoredFileError."""
    devices = list(dict.fromkeys(choice.placement.values()))
    place = {device: position for position, device in enumerate(devices)}
    file = _file(key)
    document = _Document(
        key=key,
        timed=choice.timed,
        devices=tuple(devices),
        placement={node: place[device] for node, device in choice.placement.items()},
    )
    write_stored(file, {**_CHOICES_FILE.header, **to_builtins(document)})
    return file


def recall(key: str) -> tuple[MeasuredChoice | None, str]:
    """Return the choice stored under `key`; otherwise None, with a note if its file is unusable."""
    try:
        return _read(_file(key), key), ""
    except FileNotFoundError:
        return None, ""
    except StoredFileError as error:
        return None, f"{error}; the placement is measured again"


def forget(key: str) -> None:
    """Delete the choice stored under `key`, if possible."""
    with suppress(OSError):
        _file(key).unlink(missing_ok=True)


class _Document(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    key: str
    timed: Annotated[tuple[MeasuredCandidate, ...], Meta(min_length=1)]
    devices: tuple[str, ...]
    placement: Mapping[str, Annotated[int, Meta(ge=0)]]


_CHOICES_FILE = FileKind(
    name="measured choice",
    contents=_Document,
    error=StoredFileError,
    advice="measure again",
    header={"format_version": CHOICES_FORMAT_VERSION},
)


def _read(file: Path, key: str) -> MeasuredChoice:
    document = read_stored(_CHOICES_FILE, file)
    if document.key != key:
        _CHOICES_FILE.refuse(f"expected {key!r}, got {document.key!r}; {_CHOICES_FILE.advice}", str(file), ("key",))
    for node, position in document.placement.items():
        if position >= len(document.devices):
            problem = f"expected a position in the list of {len(document.devices)} devices, got {position}"
            _CHOICES_FILE.refuse(f"{problem}; {_CHOICES_FILE.advice}", str(file), ("placement", node))
    return MeasuredChoice(
        placement={node: document.devices[position] for node, position in document.placement.items()},
        timed=document.timed,
    )


def _file(key: str) -> Path:
    return atomic_files.cache_folder() / "measured" / f"{key}.json"
