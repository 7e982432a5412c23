"""Which function writes which operation as ONNX nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from nnadapter.exporting.writer import NodeWriter

Exporter = Callable[[NodeWriter], str | Sequence[str]]
"""Writes an operation's nodes and gives the names of its results, or raises Refusal."""

_EXPORTERS: dict[str, Exporter] = {}


def exporter(*types: str) -> Callable[[Exporter], Exporter]:
    """Return a decorator that registers a function for operations of these types.

    Raises:
        ValueError: one of them has an exporter of another module already.
    """

    def register(function: Exporter) -> Exporter:
        for type_ in types:
            known = _EXPORTERS.get(type_, function)
            if known.__module__ != function.__module__:
                raise ValueError(f"operation {type_} has an exporter already, in {known.__module__}")
            _EXPORTERS[type_] = function
        return function

    return register


def exporters() -> Mapping[str, Exporter]:
    """The exporter of every operation type that has one; a read-only view."""
    return MappingProxyType(_EXPORTERS)
