"""OpenVINO's tools that convert models: left out where the driver, which does not use them, imports the package.

They take longer to import than all the rest of it, and once they are imported, a process of theirs sends a message over
the network. Who asks the package for them gets them then.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

from nnadapter.process.lazily import lazily

_PACKAGE = "openvino"
_TOOLS = "openvino.tools.ovc"
_HOMES = {"convert_model": _TOOLS}
"""What the package offers of them under its own name."""


@contextmanager
def without_conversion_tools() -> Iterator[None]:
    """While this thread imports the package in the block, that finds no tools, which it need not have."""
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)  # for good: other threads are in the middle of that list
    _FINDER.threads.add(get_ident())
    try:
        yield
    finally:
        _FINDER.threads.discard(get_ident())


class _Finder:
    """Keeps the tools from threads that import the package. It offers them later, before any thread has it whole."""

    def __init__(self) -> None:
        self.threads: set[int] = set()

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Leave a module to the other finders.

        Raises:
            ModuleNotFoundError: the tools are looked for.
        """
        if name == _TOOLS and get_ident() in self.threads and _is_being_imported():
            vars(sys.modules[_PACKAGE]).setdefault("__getattr__", _offered)
            raise ModuleNotFoundError(f"{name} is imported when it is used", name=name)


_FINDER = _Finder()
_tools = lazily(_PACKAGE, _HOMES)


def _offered(name: str) -> Any:
    """The package's `__getattr__`: as without us, there is no such name where the tools cannot be imported."""
    try:
        return _tools(name)
    except ImportError as error:
        raise AttributeError(f"module {_PACKAGE!r} has no attribute {name!r}: {error}") from error


def _is_being_imported() -> bool:
    spec = getattr(sys.modules.get(_PACKAGE), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))
