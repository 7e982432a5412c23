"""How a file of parts begins: told without what reads one."""

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
