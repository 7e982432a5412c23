"""TOML and JSON read strictly: what comes back is whole, of the types that were asked for, and nothing beside them.

msgspec holds a document against a type. What it finds wrong is said here so that a person finds it too: which file,
entry and key, what stands there, what was expected, and what to do.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

import msgspec

from nnadapter import limits
from nnadapter.errors import FaultScriptError, PlanFileError, ReportFileError, RulesError, StoredFileError
from nnadapter.files.explaining import Place, Twice, brief, explained

FileError = FaultScriptError | PlanFileError | ReportFileError | RulesError | StoredFileError
Contents = TypeVar("Contents")
_DEEP = "values are nested too deeply"


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
    most_bytes: int = limits.TEXT_BYTES
    hints: Mapping[str, str] = field(default_factory=dict)
    """Key of the whole -> what to do where it, or an item of it, is of another kind; else it is the advice."""

    def read(self, path: str | os.PathLike[str]) -> Contents:
        """Return what a file holds. Line ends may be CRLF, and a byte order mark is passed over.

        Raises:
            NNAdapterError: of the kind's own type; the cause is an OSError where the file cannot be read.
        """
        file = os.fsdecode(path)
        try:
            with Path(file).open("rb") as opened:
                contents = opened.read(self.most_bytes + 1)
            text = contents.decode("utf-8-sig") if len(contents) <= self.most_bytes else ""
        except UnicodeDecodeError as error:
            self.refuse(f"it is no UTF-8 text at byte {error.start}; save it as UTF-8", file, cause=error)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            self.refuse(f"it cannot be read: {reason}; check the path", file, cause=error)
        if len(contents) > self.most_bytes:
            self.refuse(f"it has more than {self.most_bytes:,} bytes; {self.advice}", file)
        return self.parsed(text, file)

    def parsed(self, text: str, file: str) -> Contents:
        """Return what a text holds, called `file` in messages.

        Raises:
            NNAdapterError: of the kind's own type.
        """
        try:
            document = self.parse(text)
        except (ValueError, RecursionError) as error:
            reason = _DEEP if isinstance(error, RecursionError) else error
            self.refuse(f"it does not parse, or is cut off: {reason}; {self.advice}", file, cause=error)
        return self.converted(document, file)

    def converted(self, document: object, file: str = "") -> Contents:
        """Return what a parsed document holds.

        Raises:
            NNAdapterError: of the kind's own type.
        """
        if isinstance(document, Twice):
            self.refuse(f"{document}; {self.advice}", file, (document.key,))
        for key, expected in self.header.items():
            if not isinstance(document, Mapping) or key not in document:
                self.refuse(f"it is no {self.name}: it has no key {key!r}; {self.advice}", file)
            if (type(document[key]), document[key]) != (type(expected), expected):
                self.refuse(f"expected {expected!r}, got {brief(document[key])}; {self.advice}", file, (key,))
        if self.header and isinstance(document, Mapping):
            document = {key: value for key, value in document.items() if key not in self.header}
        try:
            return msgspec.convert(document, self.contents)
        except (msgspec.ValidationError, SystemError) as error:  # that: too large a number, before msgspec 0.22
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
        """Raise the kind's error."""
        entry, key = _entry_and_key(place)
        location_parts = [f"{self.name} {file!r}" if file else self.name, entry, key and f"key {key!r}"]
        raise self.error(
            f"{', '.join(filter(None, location_parts))}: {problem}", file=file, entry=entry, key=key
        ) from cause


def check_fields(value: msgspec.Struct, error: type[FileError]) -> None:
    """Check that what was made in Python has the types that a file would need.

    Raises:
        NNAdapterError: it has not; of the type that was given.
    """
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
    raise ValueError(f"{text} is no finite number")


def _entry_and_key(place: Place) -> tuple[str, str]:
    """`("pin", 1, "name")` -> `pin 2` and `name`."""
    *outer, last = place or ("",)
    key, entry = (last, "") if isinstance(last, str) else ("", f" {last + 1}")
    names = (step if isinstance(step, int) or step.isprintable() else repr(step) for step in outer)
    steps = (f" {step + 1}" if isinstance(step, int) else f".{step}" for step in names)
    return f"{''.join(steps)}{entry}".removeprefix("."), key
