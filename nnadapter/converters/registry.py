"""Registries of converters and exporters, and reasons for ops without a converter.

Converters are registered by exact (domain, op type, since_version). There is no fallback to the nearest version.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from nnadapter.converters.context import ConversionContext
from nnadapter.ir.operations import BROUGHT as OPERATIONS
from nnadapter.onnx.model import OnnxNode
from nnadapter.onnx.schemas import (
    EXTERNAL_CONVERTERS,
    GROUP,
    MICROSOFT,
    ONNX_DOMAIN,
    Refusal,
    external_name,
    is_further,
    key_of,
)
from partition.graph import Reason

if TYPE_CHECKING:
    from nnadapter.converters.writer import NodeWriter

__all__ = ["ConversionContext", "Converter", "Exporter", "OnnxNode", "Reason", "Refusal", "converter", "exporter"]
"""Names for modules that define converters."""

_CONTAINER = Reason.UNSUPPORTED_TYPE, "works on sequences or optionals, and the adapter IR holds dense tensors alone"
_STRINGS = Reason.UNSUPPORTED_TYPE, "works on strings, and the adapter IR holds numbers and booleans alone"
_RANDOM = Reason.UNSUPPORTED_OPERATION, "draws random numbers, and every device would draw others"
_UNKNOWN_SIZE = Reason.DATA_DEPENDENT_SHAPE, "makes as many elements as the contents of a tensor decide"
_FILE = Reason.UNSUPPORTED_OPERATION, "reads compressed pictures, which takes a library of its own"

ANOTHER_GRAPH = Reason.CONTROL_FLOW, "runs another graph, which the adapter IR cannot hold"
"""Reason for other ops with subgraph attributes, such as BeamSearch of com.microsoft."""
NO_CONVERTER = Reason.UNSUPPORTED_OPERATION, "has no converter"
"""Reason for all other ops."""

UNCONVERTED: Mapping[str, tuple[Reason, str]] = MappingProxyType(
    {
        op_type: why
        for why, names in {
            ANOTHER_GRAPH: "If Loop Scan SequenceMap",
            _CONTAINER: "ConcatFromSequence Optional OptionalGetElement OptionalHasElement SequenceAt "
            "SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength SplitToSequence",
            _STRINGS: "RegexFullMatch StringConcat StringNormalizer StringSplit TfIdfVectorizer",
            _RANDOM: "Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike",
            _UNKNOWN_SIZE: "Compress NonMaxSuppression NonZero Unique",
            _FILE: "ImageDecoder",
        }.items()
        for op_type in names.split()
    }
)
"""Op type -> reason code and predicate that follows the op's name."""


Converter = Callable[[ConversionContext, OnnxNode], None]
"""Function that adds a node's operations to the context, or raises Refusal."""

_CONVERTERS: dict[tuple[str, str, int], Converter] = {}
_PLACES: dict[tuple[str, str, int], Mapping[str, Any]] = {}
"""Globals of the registering module; a new dict whenever the module is executed again."""
_VERSIONS: dict[tuple[str, str], tuple[int, ...]] = {}

_FURTHER = {"": "nnadapter.converters.microsoft", MICROSOFT: "nnadapter.converters.microsoft"}
"""Domain -> module that converts its ops that onnx lacks; imported on first use."""


def converter(op_type: str, *since_versions: int, domain: str = "") -> Callable[[Converter], Converter]:
    """Return a decorator that registers a function for exactly these schema versions of an op.

    A module whose import was interrupted may be imported again and replaces its registrations.

    Raises:
        ValueError: a version already has a converter, or no version is passed.
    """
    if not since_versions:
        raise ValueError(f"converter of {domain or ONNX_DOMAIN}::{op_type} names no since_version")
    place = sys._getframe(1).f_globals

    def register(function: Converter) -> Converter:
        for version in since_versions:
            key = (domain, op_type, version)
            known = _PLACES.get(key, place)
            if key in _CONVERTERS and (known is place or known["__name__"] != place["__name__"]):
                raise ValueError(f"{domain or ONNX_DOMAIN}::{op_type} version {version} has a converter already")
            _PLACES[key] = place
            _CONVERTERS[key] = function
        _VERSIONS[domain, op_type] = tuple(sorted({*_VERSIONS.get((domain, op_type), ()), *since_versions}))
        return function

    return register


def lookup(domain: str, op_type: str, since_version: int) -> Converter | None:
    """Return the converter of exactly that schema version, or None."""
    key = domain, op_type, since_version
    if key not in _CONVERTERS and is_further(*key):
        _import_further(domain)
        return _CONVERTERS.get(key) or EXTERNAL_CONVERTERS.get(external_name(*key))
    return _CONVERTERS.get(key)


def _import_further(domain: str) -> None:
    if domain in _FURTHER:
        import_module(_FURTHER[domain])


def has_converter(domain: str, op_type: str, since_version: int) -> bool:
    """Return whether exactly that schema version has a converter."""
    return lookup(domain, op_type, since_version) is not None


def is_builtin(domain: str, op_type: str, since_version: int) -> bool:
    """Return whether a built-in module imported so far registered that schema version."""
    return (domain, op_type, since_version) in _CONVERTERS


def converted() -> Mapping[tuple[str, str], tuple[int, ...]]:
    """Return a read-only view of (domain, op type) -> converted schema versions."""
    for domain in _FURTHER:
        _import_further(domain)
    return MappingProxyType(_VERSIONS)


def problems_of_packages() -> list[str]:
    """Return one sentence per external operation or converter that is unusable."""
    problems = [
        problem
        for group in (OPERATIONS, EXTERNAL_CONVERTERS)
        for name in group.all
        if (problem := group.problem_of(name))
    ]
    return [*problems, *_hidden()]


def _hidden() -> list[str]:
    own = {(*op, version) for op, versions in converted().items() for version in versions}
    return [
        f"{name!r} of {plug_in.distribution} ({GROUP}) is not used: nnadapter converts this op itself; its vendor must "
        "take another domain"
        for name, plug_in in EXTERNAL_CONVERTERS.all.items()
        if not plug_in.problem and key_of(name) in own
    ]


Exporter = Callable[["NodeWriter"], "str | Sequence[str]"]
"""Function that writes an operation's nodes and returns the names of its results, or raises Refusal."""

_EXPORTERS: dict[str, Exporter] = {}


def exporter(*types: str) -> Callable[[Exporter], Exporter]:
    """Return a decorator that registers the exporter of operations of these types.

    Raises:
        ValueError: another module already exports one of them.
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
    """Return a read-only view of operation type -> exporter."""
    return MappingProxyType(_EXPORTERS)
