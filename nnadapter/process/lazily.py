"""Names of a package that are imported when they are first used, so that its modules can be had without the others."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from nnadapter.process.resources import new_re_lock

_importing = new_re_lock()
"""Two threads that enter modules from different ends would each wait for the other's."""


def lazily(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package.

    Args:
        package: its name.
        homes: for each of its names, the module in which it lives, and where it is called otherwise there, a colon and
            that name; empty for a module of the package itself. No other module of it may be called like one of them.
    """

    def find(name: str) -> Any:
        """Import a public name on its first use."""
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, attribute = home.partition(":")
        with _importing:
            value = getattr(import_module(module), attribute or name) if home else import_module(f"{package}.{name}")
        setattr(sys.modules[package], name, value)
        return value

    return find
