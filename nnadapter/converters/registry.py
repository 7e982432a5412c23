"""Registries of converters, by exact schema version, and of exporters."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import Any

from nnadapter.converters.context import ConversionContext
from nnadapter.converters.writer import NodeWriter
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

__all__ = ["Converter", "Exporter", "NodeWriter", "OnnxNode", "Reason", "Refusal", "converter", "exporter"]

_CONTAINER = Reason.UNSUPPORTED_TYPE, "works on sequences or optionals, but the adapter IR holds only dense tensors"
_STRINGS = Reason.UNSUPPORTED_TYPE, "works on strings, but the adapter IR holds only numbers and booleans"
_RANDOM = Reason.UNSUPPORTED_OPERATION, "draws random numbers, which would differ on every device"
_UNKNOWN_SIZE = Reason.DATA_DEPENDENT_SHAPE, "returns results whose sizes depend on the contents of a tensor"
_FILE = Reason.UNSUPPORTED_OPERATION, "decodes compressed images, which needs another library"

ANOTHER_GRAPH = Reason.CONTROL_FLOW, "runs another graph, which the adapter IR cannot hold"
"""Reason for ops with subgraphs, including ops that `UNCONVERTED` lacks, such as BeamSearch of com.microsoft."""
NO_CONVERTER = Reason.UNSUPPORTED_OPERATION, "has no converter"

UNCONVERTED: Mapping[str, tuple[Reason, str]] = MappingProxyType(
    {
        op_type: reason
        for reason, names in {
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
"""Op type -> reason and detail of its refusal. The detail follows the op type in a sentence."""


Converter = Callable[[ConversionContext, OnnxNode], None]
"""Function that adds a node's operations, or raises Refusal."""

_CONVERTERS: dict[tuple[str, str, int], Converter] = {}
_PLACES: dict[tuple[str, str, int], Mapping[str, Any]] = {}
"""Globals of the module that registered a converter; a repeated import of it has a new dict."""
_VERSIONS: dict[tuple[str, str], tuple[int, ...]] = {}

_FURTHER = {"": "nnadapter.converters.microsoft", MICROSOFT: "nnadapter.converters.microsoft"}
"""Domain -> module for ops that onnx lacks, imported lazily."""


def converter(op_type: str, *since_versions: int, domain: str = "") -> Callable[[Converter], Converter]:
    """Return a decorator that registers a converter for exact schema versions.

    A module may register again, so that an interrupted import can be repeated.

    Raises:
        ValueError: a version already has a converter, or no version is passed.
    """
    if not since_versions:
        raise ValueError(f"converter of {domain or ONNX_DOMAIN}::{op_type} names no since_version; pass one or more")
    place = sys._getframe(1).f_globals

    def register(function: Converter) -> Converter:
        for version in since_versions:
            key = (domain, op_type, version)
            registered_place = _PLACES.get(key, place)
            if key in _CONVERTERS and (registered_place is place or registered_place["__name__"] != place["__name__"]):
                raise ValueError(f"{domain or ONNX_DOMAIN}::{op_type} version {version} has a converter already")
            _PLACES[key] = place
            _CONVERTERS[key] = function
        _VERSIONS[domain, op_type] = tuple(sorted({*_VERSIONS.get((domain, op_type), ()), *since_versions}))
        return function

    return register


def lookup(domain: str, op_type: str, since_version: int) -> Converter | None:
    """Return the converter of an exact schema version; None if there is none."""
    key = domain, op_type, since_version
    if key not in _CONVERTERS and is_further(*key):
        _import_further(domain)
        return _CONVERTERS.get(key) or EXTERNAL_CONVERTERS.get(external_name(*key))
    return _CONVERTERS.get(key)


def _import_further(domain: str) -> None:
    if domain in _FURTHER:
        import_module(_FURTHER[domain])


def has_converter(domain: str, op_type: str, since_version: int) -> bool:
    """Return whether an exact schema version has a converter."""
    return lookup(domain, op_type, since_version) is not None


def is_builtin(domain: str, op_type: str, since_version: int) -> bool:
    """Return whether an imported built-in module converts that version."""
    return (domain, op_type, since_version) in _CONVERTERS


def converted() -> Mapping[tuple[str, str], tuple[int, ...]]:
    """Return (domain, op type) -> converted versions."""
    for domain in _FURTHER:
        _import_further(domain)
    return MappingProxyType(_VERSIONS)


def problems_of_packages() -> list[str]:
    """Return a sentence per unusable external operation or converter."""
    problems = [
        problem
        for group in (OPERATIONS, EXTERNAL_CONVERTERS)
        for name in group.all
        if (problem := group.problem_of(name))
    ]
    return [*problems, *_hidden()]


def _hidden() -> list[str]:
    builtin_versions = {(*op, version) for op, versions in converted().items() for version in versions}
    return [
        f"{name!r} of {plug_in.distribution} ({GROUP}) is not used: nnadapter converts this op itself; its vendor must "
        "use another domain"
        for name, plug_in in EXTERNAL_CONVERTERS.all.items()
        if not plug_in.problem and key_of(name) in builtin_versions
    ]


Exporter = Callable[[NodeWriter], str | Sequence[str]]
"""Function that writes an operation's nodes and returns result names, or raises Refusal."""

_EXPORTERS: dict[str, Exporter] = {}


def exporter(*types: str) -> Callable[[Exporter], Exporter]:
    """Return a decorator that registers an exporter.

    Raises:
        ValueError: another module exports one of the types.
    """

    def register(function: Exporter) -> Exporter:
        for type_ in types:
            registered = _EXPORTERS.get(type_, function)
            if registered.__module__ != function.__module__:
                raise ValueError(f"operation {type_} has an exporter already, in {registered.__module__}")
            _EXPORTERS[type_] = function
        return function

    return register


def exporters() -> Mapping[str, Exporter]:
    """Return operation type -> exporter."""
    return MappingProxyType(_EXPORTERS)
