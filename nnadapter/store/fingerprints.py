"""Of driver, host and machine: what of them decides what is compiled."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import nnadapter
from nnadapter.drivers.interface import INTERFACE_VERSION
from nnadapter.drivers.registry import device_info, driver_files
from nnadapter.process.cache import memoize
from nnadapter.process.packages import installed_builds, own_version
from nnadapter.process.processors import machine_name, usable
from nnadapter.store.folder import KeyPart, text_part

_MAKING = ("drivers", "ir", "kernels", "onnx")
"""Rooms of this package whose code makes programs."""
_SHOWN = 12


def surroundings(device: str, *, takes_onnx: bool) -> Mapping[str, KeyPart]:
    """Return the parts of keys of all that a device makes in this process: device, driver, host and machine.

    Args:
        device: its name.
        takes_onnx: ONNX Runtime may be under its driver.
    """
    return {
        **of_device(device),
        "host": text_part(
            {
                "nnadapter": own_version(),
                "files": _digest_of_host(),
                **({"onnxruntime": installed_builds("onnxruntime")} if takes_onnx else {}),
            }
        ),
        "machine": machine(),
    }


def of_device(device: str) -> Mapping[str, KeyPart]:
    """Return those of these parts that are a device's own: `device` and `driver`."""
    info = device_info(device)
    return {
        "device": text_part({"name": device, "hardware": info.sub_type, "vendor": info.vendor}),
        "driver": text_part(
            {
                "version": info.version,
                "distribution": info.distribution,
                "interface": ".".join(map(str, INTERFACE_VERSION)),
                "files": _digest_of_driver(device),
            }
        ),
    }


def _digest_of_driver(device: str) -> str:
    files = driver_files(device)
    return _digest_of(tuple(map(_state_of, files))) if files else ""


@memoize(1)
def _digest_of_host() -> str:
    folder = Path(nnadapter.__file__).parent
    return _digest_of(tuple(_state_of(file) for room in _MAKING for file in sorted((folder / room).rglob("*.py"))))


def _state_of(file: Path) -> tuple[Path, int, int]:
    """The file, with what is other wherever somebody writes to it: its time and its size."""
    with suppress(OSError):
        found = file.stat()
        return file, found.st_mtime_ns, found.st_size
    return file, 0, 0


@memoize(8)
def _digest_of(states: tuple[tuple[Path, int, int], ...]) -> str:
    whole = sha256()
    for file, _, _ in states:
        with suppress(OSError):
            contents = file.read_bytes()
            whole.update(b"%d:" % len(contents))
            whole.update(contents)
    return whole.hexdigest()[:_SHOWN]


@memoize(1)
def machine() -> KeyPart:
    """Return the part `machine`."""
    flags = sha256(" ".join(_abilities()).encode()).hexdigest()[:_SHOWN]
    return text_part(
        {
            "system": platform.system(),
            "processor": machine_name(),
            "abilities": flags,
            "processors": usable(),
            "byteorder": sys.byteorder,
        }
    )


def _abilities() -> Iterator[str]:
    """What the processor says that it can do, in the way of Linux."""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
        line = next((line for line in lines if line.startswith(("flags", "Features"))), "")
        yield from sorted(line.partition(":")[2].split())
