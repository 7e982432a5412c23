"""A plan file as a `PlanFile`, every value checked."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from nnadapter.errors import PlanFileError
from nnadapter.files.line_numbers import json_lines
from nnadapter.ir.names import close_names
from nnadapter.plan_files.values import FORMAT, FORMAT_VERSION, PlanEntry, PlanFile

_Place = tuple[str | int, ...]


def read_plan(path: str | os.PathLike[str]) -> PlanFile:
    """Return the plan that a file holds.

    Raises:
        PlanFileError: the file cannot be read, is cut off, is no plan or one of another version, has a value of the
            wrong type or a key that is not known, or contradicts itself. It names file, line and entry.
    """
    source = os.fsdecode(path)
    try:
        text = Path(source).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PlanFileError(f"plan file {source!r} is not UTF-8 text; save it again", path=source) from error
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise PlanFileError(f"plan file {source!r} cannot be read: {why}; check the path", path=source) from error
    return _Reader(source, text).plan(_parsed(source, text))


def _parsed(source: str, text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_Pairs, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        raise PlanFileError(
            f"{source} line {error.lineno}: this is no JSON, or cut off: {error.msg}; save the plan again",
            path=source,
            line=error.lineno,
        ) from error
    except (ValueError, RecursionError) as error:
        why = "values are nested too deeply" if isinstance(error, RecursionError) else error
        raise PlanFileError(f"{source}: this is no plan: {why}; save it again", path=source) from error


class _Pairs(dict[str, Any]):
    """An object; `twice` is a key that it holds twice, or None."""

    def __init__(self, pairs: Sequence[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.twice = None if len(self) == len(pairs) else _repeated([key for key, _ in pairs])


def _repeated(names: Sequence[str]) -> str:
    seen: set[str] = set()
    return next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number that JSON knows")


@dataclass(frozen=True, slots=True)
class _Reader:
    """Makes values of a parsed file. Where things stand is looked up once something is wrong."""

    source: str
    text: str

    def plan(self, document: Any) -> PlanFile:
        """The whole file."""
        if not isinstance(document, _Pairs) or document.get("format") != FORMAT:
            self._refuse((), f'this is no plan: its "format" is not {FORMAT!r}; make one with --save-plan')
        version = document.get("format_version")
        if type(version) is not int or version != FORMAT_VERSION:
            self._refuse(
                ("format_version",),
                f"the plan is of format version {version!r}, and this nnadapter reads version {FORMAT_VERSION}; "
                "save the plan again",
            )
        self._check((), document, _HEAD)
        devices, shapes = document["devices"], document["input_shapes"]
        self._check(("devices",), devices, dict.fromkeys(devices, _TEXT))
        self._check(("input_shapes",), shapes, dict.fromkeys(shapes, _SHAPE))
        return PlanFile(
            model=document["model"],
            devices=dict(devices),
            policy=document["policy"],
            input_shapes={name: tuple(shape) for name, shape in shapes.items()},
            entries=self._entries(document["nodes"], devices),
            source=self.source,
        )

    def _entries(self, nodes: Sequence[Any], devices: Mapping[str, str]) -> tuple[PlanEntry, ...]:
        first: dict[str, int] = {}
        found = []
        for number, node in enumerate(nodes):
            if type(node) is not _Pairs:
                self._refuse(("nodes", number), f"it is an object, got {_brief(node)}")
            self._check(("nodes", number), node, _ENTRY)
            entry = PlanEntry(**node)
            if entry.device not in devices:
                self._refuse(
                    ("nodes", number, "device"),
                    f"node {entry.name!r} is on device {entry.device!r}, which is none of the plan's devices; "
                    f"{close_names(entry.device, devices)}",
                )
            before = first.setdefault(entry.name, number)
            if before != number:
                other = nodes[before]["device"]
                what = "stands twice" if other == entry.device else f"is on {other!r} and on {entry.device!r}"
                self._refuse(
                    ("nodes", number), f"node {entry.name!r} {what}, first in entry {before + 1}; keep one of them"
                )
            found.append(entry)
        return tuple(found)

    def _check(self, place: _Place, given: _Pairs, kinds: Mapping[str, _Kind]) -> None:
        """Refuse keys that are missing, unknown or there twice, and values of other kinds."""
        if given.twice is not None:
            self._refuse((*place, given.twice), f"key {given.twice!r} stands twice; keep one of them")
        for key, kind in kinds.items():
            if key not in given:
                self._refuse(place, f"key {key!r} is missing; save the plan again")
            if not kind.fits(given[key]):
                self._refuse((*place, key), f"{key!r} is {kind.name}, got {_brief(given[key])}")
        if len(given) > len(kinds):
            unknown = next(key for key in given if key not in kinds)
            self._refuse((*place, unknown), f"there is no key {unknown!r}; {close_names(unknown, kinds)}")

    def _refuse(self, place: _Place, message: str) -> NoReturn:
        lines = json_lines(self.text)
        while place and place not in lines:  # a key that is missing has no line, what lacks it does
            place = place[:-1]
        line = lines.get(place, 1)
        entry = int(place[1]) + 1 if len(place) > 1 and place[0] == "nodes" else None
        called = f"entry {entry}: " if entry else ""
        raise PlanFileError(f"{self.source} line {line}: {called}{message}", path=self.source, line=line, entry=entry)


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a value may be."""

    name: str
    fits: Callable[[Any], bool]


def _is_shape(value: Any) -> bool:
    return type(value) is list and all(type(size) is int and size >= 0 for size in value)


_TEXT = _Kind("a text", lambda value: type(value) is str)
_NAME = _Kind("a text that is not empty", lambda value: type(value) is str and value != "")
_ANYTHING = _Kind("a value", lambda value: True)
_OBJECT = _Kind("an object", lambda value: type(value) is _Pairs)
_LIST = _Kind("a list", lambda value: type(value) is list)
_SHAPE = _Kind("a list of whole numbers", _is_shape)

_HEAD: Mapping[str, _Kind] = {
    "format": _TEXT,
    "format_version": _ANYTHING,
    "model": _TEXT,
    "devices": _OBJECT,
    "policy": _TEXT,
    "input_shapes": _OBJECT,
    "nodes": _LIST,
}
_ENTRY: Mapping[str, _Kind] = {
    "name": _NAME,
    "op_type": _NAME,
    "output": _TEXT,
    "alone": _NAME,
    "wired": _NAME,
    "device": _NAME,
}


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
