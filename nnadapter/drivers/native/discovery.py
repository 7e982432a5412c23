"""Libraries in the folders of NNADAPTER_DRIVER_PATH. They are found by their names; none is loaded to list them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

PATH_VARIABLE = "NNADAPTER_DRIVER_PATH"
"""Folders, separated as in PATH. Nobody looks for libraries unless it is set."""
_NAMES = re.compile(r"(?:lib)?nnadapter_(?P<name>[a-z][a-z0-9_]*)\.(?:so|dylib|dll)")


def libraries() -> Iterator[tuple[str, Path]]:
    """Device name and path of every library: `nnadapter_NAME.so`, `.dylib` or `.dll`, with or without `lib`, sorted.

    A folder that is not there, or cannot be read, has none.
    """
    for folder in os.environ.get(PATH_VARIABLE, "").split(os.pathsep):
        if folder:
            yield from _in(Path(folder))


def _in(folder: Path) -> Iterator[tuple[str, Path]]:
    try:
        files = sorted(folder.iterdir())
    except OSError:
        return
    for file in files:
        match = _NAMES.fullmatch(file.name)
        if match:
            yield match["name"], file


def library_of(named: object) -> Path | None:
    """The library that an entry point names: a path, or a module with a path called LIBRARY; None if it names none."""
    library = getattr(named, "LIBRARY", None) if isinstance(named, ModuleType) else named
    return Path(library) if isinstance(library, (str, Path)) else None
