"""Models in files: the model itself, and a data file with its weights in the same folder."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import BinaryIO

from nnadapter import limits
from nnadapter.errors import InvalidModelError, ModelFileError
from nnadapter.files.replacing import replace_file
from nnadapter.ir.model import Model
from nnadapter.ir.protobuf.serialized import BEGINNING, message_of, read_model, weights_of_checked

_FORBIDDEN = frozenset("/\\:\0")
_DIGITS = 16
"""Bytes of the largest protobuf message."""


def save(model: Model, path: str | os.PathLike[str]) -> None:
    """Write a model to `path`, and its weights, if it has any, to `path.DIGEST.weights` beside it.

    Files are complete or not there: each is written under another name and renamed, the model last. The data file's
    name follows from its contents, so a model that stood at `path` keeps its own until somebody removes it.

    Raises:
        InvalidModelError: the model contradicts itself, is none, or does not fit the format.
        ModelFileError: a file cannot be written, or `path` names none.
    """
    weights = weights_of_checked(model)
    target = _path(path)
    if not target.name or target.is_dir():
        raise ModelFileError(f"{str(target)!r} is a folder; give the path of a file in it")
    data = target.with_name(f"{target.name}.{weights.digest[:_DIGITS]}.weights")
    contents = message_of(model, weights, lambda block: (data.name, block.offset))
    try:
        if weights.blocks:
            replace_file(data, weights.write)
        replace_file(target, lambda file: file.write(contents))
    except OSError as error:
        raise ModelFileError(f"{str(target)!r} cannot be written: {_why(error)}; give another path") from error


def load(path: str | os.PathLike[str], *, check_contents: bool = True) -> Model:
    """Return the model at `path`; its constants are memory-mapped, all but 4-bit ones, which are unpacked.

    Args:
        path: what `save` wrote. Its files may be replaced by new ones while the model lives, but not changed.
        check_contents: compare the digests of constants, which reads every byte of them.

    Raises:
        ModelFileError: a file is missing, cannot be read, is not what it was, or lies in another folder.
        InvalidModelError: the file is no model, is damaged, or of a newer version; or the model contradicts itself.
    """
    source = _path(path)
    try:
        if source.exists() and not source.is_file():  # a pipe would never end
            raise ModelFileError(f"{str(source)!r} is no file; give the path of a model")
        with source.open("rb") as file:
            contents = file.read(len(BEGINNING))
            if contents == BEGINNING:  # what is no model may be large
                contents += file.read(_remaining(file, source))
    except OSError as error:
        raise ModelFileError(f"{str(source)!r} cannot be read: {_why(error)}; give the path of a model") from error
    if not contents.startswith(BEGINNING):
        raise InvalidModelError(f"{str(source)!r} is no nnadapter model: it begins otherwise; write one with `save`")
    folder = source.parent
    return read_model(contents, lambda name: _mapped(folder, name), check_contents=check_contents)


def _path(path: object) -> Path:
    if not isinstance(path, (str, os.PathLike)):
        raise ModelFileError(f"a model's path is {path!r}, expected a str or a path")
    return Path(path)


def _mapped(folder: Path, name: str) -> memoryview:
    """The contents of a data file, which must lie in the folder itself."""
    if name in ("", ".", "..") or not _FORBIDDEN.isdisjoint(name):
        raise ModelFileError(f"the model's data file is called {name!r}, expected the plain name of a file beside it")
    try:
        path = (folder / name).resolve()
        if path.parent != folder.resolve():
            raise ModelFileError(f"the model's data file {name!r} lies at {str(path)!r}, expected it beside the model")
        if not path.is_file():
            raise ModelFileError(f"the model's data file {name!r} is not in {str(folder)!r}; put it there")
        with path.open("rb") as file:
            if not os.fstat(file.fileno()).st_size:  # which cannot be mapped
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, RuntimeError) as error:  # RuntimeError: links that go in a circle
        raise ModelFileError(f"the model's data file {name!r} cannot be read: {_why(error)}") from error


def _remaining(file: BinaryIO, source: Path) -> int:
    size = os.fstat(file.fileno()).st_size
    if size > limits.MESSAGE_BYTES:
        raise ModelFileError(
            f"{str(source)!r} has {size} bytes, expected at most {limits.MESSAGE_BYTES} without the weights"
        )
    return size


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
