"""What was found, as a small model with its tensors."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nnadapter.accuracy.cutting import Values
from nnadapter.accuracy.searching import Stretch
from nnadapter.drivers.selection import DeviceRequest, canonical

MODEL = "model.onnx"
COMMAND = "command.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedFindings:
    """What was found, as files."""

    folder: str
    command: str
    """What shows it again."""


def save_stretch(
    folder: Path, stretch: Stretch, requests: Sequence[DeviceRequest], relative: float, absolute: float
) -> SavedFindings:
    """Write what shows `stretch` again, and return where it lies.

    1. `model.onnx` is the nodes as a model of their own, for the shapes in hand.
    2. `input_0.npy` and so on are the CPU's values that they read; `expected_0.npy` and `got_0.npy` what the CPU and
       the device make of them, in the order of the model's outputs.
    3. `command.txt` is the command that shows the difference.

    Args:
        folder: is made.
        stretch: what was found.
        requests: the devices.
        relative: what is allowed of floating-point outputs, see `Tolerance`.
        absolute: the same.

    Raises:
        OSError: a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MODEL).write_bytes(stretch.excerpt.model.SerializeToString())
    inputs = _write(folder, "input", stretch.feed)
    _write(folder, "expected", stretch.expected)
    _write(folder, "got", stretch.got)
    devices = {*stretch.excerpt.devices.values()}
    requests = [request for request in requests if _name(request) in devices]
    words = ["nnadapter", "compare", str(folder / MODEL), *_device_words(requests)]
    words += [word for name, path in inputs for word in ("--input", f"{name}={path}")]
    words += ["--rtol", f"{relative:g}", "--atol", f"{absolute:g}"]
    command = shlex.join(words)
    (folder / COMMAND).write_text(f"{command}\n")
    return SavedFindings(folder=str(folder), command=command)


def _write(folder: Path, kind: str, values: Values) -> list[tuple[str, Path]]:
    paths = [(name, folder / f"{kind}_{number}.npy") for number, name in enumerate(values)]
    for name, path in paths:
        np.save(path, values[name])
    return paths


def _device_words(requests: Sequence[DeviceRequest]) -> Iterator[str]:
    for request in requests:
        yield from ("-d", request if isinstance(request, str) else request[0])
    for name, options in (request for request in requests if not isinstance(request, str)):
        for option, value in options.items():
            text = ",".join(value) if isinstance(value, (list, tuple)) else str(value)
            yield from ("--option", f"{name}.{option}={text}")


def _name(request: DeviceRequest) -> str:
    return canonical(request if isinstance(request, str) else request[0])
