"""What `nnadapter run` says of a model's outputs, and how it saves them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nnadapter.cli.command import Failure
from nnadapter.cli.writing import write_output
from nnadapter.ir.operand import Array, DataType

TOP = 5
_NUMBERS = frozenset(dtype.value for dtype in DataType)
_LONGEST_NAME = 150


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFacts:
    """One output in a few numbers; they are None where there are none, as for strings and sequences."""

    name: str
    dtype: str
    shape: tuple[int, ...] | None
    minimum: float | None = None
    """Of the finite elements, as are the next two."""
    mean: float | None = None
    maximum: float | None = None
    not_finite: int = 0
    """Elements that are infinite or not a number."""
    top: tuple[tuple[int, float], ...] = ()
    """Of an output [1, N] of numbers: index and value of the largest elements that are numbers, largest first."""

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def dtype_name(array: Array) -> str:
    """The data type as ONNX calls it."""
    return "string" if array.dtype.kind in "OUS" else array.dtype.name


def describe_output(name: str, value: object) -> OutputFacts:
    """Return the facts of one output."""
    if not isinstance(value, np.ndarray):
        size = f" of {len(value)}" if isinstance(value, (list, dict)) else ""
        return OutputFacts(name=name, dtype=f"{type(value).__name__}{size}", shape=None)
    if value.dtype.name not in _NUMBERS:
        return OutputFacts(name=name, dtype=dtype_name(value), shape=value.shape)
    numbers = value.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    return OutputFacts(
        name=name,
        dtype=value.dtype.name,
        shape=value.shape,
        minimum=float(finite.min()) if finite.size else None,
        mean=float(finite.mean()) if finite.size else None,
        maximum=float(finite.max()) if finite.size else None,
        not_finite=numbers.size - finite.size,
        top=_top(numbers[0]) if value.ndim == 2 and len(value) == 1 and value.dtype != bool else (),
    )


def save_outputs(folder: str, outputs: Mapping[str, object]) -> list[Path]:
    """Write every output to `folder`, made if need be, as NAME.npy; return the paths.

    Characters of a name that a file name may not have become underscores; elements of a sequence are numbered.

    Raises:
        Failure: a file cannot be written, or an output has no such form.
    """
    arrays = [pair for name, value in outputs.items() for pair in _arrays(name, value)]
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Failure(f"folder {folder!r} cannot be made: {error.strerror}; give another --save") from error
    paths = []
    for stem, (_, array) in zip(_file_names(name for name, _ in arrays), arrays, strict=True):
        paths.append(Path(folder) / f"{stem}.npy")
        write_output(paths[-1], partial(np.save, arr=array, allow_pickle=False))
    return paths


def _top(numbers: Array) -> tuple[tuple[int, float], ...]:
    valid_indices = np.flatnonzero(~np.isnan(numbers))
    largest = valid_indices[np.argsort(-numbers[valid_indices], kind="stable")[:TOP]]
    return tuple((int(index), float(numbers[index])) for index in largest)


def _arrays(name: str, value: object) -> list[tuple[str, Array]]:
    if isinstance(value, np.ndarray):
        return [(name, value.astype(str) if value.dtype.kind == "O" else value)]
    if isinstance(value, list) and all(isinstance(item, np.ndarray) for item in value):
        return [pair for index, item in enumerate(value) for pair in _arrays(f"{name}.{index}", item)]
    raise Failure(f"output {name!r} is {type(value).__name__}, which has no .npy form; run without --save")


def _file_names(names: Iterable[str]) -> list[str]:
    """A file name for each, none like another even where capitals do not count."""
    assigned_stems: set[str] = set()
    file_names = []
    for name in names:
        plain = re.sub(r"[^\w.-]+", "_", name, flags=re.ASCII).strip("._")[:_LONGEST_NAME] or "output"
        stem, number = plain, 1
        while stem.lower() in assigned_stems:
            number += 1
            stem = f"{plain}_{number}"
        assigned_stems.add(stem.lower())
        file_names.append(stem)
    return file_names
