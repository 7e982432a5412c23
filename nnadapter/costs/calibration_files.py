"""Calibrations as files: one per device and set of options, kept for one version of its driver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from msgspec import to_builtins

from nnadapter.costs.calibration import Calibration
from nnadapter.costs.classes import OperationClass
from nnadapter.costs.stored import read_stored, write_stored
from nnadapter.drivers.capability import Option, OptionValue, OptionValues
from nnadapter.drivers.interface import INTERFACE_VERSION
from nnadapter.drivers.registry import device_info, inside
from nnadapter.drivers.selection import ISOLATE, canonical, select_one
from nnadapter.errors import StoredFileError
from nnadapter.files.calibrations import calibration_file, calibrations_of, calibrations_of_driver
from nnadapter.files.strict import FileKind
from nnadapter.process.processors import machine_description

FORMAT_VERSION = 6
"""Raised whenever a calibration's file changes its meaning; other versions are refused."""


@dataclass(frozen=True, slots=True)
class StoredCalibration:
    """What there is for a device."""

    calibration: Calibration | None
    note: str = ""
    """Why there is none although one was kept, or what is to be known of the one that there is."""


def find_calibration(
    device: str, table: Sequence[Option], options: OptionValues, *, isolated: bool = False
) -> StoredCalibration:
    """Return the calibration of a device under its options, if it was made here, with this version of its driver.

    One that is damaged or of another format is none, and said to be: what needs no costs goes on without it.

    Args:
        device: its name.
        table: the options that it has.
        options: every one of them.
        isolated: it has a process of its own.
    """
    requested_options, notes = speed_options(table, options, isolated=isolated), list[str]()
    for name in _names(device):
        try:
            calibration = read_calibration(calibration_file(name, requested_options), name, requested_options)
        except FileNotFoundError:
            continue
        except StoredFileError as error:
            notes.append(f"the calibration of device {name!r} is not used: {error}")
            continue
        note = _outdated(calibration, device)
        if not note:
            return StoredCalibration(calibration, _crowd(calibration))
        notes.append(note)
    return StoredCalibration(None, notes[0] if notes else _other_options_text(device, requested_options))


def _crowd(calibration: Calibration) -> str:
    """What is to be said of a calibration that is used; empty where nothing is."""
    if not calibration.crowded:
        return ""
    return (
        f"the calibration of device {calibration.device!r} was made while other programs used the processors; run "
        f"`nnadapter calibrate {calibration.device}` again when none do"
    )


def _outdated(calibration: Calibration, device: str) -> str:
    """Why a calibration does not hold for the driver that is here; empty if it does."""
    recorded_versions, current_versions = (
        (calibration.driver_version, calibration.interface_version),
        (driver_version(device), INTERFACE_VERSION),
    )
    if recorded_versions == current_versions:
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
        f"driver and interface {_dotted(recorded_versions[1])}, now {current_versions[0] or 'unknown'} and "
        f"{_dotted(current_versions[1])}, and is not used; "
        f"run `nnadapter calibrate {device}`"
    )


def _names(device: str) -> Iterator[str]:
    """The names of a device: the first of a driver has that of the driver and the one that it is listed by.

    The driver is asked only where one of its devices was calibrated.
    """
    yield device
    if inside(device) != device:
        yield from _names(inside(device))
    driver = device.partition(":")[0]
    if not calibrations_of_driver(driver):
        return
    listed = canonical(device_info(driver).name)
    if device in (driver, listed):
        yield from {driver, listed} - {device}


def is_calibrated(device: str) -> bool:
    """Whether there is a calibration of a device as it is without options; one that cannot be used is none."""
    capability = device_info(device).capability
    table = capability.options if capability is not None else ()
    return find_calibration(device, table, select_one(device, {}).options).calibration is not None


def keep_calibration(calibration: Calibration) -> Path:
    """Write a calibration where `find_calibration` looks for it, in one piece, and return its file.

    Raises:
        StoredFileError: it cannot be written.
    """
    file = calibration_file(calibration.device, calibration.options)
    write_stored(file, contents_of(calibration))
    return file


