"""Where things stand in a TOML or JSON text, so that an error can name the line.

Parsers of the standard library say what a text means and not where. What they accepted is gone through once more here.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from collections.abc import Mapping

Path = tuple[str | int, ...]
"""Keys and positions from the outside in: `("pin", 0, "device")`."""

_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_STRING = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}'
    r"|'''.*?'{3,5}"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR = re.compile(r"[^,\]}\n#]*")


def toml_lines(text: str) -> Mapping[Path, int]:
    """Return the line, counted from 1, of every table, key and element of an array in a TOML document.

    Args:
        text: what `tomllib.loads` accepts.
    """
    scan = _Scan(text)
    table: Path = ()
    counts: dict[Path, int] = {}
    while scan.more():
        if not scan.sees("["):
            scan.pair(table)
            continue
        start = scan.at
        double = text.startswith("[[", start)
        scan.at += 1 + double
        table = _table(scan.key(), counts, double)
        for length in range(1, len(table) + 1):
            scan.note(table[:length], start)
        scan.space()
        scan.at += 1 + double
    return scan.lines


def json_lines(text: str) -> Mapping[Path, int]:
    """Return the line, counted from 1, of every key and element of an array in a JSON document.

    Args:
        text: what `json.loads` accepts.
    """
    scan = _Scan(text)
    scan.space()
    scan.value(())
    return scan.lines


def _table(key: tuple[str, ...], counts: dict[Path, int], double: bool) -> Path:
    """The path that a header names; arrays of tables on the way stand for their last element."""
    path: Path = ()
    for part in key[:-1]:
        path = (*path, part)
        if path in counts:
            path = (*path, counts[path])
    path = (*path, key[-1])
    if double:
        counts[path] = counts.get(path, -1) + 1
    return (*path, counts[path]) if path in counts else path


def _unquoted(key: str) -> str:
    """What a quoted key says; as it stands where it has an escape that TOML does not know and JSON does."""
    if "\\" not in key or key[0] == "'":
        return key[1:-1]
    try:
        return str(tomllib.loads(f"key = {key}")["key"])
    except tomllib.TOMLDecodeError:
        return key[1:-1]


class _Scan:
    """Goes through a text once; `lines` grows."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.lines: dict[Path, int] = {}
        self._ends = [match.start() for match in re.finditer("\n", text)]

    def more(self) -> bool:
        """Go on to what is no white space; whether there is any."""
        self.space()
        return self.at < len(self.text)

    def space(self) -> None:
        """Pass white space, line ends and comments."""
        found = _SPACE.match(self.text, self.at)
        self.at = found.end() if found else self.at

    def sees(self, character: str) -> bool:
        """Whether it is what comes next."""
        return self.text.startswith(character, self.at)

    def note(self, path: Path, at: int) -> None:
        """Keep the line of what begins at `at`; where it was mentioned before, the first line stays."""
        self.lines.setdefault(path, bisect_right(self._ends, at - 1) + 1)

    def key(self) -> tuple[str, ...]:
        """Pass a key, its dots included."""
        parts = []
        while True:
            self.space()
            if self.sees('"') or self.sees("'"):
                parts.append(_unquoted(self._pass(_STRING)))
            else:
                parts.append(self._pass(_BARE_KEY))
            self.space()
            if not self.sees("."):
                return tuple(parts)
            self.at += 1

    def pair(self, table: Path) -> None:
        """Pass a key, `=` or `:`, and a value."""
        self.space()
        start = self.at
        key = self.key()
        for length in range(1, len(key) + 1):
            self.note((*table, *key[:length]), start)
        self.at += 1
        self.space()
        self.value((*table, *key))

    def value(self, path: Path) -> None:
        """Pass a value of any kind."""
        if self.sees("["):
            self._elements(path)
        elif self.sees("{"):
            self._pairs(path)
        else:
            self._pass(_STRING if self.sees('"') or self.sees("'") else _SCALAR)

    def _elements(self, path: Path) -> None:
        self.at += 1
        position = 0
        while self.more() and not self.sees("]"):
            self.note((*path, position), self.at)
            self.value((*path, position))
            position += 1
            self._comma()
        self.at += 1

    def _pairs(self, path: Path) -> None:
        self.at += 1
        while self.more() and not self.sees("}"):
            self.pair(path)
            self._comma()
        self.at += 1

    def _comma(self) -> None:
        self.space()
        self.at += self.sees(",")

    def _pass(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.text, self.at)
        assert found, f"a text that its parser accepted is not understood at {self.at}"
        self.at = found.end()
        return found.group()
