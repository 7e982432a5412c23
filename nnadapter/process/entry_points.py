"""An entry point: what it names, and what brings it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def named(target: str) -> object:
    """Return what an entry point names: an attribute of a module, or the module; extras behind it say nothing here.

    Source: the entry points specification of PyPA, `module:attribute [extra]`.
    """
    from importlib import import_module

    module_name, _, attribute = target.partition("[")[0].strip().partition(":")
    value: object = import_module(module_name.strip())
    for name in filter(None, attribute.strip().split(".")):
        value = getattr(value, name)
    return value


def distribution_of(point: EntryPoint) -> str:
    """Return name and version of the distribution that brings an entry point."""
    return f"{point.dist.name} {point.dist.version}" if point.dist and point.dist.name else "an unknown distribution"
