"""Cache entries with the plans of a session.

The last part, `links`, lists all parts in JSON: own parts by number, and linked parts by the name of their entry, with
length and SHA-256.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from nnadapter.engine.compiled_file import CompiledFile
from nnadapter.engine.plan_source import InputShapes, OriginalModelShapes
from nnadapter.errors import CompiledModelError
from nnadapter.store.container import Container, ContainerWriter, Part
from nnadapter.store.folder import Entry, Folder, Key, Miss, UnusableError

_LINKS = "links"


class LinkingWriter(ContainerWriter):
    """Writer of a plan entry, with links to parts in other entries."""

    def __init__(self, inner: ContainerWriter) -> None:
        self._inner = inner
        self._rows: list[list[Any]] = []
        self._numbers: dict[int | str, int] = {}

    def add(self, kind: str, *pieces: bytes | memoryview) -> int:
        number = self._inner.add(kind, *pieces)
        return self._number_of(number, [kind, number])

    def link(self, kind: str, name: str, entry: Entry) -> int:
        """Add a link to another entry's contents, and return its number among the parts."""
        return self._number_of(name, [kind, name, entry.row.length, entry.row.sha256.hex()])

    def finish(self) -> None:
        """Write the list of parts and links; the caller finishes the file."""
        self._inner.add(_LINKS, json.dumps(self._rows).encode())

    def _number_of(self, place: int | str, row: list[Any]) -> int:
        if place not in self._numbers:
            self._numbers[place] = len(self._rows)
            self._rows.append(row)
        return self._numbers[place]


class LinkedContainer(Container):
    """Reader of a plan entry. `find` returns the entry with a name, or the reason for its absence."""

    def __init__(self, entry: Entry, find: Callable[[str], Entry | str]) -> None:
        self._own, self.name, self._find = entry.container, entry.container.name, find
        try:
            rows = json.loads(bytes(self._own.contents(len(self._own.parts) - 1, _LINKS)))
            self._places = [row[1] for row in rows]
            self.parts = tuple(self._part(*row) for row in rows)
        except (ValueError, TypeError, IndexError, RecursionError) as error:
            raise self.damaged(f"the list of parts cannot be read ({type(error).__name__})") from error

    def check_links(self) -> None:
        for place, part in zip(self._places, self.parts, strict=True):
            if not isinstance(place, int):
                self._linked(place, part)

    def copy_part(self, number: int, writer: LinkingWriter) -> int:
        """Add a part, or the same link, to another plan entry, and return its number there."""
        part, place = self.parts[number], self._places[number]
        if isinstance(place, int):
            return writer.add(part.kind, self._own.contents(place))
        entry = self._find(place)
        if isinstance(entry, str):
            raise CompiledModelError(f"{self.name!r}: {entry}", file=self.name)
        return writer.link(part.kind, place, entry)

    def check_ahead(self, numbers: Iterable[int]) -> None:
        """Do nothing: the caller reads the parts immediately."""

    def verify(self) -> None:
        self._own.verify()

    def _checked_data(self, number: int, part: Part) -> memoryview:
        place = self._places[number]
        return self._own.contents(place) if isinstance(place, int) else self._linked(place, part)

    def _linked(self, name: str, part: Part) -> memoryview:
        entry = self._find(name)
        if isinstance(entry, str):
            raise CompiledModelError(f"{self.name!r}: {entry}", file=self.name)
        try:
            if (entry.row.sha256, entry.row.length) == (part.sha256, part.length):
                return entry.made
        except UnusableError as error:
            raise CompiledModelError(
                f"{self.name!r} needs the program in cache entry {name!r}, which cannot be used: {error}",
                file=self.name,
            ) from error
        raise CompiledModelError(
            f"{self.name!r} needs the program in cache entry {name!r}, which holds another one", file=self.name
        )

    def _part(self, kind: str, place: int | str, length: int = 0, digest: str = "") -> Part:
        if isinstance(place, int) and place >= 0:
            own_part = self._own.parts[place]
            return Part(kind, own_part.offset, own_part.length, own_part.crc32, own_part.sha256)
        if not isinstance(place, str) or not isinstance(kind, str) or not isinstance(length, int):
            raise TypeError
        return Part(kind, 0, length, 0, bytes.fromhex(digest))


FACTS = "facts"
"""Kind of the part with the shapes that the original model serves, and device names; only in cache entries."""
MOST_PLANS = 8
"""Maximum number of plans in an entry; the newest are stored."""


class Place(NamedTuple):
    """Folder and key of a session's plans in the cache."""

    folder: Folder
    key: Key

    def open_file(self) -> CompiledFile | str:
        """Return the cached plans, or the reason for their absence; warn of a defective entry."""
        entry = self.folder.find(self.key)
        if isinstance(entry, Entry):
            try:
                return CompiledFile(LinkedContainer(entry, self._named_entry))
            except CompiledModelError as error:
                entry = Miss(str(error), is_defect=True)
        return self.folder.warn_of_miss(entry)

    def _named_entry(self, name: str) -> Entry | str:
        entry = self.folder.named(name)
        return entry if isinstance(entry, Entry) else entry.reason


def facts(devices: Sequence[str], by_truths: OriginalModelShapes) -> bytes:
    """Serialize device names, and shapes that run with all branches, for the part `FACTS`."""
    rows = [[truths, None if shapes is None else sorted(shapes, key=repr)] for truths, shapes in by_truths.items()]
    return json.dumps({"devices": list(devices), "left": rows}).encode()


def read_facts(container: Container) -> tuple[tuple[str, ...], OriginalModelShapes]:
    """Return the device names and shapes that `facts` serialized."""
    try:
        number = next(number for number, part in enumerate(container.parts) if part.kind == FACTS)
        data = json.loads(bytes(container.contents(number)))
        original_model_shapes = {
            tuple(map(bool, truths)): None if rows is None else frozenset(map(_shapes, rows))
            for truths, rows in data["left"]
        }
        return tuple(map(str, data["devices"])), original_model_shapes
    except (StopIteration, ValueError, KeyError, TypeError, RecursionError) as error:
        raise container.damaged(f"the list of devices cannot be read ({type(error).__name__})") from error


def _shapes(rows: Sequence[Sequence[int] | None]) -> InputShapes:
    return tuple(None if row is None else tuple(map(int, row)) for row in rows)
