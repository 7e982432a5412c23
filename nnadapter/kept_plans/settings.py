"""The key of a session's plans: the model, its devices and options, and the versions of all that makes plans.

Its parts are those of a segment's key (`nnadapter.caching.key`):

device, driver     of all devices in their order
host               every file of this package, and versions of packages that take part
machine            also what was calibrated on it: costs decide where nodes go, and which run side by side
options            of the devices, which are isolated, and what a person demands: rules and plan files by what they hold
structure, shapes  the model's file, with all names
constants          that, and the files that it names

Shapes of inputs are no part of it: an entry has plans for several.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import nnadapter
from nnadapter.caching.fingerprints import machine, of_device
from nnadapter.caching.key import Key, KeyPart, text_part
from nnadapter.drivers.selection import HOSTS, Selected
from nnadapter.files.calibrations import calibrations_of_driver
from nnadapter.kept_plans.sources import Source
from nnadapter.options import Options, fallback_text
from nnadapter.process.cache import remembered
from nnadapter.process.versions import installed_builds, installed_version, own_version

PLAN = "plan"
"""The kind of such entries."""
_PACKAGES = ("onnx", "numpy")
"""Packages that take part in planning, beside drivers and ONNX Runtime."""
_SHOWN = 12


def key_of(source: Source, devices: Sequence[Selected], options: Options) -> Key:
    """Return the key of a session's plans.

    Args:
        source: what it is made of.
        devices: that were selected, in their order.
        options: of the session.

    Raises:
        OSError: a file that options name, or a calibration, cannot be read.
    """
    around = {device.name: of_device(device.name) for device in devices if device.name not in HOSTS}
    parts = {
        **{
            part: _joined({name: key_parts[part] for name, key_parts in around.items()})
            for part in ("device", "driver")
        },
        "host": text_part(
            {
                "nnadapter": own_version(),
                "files": _own_files(),
                **{package: installed_version(package) for package in _PACKAGES},
                "onnxruntime": installed_builds("onnxruntime"),
            }
        ),
        "machine": _machine(devices),
        "options": text_part(
            {
                **_of_session(options),
                **dict(_of_devices(devices)),
                "order": [selected_device.name for selected_device in devices],
            }
        ),
        "structure": source.model,
        "shapes": KeyPart(source.model.digest, {"inputs": "any"}),
        "constants": source.beside,
    }
    return Key(PLAN, parts)


def _joined(parts: Mapping[str, KeyPart]) -> KeyPart:
    """The parts of several devices as one: where they say the same word, all that they say."""
    words = dict.fromkeys(word for part in parts.values() for word in part.words)
    told = {word: ", ".join(part.words.get(word, "") for part in parts.values()) for word in words}
    return KeyPart(sha256(repr([(name, part.digest) for name, part in parts.items()]).encode()).hexdigest(), told)


def _machine(devices: Sequence[Selected]) -> KeyPart:
    calibrated = sha256(repr(sorted(_calibrations(devices))).encode()).hexdigest()[:_SHOWN]
    return text_part({**machine().words, "calibrations": calibrated})


def _calibrations(devices: Sequence[Selected]) -> Iterator[tuple[str, str]]:
    """Names and digests of the files (`nnadapter.costs`) with calibrations of devices, and of the hosts behind them."""
    for name in sorted({*HOSTS, *(device.name for device in devices)}):
        for file in calibrations_of_driver(name):
            yield file.name, sha256(file.read_bytes()).hexdigest()


def _of_devices(devices: Sequence[Selected]) -> Iterator[tuple[str, object]]:
    yield "devices", ", ".join(device.name for device in devices)
    for device in devices:
        yield f"named {device.name}", device.named
        yield f"isolated {device.name}", device.limits is not None  # it has a calibration of its own then
        for name, value in device.options.items():
            yield f"{device.name}.{name}", value


def _of_session(options: Options) -> dict[str, object]:
    return {
        "policy": options.policy,
        "verify": options.verify,
        "fallback": fallback_text(options.fallback),
        "rules": _held(options.rules),
        "plan": _held(options.plan),
    }


def _held(value: Any) -> str:
    """What an option says that is a text, or names a file: a text has more than one line, a path has not."""
    if value is None:
        return ""
    if isinstance(value, str) and "\n" in value:
        return value
    if not isinstance(value, (str, os.PathLike)):
        return repr(value)
    return sha256(Path(value).read_bytes()).hexdigest()[:_SHOWN]


@remembered(1)
def _own_files() -> str:
    """Of every Python file of this package and the partitioner: its size, and when it was changed.

    What is told of a model's file is not enough for one is enough for these: who works on them has another time, and
    who installs them another version.
    """
    package = Path(nnadapter.__file__).parent
    listed = sorted(_listed(package, "")) + sorted(_listed(package.with_name("partition"), ""))
    return sha256(repr(listed).encode()).hexdigest()[:_SHOWN]


def _listed(folder: Path | str, inside: str) -> Iterator[tuple[str, int, int]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                status = entry.stat()
                yield inside + entry.name, status.st_size, status.st_mtime_ns
            elif entry.name != "__pycache__" and entry.is_dir(follow_symlinks=False):
                yield from _listed(entry.path, f"{inside}{entry.name}/")
