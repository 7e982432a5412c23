"""Import of a package's names on first use, so that its modules can be imported separately."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from nnadapter.process.resources import new_re_lock

_importing = new_re_lock()
"""Prevents a deadlock of two threads that import modules in opposite order."""


def lazily(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package that imports its names on first use.

    `modules` maps a module (relative with a leading dot) to its names, separated by spaces. `name:attribute` renames
    `attribute`. The empty key lists modules of the package. Names under other keys must differ from the package's
    modules.
    """
    homes = {}
    for module, names in modules.items():
        for entry in names.split():
            name, _, attribute = entry.partition(":")
            homes[name] = module, attribute or name

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, attribute = homes[name]
        with _importing:
            imported = import_module(module or f".{name}", package)
            value = getattr(imported, attribute) if module else imported
        setattr(sys.modules[package], name, value)
        return value

    return find
