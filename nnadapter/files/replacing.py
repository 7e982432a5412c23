"""Files that are complete or not there."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable
from errno import EISDIR
from os import strerror
from pathlib import Path
from typing import BinaryIO

from nnadapter.errors import InvalidOptionError


def check_writable(path: Path, advice: str = "give another path", *, folder: bool = False) -> None:
    """Refuse a path before the work is done whose results are to lie there.

    Args:
        path: of a file, or with `folder` of a folder for files, which need not exist.
        advice: what to do else.
        folder: see `path`.

    Raises:
        InvalidOptionError: nothing can be written there.
    """
    if not folder and path.exists() and not path.is_file() and not path.is_dir():
        return  # a pipe or /dev/stdout is written to directly
    parents = path.absolute().parents
    place = next(each for each in (path, *parents) if each.exists()) if folder else path.resolve().parent
    try:
        if path.is_dir() and not folder:
            raise IsADirectoryError(EISDIR, strerror(EISDIR))
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise InvalidOptionError(f"{str(path)!r} cannot be written: {error.strerror or error}; {advice}") from error


def write_file(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Have `write` write a file that takes the place of `path` when it is complete.

    What is no regular file (`/dev/stdout`, a pipe) is written to directly.

    Raises:
        OSError: it cannot be written.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            write(file)
    else:
        replace_file(path.resolve(), write)


def replace_file(target: Path, write: Callable[[BinaryIO], object]) -> None:
    """Have `write` write a file that takes the place of `target` when it is complete.

    Raises:
        OSError: it cannot be written; what stood there stays, and nothing stands beside it.
    """
    beside = target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}.part")
    try:
        with beside.open("xb") as file:
            write(file)
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)
