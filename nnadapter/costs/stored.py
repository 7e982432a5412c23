"""JSON files that are kept: written whole or not at all, read back strictly."""

from __future__ import annotations

import errno
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from nnadapter.errors import StoredFileError
from nnadapter.files.replacing import replace_file


@dataclass(frozen=True, slots=True)
class Entry:
    """One place in a file that was read: its value, and what an error says of it."""

    file: Path
    what: str
    """What the file holds, in words."""
    advice: str
    """What to do about a file that cannot be used."""
    value: Any
    path: str = ""
    """Names on the way to it, with dots."""

    def refuse(self, problem: str) -> NoReturn:
        """Raise StoredFileError for this entry."""
        where = f", entry {self.path!r}" if self.path else ""
        raise StoredFileError(f"{self.what} {str(self.file)!r}{where}: {problem}; {self.advice}", file=self.file)

    def members(self, names: Collection[str]) -> dict[str, Entry]:
        """The members of an object that has exactly these."""
        found = self.mapping()
        missing, unknown = sorted(set(names) - set(found)), sorted(set(found) - set(names))
        if missing or unknown:
            self.refuse(f"it lacks {', '.join(missing) or 'nothing'} and has unknown {', '.join(unknown) or 'nothing'}")
        return found

    def mapping(self) -> dict[str, Entry]:
        """The members of an object, whatever they are called."""
        if not isinstance(self.value, dict):
            self.refuse(f"it is {_kind(self.value)}, expected an object")
        return {name: self._inner(name, value) for name, value in self.value.items()}

    def items(self) -> list[Entry]:
        """The items of a list."""
        if not isinstance(self.value, list):
            self.refuse(f"it is {_kind(self.value)}, expected a list")
        return [self._inner(str(position), value) for position, value in enumerate(self.value)]

    def seconds(self) -> float:
        """A finite number that is not negative, nor so large that no device takes as long."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
            self.refuse(f"it is {_shown(value)}, expected a finite number that is not negative")
        if value > _MOST_SECONDS:
            self.refuse(f"it is {_shown(value)}, expected {_MOST_SECONDS:g} at most")
        return float(value)

    def whole(self) -> int:
        """A whole number that is not negative."""
        if isinstance(self.value, bool) or not isinstance(self.value, int) or self.value < 0:
            self.refuse(f"it is {_shown(self.value)}, expected a whole number that is not negative")
        return int(self.value)

    def text(self) -> str:
        """A string."""
        if not isinstance(self.value, str):
            self.refuse(f"it is {_shown(self.value)}, expected a string")
        return str(self.value)

    def equal(self, expected: object) -> None:
        """Exactly this value."""
        if type(self.value) is not type(expected) or self.value != expected:
            self.refuse(f"it is {_shown(self.value)}, expected {expected!r}")

    def _inner(self, name: str, value: Any) -> Entry:
        return Entry(self.file, self.what, self.advice, value, f"{self.path}.{name}" if self.path else name)


def read_entry(file: Path, what: str, advice: str) -> Entry:
    """Return the contents of a JSON file.

    Args:
        file: which.
        what: what it holds, in words, for errors.
        advice: what to do if it cannot be used.

    Raises:
        FileNotFoundError: there is none, and can be none: what should be its folder is a file, or its name too long.
        StoredFileError: it cannot be read, or is no JSON: truncated, a name twice in one object, NaN.
    """
    whole = Entry(file, what, advice, None)
    try:
        text = file.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise
    except UnicodeDecodeError as error:
        whole.refuse(f"it is no text at byte {error.start}: damaged")
    except OSError as error:
        if error.errno in _NO_SUCH_PLACE:
            raise FileNotFoundError(error.errno, error.strerror, str(file)) from error
        whole.refuse(f"it cannot be read: {error.strerror or error}")
    try:
        value = json.loads(text, object_pairs_hook=_once, parse_constant=_constant)
    except json.JSONDecodeError as error:
        whole.refuse(f"line {error.lineno}, column {error.colno}: {error.msg}: truncated or damaged")
    except (ValueError, RecursionError) as error:
        whole.refuse(f"it is no JSON as written here: {error}")
    return Entry(file, what, advice, value)


def write_entry(file: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file, which takes the place of `file` when it is complete; folders are made.

    Raises:
        StoredFileError: it cannot be written.
    """
    text = json.dumps(value, indent=2, allow_nan=False)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, f"{text}\n")
    except OSError as error:
        raise StoredFileError(
            f"{str(file)!r} cannot be written: {error.strerror or error}; set NNADAPTER_CACHE_DIR to a folder that can "
            "be written to",
            file=file,
        ) from error


def write_whole(file: Path, text: str) -> None:
    """Write text to a file that is complete or as it was."""
    replace_file(file, lambda opened: opened.write(text.encode()))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} stands twice in one object")
    return found


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number that is written here")


def _kind(value: object) -> str:
    return _KINDS.get(type(value), type(value).__name__)


def _shown(value: object) -> str:
    return _kind(value) if isinstance(value, (dict, list)) else repr(value)[:80]


_MOST_SECONDS = 1e6
"""Beyond it sums of many lose their meaning."""
_NO_SUCH_PLACE = (errno.ENOTDIR, errno.ENAMETOOLONG)
_KINDS: Mapping[type, str] = {
    dict: "an object",
    list: "a list",
    str: "a string",
    type(None): "null",
    bool: "a truth value",
}
