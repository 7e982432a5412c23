"""JSON files that are kept: written whole or not at all, read back strictly."""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from nnadapter.errors import StoredFileError
from nnadapter.files.replacing import replace_file
from nnadapter.files.strict import FileKind

Contents = TypeVar("Contents")
_NO_SUCH_PLACE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)


def read_stored(kind: FileKind[Contents], file: Path) -> Contents:
    """Return the contents of a file.

    Raises:
        FileNotFoundError: there is none, and can be none: what should be its folder is a file, or its name too long.
        StoredFileError: it cannot be read, or is not what it should be.
    """
    try:
        return kind.read(file)
    except StoredFileError as error:
        if getattr(error.__cause__, "errno", None) in _NO_SUCH_PLACE:
            raise FileNotFoundError(errno.ENOENT, "there is none", str(file)) from error
        raise


def write_stored(file: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file, which takes the place of `file` when it is complete; folders are made.

    Raises:
        StoredFileError: it cannot be written.
    """
    text = json.dumps(value, indent=2, allow_nan=False)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, lambda opened: opened.write(f"{text}\n".encode()))
    except OSError as error:
        raise StoredFileError(
            f"{str(file)!r} cannot be written: {error.strerror or error}; set NNADAPTER_CACHE_DIR to a folder that can "
            "be written to",
            file=str(file),
        ) from error
