"""Where the plans of a session are kept, and what is there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from nnadapter.caching.entry import Entry
from nnadapter.caching.folder import Folder, Miss
from nnadapter.caching.key import Key
from nnadapter.compiled_models.reading import CompiledFile
from nnadapter.errors import CompiledModelError
from nnadapter.files.container.reading import Container
from nnadapter.kept_plans.links import LinkedContainer
from nnadapter.running.by_plans import InputShapes, Left

FACTS = "facts"
"""The kind of the part that says what no compiled model does."""
MOST_PLANS = 8
"""In an entry; those made last."""


class Place(NamedTuple):
    """Where the plans of a session are kept."""

    folder: Folder
    key: Key

    def opened(self) -> CompiledFile | str:
        """The plans that are kept, or why there are none; a person is warned where something is wrong."""
        found = self.folder.find(self.key)
        if isinstance(found, Entry):
            try:
                return CompiledFile(LinkedContainer(found, self._found))
            except CompiledModelError as error:
                found = Miss(str(error), is_defect=True)
        return self.folder.told(found)

    def _found(self, name: str) -> Entry | str:
        found = self.folder.named(name)
        return found if isinstance(found, Entry) else found.why


def facts(devices: Sequence[str], left: Left) -> bytes:
    """Return the part `FACTS` of a session with these devices, and choices that it left to the model as given."""
    rows = [[truths, None if shapes is None else sorted(shapes, key=repr)] for truths, shapes in left.items()]
    return json.dumps({"devices": list(devices), "left": rows}).encode()


def facts_of(container: Container) -> tuple[tuple[str, ...], Left]:
    """Return the names of the devices of the session whose plans are kept, and what it left; see `facts`.

    Raises:
        CompiledModelError: they are not told.
    """
    try:
        number = next(number for number, part in enumerate(container.parts) if part.kind == FACTS)
        told = json.loads(bytes(container.contents(number)))
        left = {
            tuple(map(bool, truths)): None if rows is None else frozenset(map(_shapes, rows))
            for truths, rows in told["left"]
        }
        return tuple(map(str, told["devices"])), left
    except (StopIteration, ValueError, KeyError, TypeError, RecursionError) as error:
        raise container.damaged(f"its devices cannot be read ({type(error).__name__})") from error


def _shapes(rows: Sequence[Sequence[int] | None]) -> InputShapes:
    return tuple(None if row is None else tuple(map(int, row)) for row in rows)
