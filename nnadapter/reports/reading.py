"""A report read back from its JSON form, strictly: what is read is complete and of the right types."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from nnadapter.errors import InvalidOptionError
from nnadapter.reports.facts import SCHEMA_VERSION
from nnadapter.reports.report import PartitionReport

_PLAIN: Mapping[object, tuple[type, ...]] = {int: (int,), float: (int, float), str: (str,), bool: (bool,)}


def read_report(path: str | os.PathLike[str]) -> PartitionReport:
    """Return the report that `nnadapter report --format json` wrote.

    Keys that are not known are left out; keys that came later have their defaults.

    Raises:
        InvalidOptionError: the file cannot be read, is no whole JSON, is no report, or has another schema version.
    """
    name = repr(str(path))
    again = "write it again with `nnadapter report --format json`"
    try:
        data = json.loads(Path(path).read_bytes(), parse_constant=_refuse_constant)
    except OSError as error:
        raise InvalidOptionError(f"report {name} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidOptionError(f"report {name} is no whole JSON text ({error}); {again}") from error
    try:
        return report_from(data)
    except InvalidOptionError as error:
        raise InvalidOptionError(f"{name} cannot be compared: {error}; {again}") from error


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


def report_from(data: object) -> PartitionReport:
    """Return the report whose `to_dict` is `data`.

    Raises:
        InvalidOptionError: something is missing, of another type, or of another schema version.
    """
    if not isinstance(data, Mapping) or "schema_version" not in data:
        raise InvalidOptionError("it is no report: it has no schema_version")
    if data["schema_version"] != SCHEMA_VERSION:
        raise InvalidOptionError(
            f"its schema version is {data['schema_version']!r}, this version of nnadapter reads {SCHEMA_VERSION}"
        )
    report: PartitionReport = _facts(PartitionReport, data, "report")
    _check_references(report)
    return report


def _check_references(report: PartitionReport) -> None:
    """Refuse segments out of order, and nodes of devices and segments that do not exist."""
    if [segment.index for segment in report.segments] != [*range(len(report.segments))]:
        raise InvalidOptionError("report.segments are not numbered from 0 on")
    devices = {*report.devices, ""}
    for node in report.nodes:
        if node.device not in devices or (node.segment is not None and not 0 <= node.segment < len(report.segments)):
            raise InvalidOptionError(f"node {node.name!r} is on a device or in a segment that the report does not have")
    for segment in report.segments:
        if segment.device not in report.devices:
            raise InvalidOptionError(f"segment {segment.index} is on {segment.device!r}, which is no device of it")


def _facts(kind: Any, data: object, where: str) -> Any:
    """An instance of `kind`, a dataclass."""
    if not isinstance(data, Mapping):
        raise InvalidOptionError(f"{where} is {_kind_of(data)}, not an object")
    given: dict[str, Any] = {}
    for name, hint, optional in _members(kind):
        if name in data:
            given[name] = _reader(hint)(data[name], f"{where}.{name}")
        elif not optional:
            raise InvalidOptionError(f"{where} lacks {name!r}")
    return kind(**given)


@lru_cache(maxsize=64)
def _members(kind: Any) -> tuple[tuple[str, Any, bool], ...]:
    hints = get_type_hints(kind)
    return tuple(
        (entry.name, hints[entry.name], entry.default is not MISSING or entry.default_factory is not MISSING)
        for entry in fields(kind)
    )


@lru_cache(maxsize=256)
def _reader(hint: Any) -> Callable[[object, str], Any]:
    """What reads a value of a field's type."""
    origin, inner = get_origin(hint), get_args(hint)
    if is_dataclass(hint) and isinstance(hint, type):
        return lambda value, where: _facts(hint, value, where)
    if origin in (UnionType, Union):
        return _one_of(inner)
    if origin is tuple:
        one = _reader(inner[0])
        return lambda value, where: tuple(
            one(item, f"{where}[{index}]") for index, item in enumerate(_checked(value, (list,), where))
        )
    if origin is not None:
        each = _reader(inner[1])
        return lambda value, where: {
            name: each(item, f"{where}.{name}") for name, item in _checked(value, (dict,), where).items()
        }
    return lambda value, where: _checked(value, _PLAIN[hint], where)


def _one_of(hints: tuple[Any, ...]) -> Callable[[object, str], Any]:
    """What reads None or the first that fits; a list or an object is read as what it is for."""
    optional = NoneType in hints
    kept = [hint for hint in hints if hint is not NoneType]
    plain = [kind for hint in kept for kind in _PLAIN.get(hint, ())]
    if len(plain) >= len(kept):
        kinds = (*plain, NoneType) if optional else (*plain,)
        return lambda value, where: _checked(value, kinds, where)
    one = _reader(kept[0])
    return lambda value, where: None if value is None and optional else one(value, where)


def _checked(value: Any, kinds: tuple[type, ...], where: str) -> Any:
    # bool is an int to Python and not to JSON.
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise InvalidOptionError(f"{where} is {_kind_of(value)}, not {' or '.join(_NAMES[kind] for kind in kinds)}")
    return value


def _kind_of(value: object) -> str:
    return next((name for kind, name in _NAMES.items() if type(value) is kind), type(value).__name__)


_NAMES: Mapping[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
    NoneType: "null",
}
