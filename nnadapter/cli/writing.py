"""Files are written whole or not at all, and JSON holds only what JSON knows."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from nnadapter.cli.command import Failure
from nnadapter.files.replacing import write_file


def write_output(path: str | os.PathLike[str], write: Callable[[BinaryIO], object]) -> None:
    """See `nnadapter.files.replacing.write_file`.

    Raises:
        Failure: the file cannot be written.
    """
    try:
        write_file(Path(path), write)
    except OSError as error:
        raise Failure(f"{str(Path(path))!r} cannot be written: {error.strerror or error}; give another path") from error


def to_json(data: object) -> str:
    """JSON text; numbers that are not finite, which JSON does not know, become null."""
    return json.dumps(_finite(data), indent=2, allow_nan=False)


def _finite(data: Any) -> Any:
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(value) for value in data]
    return data
