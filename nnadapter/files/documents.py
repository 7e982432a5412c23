"""Strict reading of TOML and JSON: exact types, no unknown fields, errors with location.

msgspec converts documents. Its messages lack the keys of mappings, so this module locates errors itself.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import NoneType
from typing import Any, Generic, NoReturn, TypeVar

import msgspec
from msgspec import inspect

from nnadapter import limits
from nnadapter.errors import FaultScriptError, PlanFileError, ReportFileError, RulesError, StoredFileError, close_names
from nnadapter.records import dataclass, field

Place = tuple[str | int, ...]
"""Path to a value: `("pin", 0, "device")`."""
Fault = tuple[Place, str]
"""Path and description of an error."""


class Twice:
    """Placeholder for an object with a duplicate key, which no type accepts."""

    def __init__(self, key: str) -> None:
        self.key = key

    def __str__(self) -> str:
        return "it occurs twice"


def explained(document: object, kind: Any) -> Fault:
    """Return place and text of the first error that prevents the conversion of a document to `kind`."""
    return next(_faults(document, inspect.type_info(kind)), ((), f"expected something else, got {brief(document)}"))


def brief(value: object) -> str:
    """Shorten a value for a message."""
    if isinstance(value, (list, tuple, dict)):  # may be too long for a message
        return "an object" if isinstance(value, dict) else f"a list of {len(value)}"
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:  # Python refuses to print very long integers
        return f"one of {value.bit_length()} bits"
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _faults(value: Any, type_info: Any) -> Iterator[Fault]:
    if isinstance(value, Twice):
        yield (value.key,), str(value)
    elif isinstance(type_info, inspect.UnionType):
        yield from _of_union(value, type_info)
    elif type(type_info) in _KINDS:
        name, kinds, rule = _KINDS[type(type_info)]
        if _is_of(value, kinds):
            yield from rule(value, type_info)
        else:
            yield (), f"expected {name}, got {brief(value)}"


def _is_of(value: object, kinds: Any) -> bool:
    return isinstance(value, bool) if kinds is bool else isinstance(value, kinds) and not isinstance(value, bool)


def _within(step: str | int, faults: Iterator[Fault]) -> Iterator[Fault]:
    for place, problem in faults:
        yield (step, *place), problem


def _of_union(value: Any, type_info: inspect.UnionType) -> Iterator[Fault]:
    faults = [next(_faults(value, member), None) for member in type_info.types]
    if None in faults:
        return
    kinds = [type(member) for member in type_info.types]
    matching_faults = (fault for fault, kind in zip(faults, kinds, strict=True) if _is_of(value, _KINDS[kind][1]))
    words = " or ".join(name for kind, (name, _, _) in _KINDS.items() if kind in kinds)
    yield next(filter(None, matching_faults), None) or ((), f"expected {words}, got {brief(value)}")


def _of_fields(value: Any, type_info: inspect.StructType | inspect.DataclassType) -> Iterator[Fault]:
    if not isinstance(value, Mapping):
        return
    fields = {struct_field.encode_name: struct_field for struct_field in type_info.fields}
    for key, item in value.items():
        if key in fields:
            yield from _within(key, _faults(item, fields[key].type))
        elif getattr(type_info, "forbid_unknown_fields", False):
            yield (key,), f"unknown key; {close_names(key, list(fields))}"
    for key, declared in fields.items():
        if declared.required and key not in value:
            yield (key,), "it is missing"
    try:  # checks in __post_init__
        msgspec.convert(value, type_info.cls)
    except msgspec.ValidationError as error:
        if error.__cause__ is not None:
            yield (), str(error.__cause__)


def _of_mapping(value: Mapping[Any, Any], type_info: inspect.DictType) -> Iterator[Fault]:
    for key, item in value.items():
        yield from _within(key, chain(_faults(key, type_info.key_type), _faults(item, type_info.value_type)))


def _of_items(value: Sequence[Any], type_info: Any) -> Iterator[Fault]:
    if isinstance(type_info, inspect.TupleType):
        if len(value) != len(type_info.item_types):
            yield (), f"expected a list of length {len(type_info.item_types)}, got {brief(value)}"
        kinds: Sequence[Any] = type_info.item_types
    else:
        if type_info.min_length is not None and len(value) < type_info.min_length:
            yield (), f"expected a list of length >= {type_info.min_length}, got {brief(value)}"
        kinds = [type_info.item_type] * len(value)
    for position, (item, kind) in enumerate(zip(value, kinds, strict=False)):
        yield from _within(position, _faults(item, kind))


def _of_text(value: str, type_info: inspect.StrType) -> Iterator[Fault]:
    if type_info.min_length is not None and len(value) < type_info.min_length:
        yield (), f"expected a text of length >= {type_info.min_length}, got {brief(value)}"


def _of_number(value: float, type_info: inspect.IntType | inspect.FloatType) -> Iterator[Fault]:
    name, kinds, _ = _KINDS[type(type_info)]
    kind = float if float in kinds else int
    if kind is float and isinstance(value, int) and abs(value) > _LARGEST:
        yield (), f"number out of range, got {brief(value)}"
    elif type_info.ge is not None and not value >= type_info.ge:  # `not`: NaN compares false
        yield (), f"expected {name} >= {kind(type_info.ge)}, got {brief(value)}"
    elif type_info.le is not None and value > type_info.le:
        yield (), f"expected {name} <= {kind(type_info.le)}, got {brief(value)}"


def _of_names(value: object, type_info: inspect.EnumType) -> Iterator[Fault]:
    names = [member.value for member in type_info.cls]
    if value not in names:
        yield (), f"unknown name; {close_names(value, names)}"


def _nothing(value: object, type_info: object) -> Iterator[Fault]:
    return iter(())


_LONGEST, _MOST_BITS = 60, 128
"""Limits in messages: characters, and bits of an integer."""
_LARGEST = 1.7976931348623157e308
_KINDS: Mapping[type, tuple[str, Any, Callable[[Any, Any], Iterator[Fault]]]] = {
    inspect.BoolType: ("true or false", bool, _nothing),
    inspect.IntType: ("a whole number", (int,), _of_number),
    inspect.FloatType: ("a number", (int, float), _of_number),
    inspect.StrType: ("a text", str, _of_text),
    inspect.StructType: ("an object", (Mapping, msgspec.Struct), _of_fields),
    inspect.DataclassType: ("an object", Mapping, _of_fields),
    inspect.DictType: ("an object", Mapping, _of_mapping),
    inspect.ListType: ("a list", (list, tuple), _of_items),
    inspect.VarTupleType: ("a list", (list, tuple), _of_items),
    inspect.TupleType: ("a list", (list, tuple), _of_items),
    inspect.EnumType: ("a name", object, _of_names),
    inspect.NoneType: ("nothing", NoneType, _nothing),
}
"""Type -> its name in messages, accepted Python types, and further checks."""


FileError = FaultScriptError | PlanFileError | ReportFileError | RulesError | StoredFileError
Contents = TypeVar("Contents")
_DEEP = "values are nested too deeply"


def parse_json(text: str) -> object:
    """Parse JSON; an object with a duplicate key becomes `Twice`. Raises ValueError and RecursionError."""
    return json.loads(text, object_pairs_hook=_object, parse_float=_finite, parse_constant=_finite)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileKind(Generic[Contents]):
    """Format of one kind of file: its header, contents and errors."""

    name: str
    contents: type[Contents]
    """Type of the contents, without the header."""
    error: type[FileError]
    advice: str
    header: Mapping[str, object] = field(default_factory=dict)
    """Top-level keys with their required values."""
    upgrade: Callable[[object], object] | None = None
    """Function that converts documents of older versions to the current one."""
    parse: Callable[[str], object] = parse_json
    most_bytes: int = limits.TEXT_BYTES
    hints: Mapping[str, str] = field(default_factory=dict)
    """Top-level key -> advice for values of the wrong type."""

    def read(self, path: str | os.PathLike[str]) -> Contents:
        """Read a file, also with CRLF or a byte order mark, and convert it to `contents`. Raises `error`."""
        file = os.fsdecode(path)
        try:
            with Path(file).open("rb") as opened:
                contents = opened.read(self.most_bytes + 1)
            text = contents.decode("utf-8-sig") if len(contents) <= self.most_bytes else ""
        except UnicodeDecodeError as error:
            self.refuse(f"it is not UTF-8 at byte {error.start}; save it as UTF-8", file, cause=error)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            self.refuse(f"it cannot be read: {reason}; check the path", file, cause=error)
        if len(contents) > self.most_bytes:
            self.refuse(f"it has more than {self.most_bytes:,} bytes; {self.advice}", file)
        return self.parsed(text, file)

    def parsed(self, text: str, file: str) -> Contents:
        """Parse a text under the rules of `read`. Errors mention the name `file`. Raises `error`."""
        try:
            document = self.parse(text)
        except (ValueError, RecursionError) as error:
            reason = _DEEP if isinstance(error, RecursionError) else error
            self.refuse(f"it does not parse, or is cut off: {reason}; {self.advice}", file, cause=error)
        return self.converted(document, file)

    def converted(self, document: object, file: str = "") -> Contents:
        """Check a parsed document, and convert it to `contents`. Raises `error`."""
        if isinstance(document, Twice):
            self.refuse(f"{document}; {self.advice}", file, (document.key,))
        if self.upgrade is not None:
            document = self.upgrade(document)
        for key, expected in self.header.items():
            if not isinstance(document, Mapping) or key not in document:
                self.refuse(f"it is not a {self.name}: it has no key {key!r}; {self.advice}", file)
            if type(document[key]) is type(expected) is int and document[key] > expected:
                self.refuse(
                    f"expected at most {expected!r}, got {brief(document[key])}; update nnadapter", file, (key,)
                )
            if (type(document[key]), document[key]) != (type(expected), expected):
                self.refuse(f"expected {expected!r}, got {brief(document[key])}; {self.advice}", file, (key,))
        if self.header and isinstance(document, Mapping):
            document = {key: value for key, value in document.items() if key not in self.header}
        try:
            return msgspec.convert(document, self.contents)
        except (msgspec.ValidationError, SystemError) as error:  # SystemError: too large a number, before msgspec 0.22
            place, problem = explained(document, self.contents)
            is_own = isinstance(error, msgspec.ValidationError) and error.__cause__ is not None
            if not is_own and not problem.endswith("?"):
                inner = any(isinstance(step, str) for step in place[1:])
                problem += f"; {self.advice if inner or not place else self.hints.get(str(place[0]), self.advice)}"
            self.refuse(problem, file, place, error)
        except RecursionError as error:
            self.refuse(f"{_DEEP}; {self.advice}", file, cause=error)
        except UnicodeEncodeError as error:
            self.refuse(f"a key holds half of a character: {error.reason}; {self.advice}", file, cause=error)

    def refuse(self, problem: str, file: str, place: Place = (), cause: BaseException | None = None) -> NoReturn:
        entry, key = _entry_and_key(place)
        location_parts = [f"{self.name} {file!r}" if file else self.name, entry, key and f"key {key!r}"]
        raise self.error(
            f"{', '.join(filter(None, location_parts))}: {problem}", file=file, entry=entry, key=key
        ) from cause


def check_fields(value: msgspec.Struct, error: type[FileError]) -> None:
    """Raise `error` unless each field of `value` has the type that a file requires."""
    for struct_field in msgspec.structs.fields(value):
        field_value = getattr(value, struct_field.name)
        try:
            msgspec.convert(float(field_value) if isinstance(field_value, float) else field_value, struct_field.type)
        except msgspec.ValidationError as wrong:
            place, problem = explained(field_value, struct_field.type)
            item = "".join(f", item {step + 1}" for step in place if isinstance(step, int))
            raise error(f"{struct_field.encode_name!r}{item}: {problem}", key=struct_field.encode_name) from wrong


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any] | Twice:
    mapping = dict(pairs)
    if len(mapping) == len(pairs):
        return mapping
    return Twice(next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1))


def _finite(text: str) -> float:
    number = float(text)
    if math.isfinite(number):
        return number
    raise ValueError(f"{text} is not a finite number")


def _entry_and_key(place: Place) -> tuple[str, str]:
    *outer, last = place or ("",)
    key, entry = (last, "") if isinstance(last, str) else ("", f" {last + 1}")
    names = (step if isinstance(step, int) or step.isprintable() else repr(step) for step in outer)
    steps = (f" {step + 1}" if isinstance(step, int) else f".{step}" for step in names)
    return f"{''.join(steps)}{entry}".removeprefix("."), key
