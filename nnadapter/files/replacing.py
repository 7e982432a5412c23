"""Files that are complete or not there."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable
from errno import EISDIR
from os import strerror
from pathlib import Path
from typing import BinaryIO


def check_writable(path: Path, *, folder: bool = False) -> None:
    """Find out whether a file can be written, or with `folder` files in a folder that may have to be made.

    Raises:
        OSError: it cannot.
    """
    if folder:
        place = next(each for each in (path, *path.absolute().parents) if each.exists())
    elif path.exists() and not path.is_file() and not path.is_dir():
        return  # a pipe or /dev/stdout is written to directly
    elif path.is_dir():
        raise IsADirectoryError(EISDIR, strerror(EISDIR), str(path))
    else:
        place = path.resolve().parent
    with tempfile.TemporaryFile(dir=place):
        pass


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
