"""Files of a Paddle inference model: search by path, and validation of parameter files."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

from nnadapter import limits
from nnadapter.errors import InvalidModelError, ModelFileError
from nnadapter.files.source_kind import PADDLE_OLD_NAME
from nnadapter.records import dataclass

_MAGIC = b'"magic":"pir"'
_MAGIC_WITHIN = 256
"""Size of a Paddle 3 structure file's head, which contains the magic."""
_HAS_PARAMETERS = b'{"#":"p",'
_USUAL = ("inference", "model", "__model__")
"""Stems that Paddle's tools write, in order of preference."""
_OLD_PARAMETERS = ("__params__", "params")


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddleFiles:
    """Structure file of a Paddle model, and its parameter file."""

    structure: Path
    parameters: Path | None

    @property
    def is_old(self) -> bool:
        """True for models saved before Paddle 3, which are protobuf programs."""
        return self.structure.suffix != ".json"


def files_of(path: Path, parameters: Path | None = None) -> PaddleFiles:
    """Find the files of the model at a path: a folder, its structure file, or its parameter file.

    Raises:
        ModelFileError: a file is missing or unreadable, or a folder has no model or several.
        InvalidModelError: a file is too large or no Paddle model.
    """
    structure = _structure_in(path) if path.is_dir() else _structure_of(path)
    _check_file(structure, "model file", limits.PADDLE_STRUCTURE_BYTES)
    needs_parameters = _needs_parameters(structure)
    parameters_path = parameters or _parameters_of(structure)
    if parameters_path is None and needs_parameters:
        raise ModelFileError(
            f"the parameters of the Paddle model {str(structure)!r} are missing, expected "
            f"{structure.with_suffix('.pdiparams').name!r} next to it; copy both files"
        )
    if parameters_path is not None:
        _check_file(parameters_path, "file of parameters", limits.MESSAGE_BYTES)
    return PaddleFiles(structure=structure, parameters=parameters_path)


def structures_in(folder: Path) -> Mapping[str, Path]:
    """Return the structure files in a folder by stem. Raises ModelFileError."""
    try:
        names = sorted(entry.name for entry in folder.iterdir() if entry.is_file())
    except OSError as error:
        raise ModelFileError(f"folder {str(folder)!r} cannot be read: {error.strerror}; check the path") from error
    stems: dict[str, Path] = {}
    for name in names:  # .json precedes .pdmodel, as Paddle prefers it
        path = folder / name
        if path.suffix == ".pdmodel" or name == PADDLE_OLD_NAME or (path.suffix == ".json" and _is_structure(path)):
            stems.setdefault(path.stem, path)
    return stems


def _structure_in(folder: Path) -> Path:
    stems = structures_in(folder)
    for usual in _USUAL:
        if usual in stems:
            return stems[usual]
    if len(stems) > 1:
        raise ModelFileError(
            f"folder {str(folder)!r} holds several Paddle models: {', '.join(path.name for path in stems.values())}; "
            "give the path of one of them"
        )
    if not stems:
        raise ModelFileError(
            f"model file {str(folder)!r} cannot be read: Is a directory, and holds no Paddle model (inference.json or "
            "inference.pdmodel, with inference.pdiparams); give the path of a file"
        )
    return next(iter(stems.values()))


def _structure_of(path: Path) -> Path:
    if path.suffix != ".pdiparams":
        return path
    for suffix in (".json", ".pdmodel"):
        if path.with_suffix(suffix).is_file():
            return path.with_suffix(suffix)
    raise ModelFileError(
        f"{str(path)!r} holds the parameters of a Paddle model, but its structure is not next to it, expected "
        f"{path.with_suffix('.json').name!r} or {path.with_suffix('.pdmodel').name!r}; copy both files"
    )


def _parameters_of(structure: Path) -> Path | None:
    sibling_path = structure.with_suffix(".pdiparams")
    names = [structure.parent / name for name in _OLD_PARAMETERS] if structure.name == PADDLE_OLD_NAME else []
    return next((path for path in (sibling_path, *names) if path.exists()), None)


def _check_file(path: Path, label: str, most: int) -> None:
    if not path.exists():
        raise ModelFileError(f"{label} {str(path)!r} does not exist; check the path")
    if not path.is_file():  # pipes and devices cannot be read twice
        raise ModelFileError(f"{label} {str(path)!r} is not a regular file; save the model in files")
    try:
        with path.open("rb"):
            size = path.stat().st_size
    except OSError as error:
        raise ModelFileError(f"{label} {str(path)!r} cannot be read: {error.strerror}; check the path") from error
    if size > most:
        raise InvalidModelError(
            f"{label} {str(path)!r} has {size:,} bytes, expected at most {most:,}, since it is converted in one piece"
        )
    if not size:
        raise InvalidModelError(f"{label} {str(path)!r} is empty; save or download the model again")


def _needs_parameters(structure: Path) -> bool:
    if structure.suffix != ".json":
        return True
    if not _is_structure(structure):
        raise InvalidModelError(
            f"{str(structure)!r} is not a Paddle model: it lacks the header of Paddle 3; give "
            "inference.json, inference.pdmodel, or their folder"
        )
    return _HAS_PARAMETERS in structure.read_bytes()


def _is_structure(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return _MAGIC in file.read(_MAGIC_WITHIN)
    except OSError:
        return False


_BITS: Mapping[int, int] = MappingProxyType(
    {0: 8, 1: 16, 2: 32, 3: 64, 4: 16, 5: 32, 6: 64, 20: 8, 21: 8, 22: 16, 23: 64, 24: 128, 32: 8, 33: 8}
)
"""Element type -> bits. Source: paddle's framework.proto, VarType.Type."""
_DESCRIPTION_BYTES = 1 << 12
_TYPE, _SIZE = 0x08, 0x10
"""Protobuf tags. Source: paddle's framework.proto, VarType.TensorDesc."""


def check_whole(path: Path) -> None:
    """Raise ValueError unless a parameter file consists of complete tensors."""
    size = path.stat().st_size
    with path.open("rb") as file:
        while file.tell() < size:
            begins = file.tell()
            try:
                ends = _bytes_of_next(file) + file.tell()
            except (struct.error, IndexError, KeyError):
                raise ValueError(f"the parameters have no Paddle tensor at byte {begins:,} of {size:,}") from None
            if ends > size:
                raise ValueError(f"the parameters end within a tensor: {size:,} bytes, expected {ends:,} or more")
            file.seek(ends)


def _bytes_of_next(file: BinaryIO) -> int:
    _, levels = struct.unpack("<IQ", file.read(12))
    if levels:  # sequence offsets, which parameters do not have
        raise KeyError(levels)
    _, length = struct.unpack("<Ii", file.read(8))
    if not 0 < length <= _DESCRIPTION_BYTES:
        raise KeyError(length)
    description = file.read(length)
    if len(description) < length:
        raise IndexError(length)
    numbers = iter(_numbers(description))
    kind, sizes = None, []
    for tag in numbers:
        value = next(numbers, 0)
        if tag == _TYPE:
            kind = value
        elif tag == _SIZE:
            sizes.append(value)
        else:
            raise KeyError(tag)
    return prod(sizes) * _BITS[kind if kind is not None else -1] // 8


def _numbers(contents: bytes) -> Iterator[int]:
    value, shift = 0, 0
    for byte in contents:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield value
            value, shift = 0, 0
