"""Calibrations as files: one per device and set of options, kept for one version of its driver."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from msgspec import to_builtins

from nnadapter.costs.calibration import Calibration
from nnadapter.costs.classes import OperationClass
from nnadapter.costs.stored import read_kept, write_kept
from nnadapter.drivers.capability import Option, OptionValue, OptionValues
from nnadapter.drivers.interface import INTERFACE_VERSION
from nnadapter.drivers.registry import device_info
from nnadapter.drivers.selection import select_one
from nnadapter.errors import StoredFileError
from nnadapter.files.cache_folder import cache_folder
from nnadapter.files.strict import FileKind

FORMAT_VERSION = 3
"""Raised whenever a calibration's file changes its meaning; other versions are refused."""


@dataclass(frozen=True, slots=True)
class StoredCalibration:
    """What there is for a device."""

    calibration: Calibration | None
    note: str = ""
    """Why there is none although one was kept."""


def find_calibration(device: str, table: Sequence[Option], options: OptionValues) -> StoredCalibration:
    """Return the calibration of a device under its options, if it was made with this version of its driver.

    Args:
        device: its name.
        table: the options that it has.
        options: every one of them.

    Raises:
        StoredFileError: there is a file, and it is damaged or of another format.
    """
    asked = speed_options(table, options)
    try:
        kept = read_calibration(calibration_file(device, asked), device, asked)
    except FileNotFoundError:
        return StoredCalibration(None, _for_others(device, asked))
    made, now = (kept.driver_version, kept.interface_version), (driver_version(device), INTERFACE_VERSION)
    if made == now:
        return StoredCalibration(kept)
    return StoredCalibration(
        None,
        f"the calibration of device {device!r} was made with version {kept.driver_version or 'unknown'} of its driver "
        f"and interface {_dotted(made[1])}, now {now[0] or 'unknown'} and {_dotted(now[1])}, and is not used; "
        f"run `nnadapter calibrate {device}`",
    )


def is_calibrated(device: str) -> bool:
    """Whether there is a calibration of a device as it is without options; one that cannot be used is none."""
    capability = device_info(device).capability
    table = capability.options if capability is not None else ()
    try:
        return find_calibration(device, table, select_one(device, {}).options).calibration is not None
    except StoredFileError:
        return False


def keep_calibration(calibration: Calibration) -> Path:
    """Write a calibration where `find_calibration` looks for it, in one piece, and return its file.

    Raises:
        StoredFileError: it cannot be written.
    """
    file = calibration_file(calibration.device, calibration.options)
    write_kept(file, contents_of(calibration))
    return file


def contents_of(calibration: Calibration) -> dict[str, object]:
    """What stands in a calibration's file."""
    return {**_FILE.header, **to_builtins(calibration)}


def calibration_file(device: str, options: Mapping[str, OptionValue]) -> Path:
    """Where the calibration of a device under those options that affect its speed is kept."""
    digest = sha256(json.dumps(dict(sorted(options.items()))).encode()).hexdigest()[:16]
    return cache_folder() / "calibrations" / f"{_prefix(device)}{digest}.json"


def _prefix(device: str) -> str:
    """How the names of a device's calibrations begin."""
    name = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in device)
    return f"{name}-{sha256(device.encode()).hexdigest()[:8]}-"


def speed_options(table: Sequence[Option], options: OptionValues) -> dict[str, OptionValue]:
    """The options that change how long something takes."""
    return {option.name: options[option.name] for option in table if option.affects_speed}


def driver_version(device: str) -> str:
    """The version of a device's driver: what it says, else the distribution that it came with."""
    info = device_info(device)
    return info.version or info.distribution


def _for_others(device: str, asked: Mapping[str, OptionValue]) -> str:
    """For which other options there are calibrations, in a sentence; empty where there are none."""
    own = calibration_file(device, asked)
    try:
        files = sorted(own.parent.glob(f"{_prefix(device)}*.json"))
    except OSError:  # what cannot be a folder holds nothing
        return ""
    settings = []
    for file in files:
        with suppress(FileNotFoundError, StoredFileError):  # a damaged one of others is not what was asked for
            options = read_calibration(file, device).options
            differing = {name: value for name, value in options.items() if value != asked.get(name)}
            settings.append(", ".join(f"{name}={_shown(value)}" for name, value in differing.items()))
    if not any(settings):
        return ""
    return (
        f"there is a calibration of device {device!r} for {' and for '.join(filter(None, settings))}, and none for the "
        "options that it has here"
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
    kept = read_kept(_FILE, file)
    if device is not None and device != kept.device:
        _FILE.refuse(f"expected {device!r}, got {kept.device!r}; {_FILE.advice}", str(file), ("device",))
    if options is not None:
        _check_options(file, kept.options, options)
    unknown = sorted(_CLASSES - {*kept.lines, *kept.left_out})
    if unknown or not kept.lines:
        lacking = ", ".join(unknown) or "class"
        _FILE.refuse(f"it has no {lacking}, and 'left_out' does not say why; {_FILE.advice}", str(file), ("lines",))
    return kept


_FILE = FileKind(
    name="calibration",
    contents=Calibration,
    error=StoredFileError,
    advice="delete it, or run `nnadapter calibrate` for its device again",
    header={"format_version": FORMAT_VERSION},
)
_CLASSES = frozenset(OperationClass) - {OperationClass.OTHER, OperationClass.VIEW}
"""Those that a calibration measures, or says why not."""


def _check_options(file: Path, kept: Mapping[str, OptionValue], asked: Mapping[str, OptionValue]) -> None:
    """Refuse a file whose options are others than those that its name stands for."""
    for name in sorted({*kept, *asked}):
        if (type(kept.get(name)), kept.get(name)) != (type(asked.get(name)), asked.get(name)):
            said, expected = (_shown(each[name]) if name in each else "nothing" for each in (kept, asked))
            problem = f"it is {said}, and the file's name is that of {expected}; {_FILE.advice}"
            _FILE.refuse(problem, str(file), ("options", name))


def _shown(value: OptionValue) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
