"""What msgspec finds wrong with a document, so that a person finds it: where it is, and what stands there."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping
from typing import Any

import msgspec

from nnadapter.errors import close_names

Place = tuple[str | int, ...]
"""Keys and positions from the outside in: `("pin", 0, "device")`."""


class Twice:
    """Stands for an object that names a key twice; it is of no type that anybody asks for."""

    def __init__(self, key: str) -> None:
        self.key = key

    def __str__(self) -> str:
        return "it stands twice"


def explained(document: object, kind: Any, error: msgspec.ValidationError) -> tuple[Place, str]:
    """Return what msgspec found wrong: where, and in words.

    Args:
        document: what was to be converted.
        kind: to what.
        error: what msgspec said.
    """
    place: Place
    text = str(error)
    place_match = _AT.search(text)
    named = _UNKNOWN.fullmatch(text)
    if place_match is None or (
        named and isinstance(document, Mapping) and named[1] in document
    ):  # it may look like a place
        place, said, wrong_value = (), text, document
    else:
        place, said = (
            _place(document, kind, place_match[2] + ("[...]" if place_match[1] else ""), text),
            text[: place_match.start()],
        )
        wrong_value = place[-1] if place_match[1] else _value(document, place)
    if error.__cause__ is not None:
        return place, str(error.__cause__)
    if isinstance(wrong_value, Twice):
        return (*place, wrong_value.key), str(wrong_value)
    if missing := _MISSING.fullmatch(said):
        return (*place, missing[1]), "it is missing"
    if unknown := _UNKNOWN.fullmatch(said):
        return (*place, unknown[1]), f"there is no such key; {close_names(unknown[1], _names(kind, place))}"
    if said.startswith("Invalid enum"):
        names = _names(kind, place[:-1] if place_match and place_match[1] else place)
        return place, f"it is not known; {close_names(wrong_value, names)}"
    if expected := _EXPECTED.fullmatch(said):
        kinds = " or ".join(_WORDS.get(each, each) for each in expected[1].split(" | "))
        return place, f"expected {kinds}{expected[2]}, got {brief(wrong_value)}"
    return place, f"{said[:1].lower()}{said[1:]}, got {brief(wrong_value)}"


def _place(document: object, kind: Any, path: str, text: str) -> Place:
    """The place of msgspec's path. It names no keys of mappings: the first one with which it says `text` is meant."""
    place: Place = ()
    for name, position in _STEP.findall(path):
        step = name or (int(position) if position.isdecimal() else _key(document, kind, place, text))
        if position == "...":  # what follows is about this one, whatever else is wrong
            document = _with(document, place, {step: _value(document, (*place, step))})
        place = (*place, step)
    return place


def _key(document: object, kind: Any, place: Place, text: str) -> str:
    items = list(_value(document, place).items())

    def fails(last: int) -> bool:
        try:
            msgspec.convert(_with(document, place, dict(items[: last + 1])), kind)
        except (msgspec.ValidationError, UnicodeEncodeError) as error:
            return str(error) == text
        return False

    return str(items[bisect_left(range(len(items) - 1), True, key=fails)][0])


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
    keys = getattr(known, "key_type", known)
    members = keys.cls if isinstance(keys, msgspec.inspect.EnumType) else ()
    return [*(each.encode_name for each in getattr(known, "fields", ())), *map(str, members)]


def brief(value: object) -> str:
    """Return a value as a message shows it."""
    if isinstance(value, (list, tuple, dict)):  # they may hold more than a message can
        return "an object" if isinstance(value, dict) else f"a list of {len(value)}"
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:  # Python writes no number of thousands of digits
        return f"one of {value.bit_length()} bits"
    text = "nothing" if value is None else repr(value)
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