def contents_of(calibration: Calibration) -> dict[str, object]:
    """What stands in a calibration's file."""
    return {**_FILE.header, **to_builtins(calibration)}


def speed_options(table: Sequence[Option], options: OptionValues, *, isolated: bool = False) -> dict[str, OptionValue]:
    """The options that change how long something takes; in a process of its own a launch is a message, and back."""
    relevant_options = {option.name: options[option.name] for option in table if option.affects_speed}
    return {**relevant_options, ISOLATE: True} if isolated else relevant_options


def driver_version(device: str) -> str:
    """The version of a device's driver: what it says, else the distribution that it came with."""
    info = device_info(device)
    return info.version or info.distribution


def _other_options_text(device: str, requested_options: Mapping[str, OptionValue]) -> str:
    """For which other options there are calibrations, in a sentence; empty where there are none."""
    settings, files = [], [(name, file) for name in _names(device) for file in calibrations_of(name)]
    for whose, file in files:
        with suppress(FileNotFoundError, StoredFileError):  # a damaged one of others is not what was asked for
            options = {ISOLATE: False, **read_calibration(file, whose).options}
            differing = {name: value for name, value in options.items() if value != requested_options.get(name, False)}
            settings.append(", ".join(f"{name}={_shown(value)}" for name, value in differing.items()))
    if not any(settings):
        return ""
    command = (
        f"; run `nnadapter calibrate {device} --option {device}.{ISOLATE}=true`"
        if requested_options.get(ISOLATE)
        else ""
    )
    return (
        f"there is a calibration of device {device!r} for {' and for '.join(filter(None, settings))}, and none for the "
        f"options that it has here{command}"
    )


def read_calibration(
    file: Path, device: str | None = None, options: Mapping[str, OptionValue] | None = None
) -> Calibration:
    """Return the calibration in a file.

    Args:
        file: which.
        device: whose it has to be; None for any.
        options: which it has to be for; None for any.

    Raises:
        FileNotFoundError: there is none.
        StoredFileError: it is truncated, of another format, or has an entry of the wrong kind, negative or not finite.
    """
    calibration = read_stored(_FILE, file)
    if device is not None and device != calibration.device:
        _FILE.refuse(f"expected {device!r}, got {calibration.device!r}; {_FILE.advice}", str(file), ("device",))
    if options is not None:
        _check_options(file, calibration.options, options)
    unknown = sorted(_CLASSES - {*calibration.lines, *calibration.left_out})
    if unknown or not calibration.lines:
        lacking = ", ".join(unknown) or "class"
        _FILE.refuse(f"it has no {lacking}, and 'left_out' does not say why; {_FILE.advice}", str(file), ("lines",))
    return calibration


_FILE = FileKind(
    name="calibration",
    contents=Calibration,
    error=StoredFileError,
    advice="delete it, or run `nnadapter calibrate` for its device again",
    header={"format_version": FORMAT_VERSION},
)
_CLASSES = frozenset(OperationClass) - {OperationClass.OTHER, OperationClass.VIEW}
"""Those that a calibration measures, or says why not."""


def _check_options(
    file: Path, stored_options: Mapping[str, OptionValue], requested_options: Mapping[str, OptionValue]
) -> None:
    """Refuse a file whose options are others than those that its name stands for."""
    for name in sorted({*stored_options, *requested_options}):
        if (type(stored_options.get(name)), stored_options.get(name)) != (
            type(requested_options.get(name)),
            requested_options.get(name),
        ):
            actual, expected = (
                _shown(options[name]) if name in options else "nothing"
                for options in (stored_options, requested_options)
            )
            problem = f"it is {actual}, and the file's name is that of {expected}; {_FILE.advice}"
            _FILE.refuse(problem, str(file), ("options", name))


def _shown(value: OptionValue) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
