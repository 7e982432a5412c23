"""TOML and JSON read strictly: what comes back is whole, of the types that were asked for, and nothing beside them.

msgspec holds a document against a type. What it finds wrong is said here so that a person finds it too: which file,
entry and key, what stands there, what was expected, and what to do.
"""

from __future__ import annotations

import json
import math
import os
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

import msgspec

from nnadapter.errors import PlanFileError, ReportFileError, RulesError, StoredFileError, close_names

Place = tuple[str | int, ...]
"""Keys and positions from the outside in: `("pin", 0, "device")`."""
FileError = PlanFileError | ReportFileError | RulesError | StoredFileError
Contents = TypeVar("Contents")


def parse_json(text: str) -> object:
    """Return what a JSON text says; what names a key twice becomes an object of no type that anybody asks for.

    Raises:
        ValueError: it is no JSON, or has a number that is not finite.
        RecursionError: it is nested too deeply.
    """
    return json.loads(text, object_pairs_hook=_object, parse_float=_finite, parse_constant=_finite)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileKind(Generic[Contents]):
    """A kind of file, and how it is read."""

    name: str
    """What messages call it: `rules file`."""
    contents: type[Contents]
    """What it holds beside its header."""
    error: type[FileError]
    """Raised for one that cannot be used."""
    advice: str
    """What to do about it."""
    header: Mapping[str, object] = field(default_factory=dict)
    """Keys of the whole, and what each has to be."""
    parse: Callable[[str], object] = parse_json
    hints: Mapping[str, str] = field(default_factory=dict)
    """Key of the whole -> what to do where it, or an item of it, is of another kind; else it is the advice."""

    def read(self, path: str | os.PathLike[str]) -> Contents:
        """Return what a file holds. Line ends may be CRLF, and a byte order mark is passed over.

        Raises:
            NNAdapterError: of the kind's own type; the cause is an OSError where the file cannot be read.
        """
        file = os.fsdecode(path)
        try:
            text = Path(file).read_bytes().decode("utf-8-sig")
        except UnicodeDecodeError as error:
            self.refuse(f"it is no UTF-8 text at byte {error.start}; save it as UTF-8", file, cause=error)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            self.refuse(f"it cannot be read: {why}; check the path", file, cause=error)
        return self.parsed(text, file)

    def parsed(self, text: str, file: str) -> Contents:
        """Return what a text holds, called `file` in messages.

        Raises:
            NNAdapterError: of the kind's own type.
        """
        try:
            document = self.parse(text)
        except (ValueError, RecursionError) as error:
            why = "values are nested too deeply" if isinstance(error, RecursionError) else error
            self.refuse(f"it is damaged, cut off or no such file: {why}; {self.advice}", file, cause=error)
        return self.converted(document, file)

    def converted(self, document: object, file: str = "") -> Contents:
        """Return what a parsed document holds.

        Raises:
            NNAdapterError: of the kind's own type.
        """
        if isinstance(document, _Twice):
            self.refuse(f"{document}; {self.advice}", file, (document.key,))
        for key, expected in self.header.items():
            if not isinstance(document, Mapping) or key not in document:
                self.refuse(f"it is no {self.name}: it has no key {key!r}; {self.advice}", file)
            if (type(document[key]), document[key]) != (type(expected), expected):
                self.refuse(f"expected {expected!r}, got {_brief(document[key])}; {self.advice}", file, (key,))
        if self.header and isinstance(document, Mapping):
            document = {key: value for key, value in document.items() if key not in self.header}
        try:
            return msgspec.convert(document, self.contents)
        except msgspec.ValidationError as error:
            place, problem = _explained(document, self.contents, error)
            if error.__cause__ is None:
                inner = any(isinstance(step, str) for step in place[1:])
                problem += f"; {self.advice if inner or not place else self.hints.get(str(place[0]), self.advice)}"
            self.refuse(problem, file, place, error)

    def refuse(self, problem: str, file: str, place: Place = (), cause: BaseException | None = None) -> NoReturn:
        """Raise the kind's error."""
        entry, key = _entry_and_key(place)
        called = [f"{self.name} {file!r}" if file else self.name, entry, key and f"key {key!r}"]
        raise self.error(f"{', '.join(filter(None, called))}: {problem}", file=file, entry=entry, key=key) from cause


def check_fields(value: msgspec.Struct, error: type[FileError]) -> None:
    """Check that what was made in Python has the types that a file would need.

    Raises:
        NNAdapterError: it has not; of the type that was given.
    """
    for each in msgspec.structs.fields(value):
        given = getattr(value, each.name)
        try:
            msgspec.convert(float(given) if isinstance(given, float) else given, each.type)
        except msgspec.ValidationError as wrong:
            _, problem = _explained(given, each.type, wrong)
            raise error(f"key {each.encode_name!r}: {problem}", key=each.encode_name) from wrong


