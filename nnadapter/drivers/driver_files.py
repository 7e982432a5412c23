"""The files that a driver consists of, as far as they are known: what changes where a driver is worked on."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from nnadapter.drivers.native.discovery import library_of
from nnadapter.drivers.registry import inside, source_of

OWN = "nnadapter"
"""The distribution of drivers that are built in."""


def driver_files(device: str) -> list[Path]:
    """Return the files of the driver of a device that was opened, sorted; none for one that is built in.

    They are its library, or all of Python in the package that its class is from; what these load is not known.
    """
    source = source_of(inside(device).partition(":")[0])
    if source.distribution == OWN:
        return []
    if source.library is not None:
        return [source.library]
    module_name, _, attribute = source.target.partition(":")
    module = sys.modules.get(module_name)
    library = library_of(getattr(module, attribute, None) if attribute else module)
    if library is not None:
        return [library]
    package = sys.modules.get(module_name.partition(".")[0])
    folders = list(getattr(package, "__path__", ()))
    if folders:
        return [Path(file) for file in sorted(name for folder in folders for name in _python_in(folder))]
    file = getattr(module, "__file__", None)
    return [] if file is None else [Path(file)]


def _python_in(folder: str) -> Iterator[str]:
    """As `Path.rglob` finds them, which takes several times as long."""
    for inner, _, names in os.walk(folder):
        yield from (os.path.join(inner, name) for name in names if name.endswith(".py"))  # noqa: PTH118
