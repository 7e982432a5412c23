"""Files that are complete or not there."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


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
