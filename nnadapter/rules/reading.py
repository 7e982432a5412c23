"""A rules file, or its text, as `Rules`."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from nnadapter.drivers.registry import sources
from nnadapter.errors import RulesError
from nnadapter.files.line_numbers import toml_lines
from nnadapter.ir.names import close_names
from nnadapter.rules.values import Ban, Limits, Pin, Rules

TEXT = "the rules' text"
"""What messages call rules that were given as a text."""
_RULE_KEYS = ("device", "op_type", "name", "from", "to")
_LIMIT_KEYS = ("max_segments", "min_benefit_ms", "min_nodes", "min_flops", "whole_graph")
_TABLES = ("pin", "ban", "limits")
_PARSER_PLACE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")

_Rule = TypeVar("_Rule", Pin, Ban)


def read_rules(given: str | os.PathLike[str] | Rules) -> Rules:
    """Return the rules of a TOML file.

    Line ends may be CRLF, and a byte order mark is passed over.

    Args:
        given: a path; a text of more than one line; or rules, which are checked and returned.

    Raises:
        RulesError: the file cannot be read, is no TOML, has a key that is not known or a value that does not fit,
            names a device that no driver offers, or contradicts itself. It names file, line and rule.
    """
    rules = given if isinstance(given, Rules) else _read(given)
    for rule in rules:
        if rule.device.partition(":")[0] not in sources():
            raise RulesError(
                f"{rules.place(rule)}: no driver offers a device named {rule.device!r}; "
                f"{close_names(rule.device, sources())}",
                source=rules.source,
                line=rule.line,
            )
    return rules


def _read(given: object) -> Rules:
    if isinstance(given, str) and "\n" in given:
        return _parsed(given.removeprefix("\ufeff"), TEXT)
    if not isinstance(given, (str, os.PathLike)):
        raise RulesError(f"rules are a path, a text or an nnadapter.Rules, got {given!r}")
    source = os.fsdecode(given)
    try:
        text = Path(source).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RulesError(f"rules file {source!r} is not UTF-8 text; save it as UTF-8", source=source) from error
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise RulesError(f"rules file {source!r} cannot be read: {why}; check the path", source=source) from error
    return _parsed(text, source)


def _parsed(text: str, source: str) -> Rules:
    try:
        document = tomllib.loads(text)
    except ValueError as error:
        found = _PARSER_PLACE.search(str(error))
        line = int(found[1]) if found and found[1] else text.count("\n") + 1
        said = _PARSER_PLACE.sub("", str(error))
        raise RulesError(f"{source} line {line}: this is no TOML: {said}", source=source, line=line) from error
    except RecursionError as error:
        raise RulesError(f"{source}: values are nested too deeply; rules need no such depth", source=source) from error
    return _Reader(source, toml_lines(text)).rules(document)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Makes values of a parsed document, and knows where everything stands."""

    source: str
    lines: Mapping[tuple[str | int, ...], int]

    def rules(self, document: Mapping[str, Any]) -> Rules:
        """The whole document."""
        self._check_keys((), document, _TABLES, "")
        pins = tuple(self._rule(Pin, "pin", number, table) for number, table in self._tables("pin", document))
        bans = tuple(self._rule(Ban, "ban", number, table) for number, table in self._tables("ban", document))
        return Rules(pins=pins, bans=bans, limits=self._limits(document), source=self.source)

    def _tables(self, word: str, document: Mapping[str, Any]) -> list[tuple[int, Mapping[str, Any]]]:
        tables = document.get(word, [])
        if not isinstance(tables, list):
            self._refuse((word,), f"[{word}] is a list of tables; write [[{word}]], with two brackets")
        for number, table in enumerate(tables):
            if not isinstance(table, dict):
                self._refuse((word, number), f"{word} {number + 1} is a table, got {table!r}; write [[{word}]]")
        return list(enumerate(tables))

    def _rule(self, kind: type[_Rule], word: str, number: int, table: Mapping[str, Any]) -> _Rule:
        path, called = (word, number), f"{word} {number + 1}: "
        self._check_keys(path, table, _RULE_KEYS, called)
        if "device" not in table:
            self._refuse(path, f'{called}it names no device; add device = "NAME"')
        given = {"from_" if key == "from" else key: value for key, value in table.items()}
        try:
            return kind(**given, line=self._line(path))
        except RulesError as error:
            self._refuse(path, f"{called}{error}", error)

    def _limits(self, document: Mapping[str, Any]) -> Limits:
        table = document.get("limits", {})
        if not isinstance(table, dict):
            self._refuse(("limits",), "limits are one table; write [limits], with one bracket")
        self._check_keys(("limits",), table, _LIMIT_KEYS, "limits: ")
        for key, value in table.items():
            try:
                Limits(**{key: value})
            except RulesError as error:
                self._refuse(("limits", key), f"limits: {error}", error)
        if not table:
            return Limits()
        lines = {key: self._line(("limits", key)) for key in table}
        return replace(Limits(**table), line=self._line(("limits",)), lines=lines)

    def _check_keys(
        self, path: tuple[str | int, ...], table: Mapping[str, Any], known: tuple[str, ...], called: str
    ) -> None:
        for key in table:
            if key not in known:
                self._refuse((*path, key), f"{called}there is no key {key!r}; {close_names(key, known)}")

    def _line(self, path: tuple[str | int, ...]) -> int:
        return self.lines[path]

    def _refuse(self, path: tuple[str | int, ...], message: str, cause: RulesError | None = None) -> NoReturn:
        line = self._line(path)
        raise RulesError(f"{self.source} line {line}: {message}", source=self.source, line=line) from cause
