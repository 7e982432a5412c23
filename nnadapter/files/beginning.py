"""What a model is, by how its file begins or is called: told without what reads it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

MAGIC = b"\x89NNA\r\n\x1a\n"
"""The first bytes: not text, and damaged by whoever takes it for text."""


def is_container(source: Any) -> bool:
    """Whether a path, or bytes, begin as a file of parts does; False where nothing can be read."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        return bytes(source[: len(MAGIC)]) == MAGIC
    if not isinstance(source, (str, os.PathLike)):
        return False
    try:
        path = Path(source)
        if not path.is_file():  # a pipe is read once
            return False
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError):
        return False


PADDLE_ENDINGS = (".json", ".pdmodel", ".pdiparams")
"""Of Paddle 3's structure, of the structure before, and of parameters."""
PADDLE_OLD_NAME = "__model__"
"""The structure of Paddle 1, without an ending."""


def is_paddle_model(source: Any) -> bool:
    """Whether a model is a path that Paddle has models at: by its name, or because it is a folder."""
    if not isinstance(source, (str, os.PathLike)):
        return False
    path = Path(source)
    return path.name.endswith(PADDLE_ENDINGS) or path.name == PADDLE_OLD_NAME or _is_folder(path)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False
