"""OpenVINO's tools that convert models: left out where the driver, which does not use them, imports the package.

They take longer to import than all the rest of it, and once they are imported, a process of theirs sends a message over
the network. Who asks the package for them gets them then.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident

from nnadapter.process.lazily import lazily

_PACKAGE = "openvino"
_TOOLS = "openvino.tools.ovc"
_HOMES = {"convert_model": _TOOLS}
"""What the package offers of them under its own name."""


@contextmanager
def without_conversion_tools() -> Iterator[None]:
    """While this thread imports the package in the block, that finds no tools, which it need not have."""
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Finder:
    """Keeps the tools from the thread that made it. The package offers them later, before any thread has it whole."""

    def __init__(self) -> None:
        self._thread = get_ident()

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Leave a module to the other finders.

        Raises:
            ModuleNotFoundError: the tools are looked for.
        """
        if name == _TOOLS and get_ident() == self._thread:
            vars(sys.modules[_PACKAGE]).setdefault("__getattr__", lazily(_PACKAGE, _HOMES))
            raise ModuleNotFoundError(f"{name} is imported when it is used", name=name)