class _Twice:
    """An object that names a key twice."""

    def __init__(self, key: str) -> None:
        self.key = key

    def __str__(self) -> str:
        return f"key {self.key!r} stands twice"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any] | _Twice:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    return _Twice(next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1))


def _finite(text: str) -> float:
    number = float(text)
    if math.isfinite(number):
        return number
    raise ValueError(f"{text} is no finite number")


def _explained(document: object, kind: Any, error: msgspec.ValidationError) -> tuple[Place, str]:
    """What msgspec found wrong: where, and in words."""
    text = str(error)
    found = _AT.search(text)
    place = _place(document, kind, found[2], text) if found else ()
    said = text[: found.start()] if found else text
    given = place[-1] if found and found[1] else _value(document, place)
    if error.__cause__ is not None:
        return place, str(error.__cause__)
    if isinstance(given, _Twice):
        return (*place, given.key), str(given)
    if missing := _MISSING.fullmatch(said):
        return (*place, missing[1]), "it is missing"
    if unknown := _UNKNOWN.fullmatch(said):
        return (*place, unknown[1]), f"there is no such key; {close_names(unknown[1], _names(kind, place))}"
    if said.startswith("Invalid enum"):
        return place, f"it is not known; {close_names(given, _names(kind, place[:-1]))}"
    if expected := _EXPECTED.fullmatch(said):
        kinds = " or ".join(_WORDS.get(each, each) for each in expected[1].split(" | "))
        return place, f"expected {kinds}{expected[2]}, got {_brief(given)}"
    return place, f"{said[:1].lower()}{said[1:]}, got {_brief(given)}"


def _place(document: object, kind: Any, path: str, text: str) -> Place:
    """The place of msgspec's path. It names no keys of mappings: the first one with which it says `text` is meant."""
    place: Place = ()
    for name, position in _STEP.findall(path):
        step = name or (int(position) if position.isdecimal() else _key(document, kind, place, text))
        place = (*place, step)
    return place


def _key(document: object, kind: Any, place: Place, text: str) -> str:
    mapping = _value(document, place)
    items = [*mapping.items()] if isinstance(mapping, Mapping) else []

    def fails(last: int) -> bool:
        try:
            msgspec.convert(_with(document, place, dict(items[: last + 1])), kind)
        except msgspec.ValidationError as error:
            return str(error) == text
        return False

    at = bisect_left(range(len(items)), True, key=fails)
    return str(items[at][0]) if at < len(items) else "?"


def _with(document: Any, place: Place, value: object) -> Any:
    """The document with another value at one place."""
    if not place:
        return value
    inner = _with(document[place[0]], place[1:], value)
    if isinstance(document, Mapping):
        return {**document, place[0]: inner}
    return [inner if at == place[0] else each for at, each in enumerate(document)]


def _value(document: Any, place: Place) -> Any:
    for step in place:
        try:
            document = document[step]
        except (LookupError, TypeError):
            return None
    return document


def _names(kind: Any, place: Place) -> list[str]:
    """The keys that may stand at a place."""
    known: Any = msgspec.inspect.type_info(kind)
    for step in place:
        fields = {each.encode_name: each.type for each in getattr(known, "fields", ())}
        known = fields.get(str(step)) or getattr(known, "item_type", None) or getattr(known, "value_type", known)
    keys = getattr(getattr(known, "key_type", None), "cls", ())
    return [*(each.encode_name for each in getattr(known, "fields", ())), *map(str, keys)]


def _entry_and_key(place: Place) -> tuple[str, str]:
    """`("pin", 1, "name")` -> `pin 2` and `name`."""
    *outer, last = place or ("",)
    key, entry = (last, "") if isinstance(last, str) else ("", f" {last + 1}")
    names = (step if isinstance(step, int) or step.isprintable() else repr(step) for step in outer)
    steps = (f" {step + 1}" if isinstance(step, int) else f".{step}" for step in names)
    return f"{''.join(steps)}{entry}".removeprefix("."), key


def _brief(value: object) -> str:
    if isinstance(value, (list, tuple, dict)):  # they may hold more than a message can
        return "an object" if isinstance(value, dict) else f"a list of {len(value)}"
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:  # Python writes no number of thousands of digits
        return f"one of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


_LONGEST, _MOST_BITS = 60, 128
"""Characters of a value in a message, and bits of a number there."""
_AT = re.compile(r" - at (`key` in )?`\$([^`]*)`\Z")
_STEP = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")
_MISSING = re.compile(r"Object missing required field `(.*)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_EXPECTED = re.compile(r"Expected `([^`]*)`(.*?)(?:, got .*)?", re.DOTALL)
_WORDS = {
    "str": "a text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "nothing",
}
"""msgspec's names of kinds of values, in a person's words."""
