"""One file of a cache: a file of parts with the key, and what was made. See docs/cache.md."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from stat import S_IWOTH
from typing import BinaryIO, NamedTuple

from nnadapter.caching.key import PARTS, Key, KeyPart
from nnadapter.errors import CompiledModelError
from nnadapter.files.container.layout import Part
from nnadapter.files.container.reading import Container
from nnadapter.files.container.writing import ContainerWriter

FORMAT = 1
"""Raised whenever entries change their meaning; others are not used."""
_KEY, MADE = "cache.key", "cache.made"
"""Kinds of parts."""


class UnusableError(Exception):
    """An entry is not used, for this reason. Nobody outside of this room sees it."""


class Entry(NamedTuple):
    """A file that was opened, whose key was read."""

    container: Container
    kind: str
    parts: Mapping[str, KeyPart]
    seconds: float
    """What it took to make."""

    @property
    def row(self) -> Part:
        """What the table says of what was made: its length and SHA-256, unchecked."""
        return self.container.parts[1]

    @property
    def made(self) -> memoryview:
        """What was made, read-only, where the file is mapped.

        Raises:
            UnusableError: it is not what it was.
        """
        try:
            return self.container.contents(1, MADE)
        except CompiledModelError as error:
            raise _damaged(error) from error

    def verify(self) -> None:
        """Read every byte, and raise UnusableError where one is another."""
        try:
            self.container.verify()
        except CompiledModelError as error:
            raise _damaged(error) from error

    def is_for(self, key: Key) -> bool:
        """Whether all of a key is that of the entry."""
        digests = {name: part.digest for name, part in key.parts.items()}
        return self.kind == key.kind and {name: part.digest for name, part in self.parts.items()} == digests


def write_entry(file: BinaryIO, key: Key, fill: Callable[[ContainerWriter], object], seconds: float) -> None:
    """Write an entry of parts that `fill` adds into a file, which is empty."""
    parts = {name: {"digest": part.digest, "words": dict(part.words)} for name, part in key.parts.items()}
    told = {"format": FORMAT, "kind": key.kind, "seconds": seconds, "parts": parts}
    writer = ContainerWriter(file)
    writer.add(_KEY, json.dumps(told).encode())
    fill(writer)
    writer.finish()


def read_entry(path: Path) -> Entry:
    """Open an entry, and read its key.

    Raises:
        OSError: there is none, or it cannot be read.
        UnusableError: it is damaged, of another version, or not ours.
    """
    try:
        container = Container.open(path, _check_writers)
        told = json.loads(bytes(container.contents(0, _KEY)))
        if told["format"] != FORMAT:
            raise UnusableError(f"it has format {told['format']!r}, expected {FORMAT}")
        parts = {name: _part(told["parts"][name]) for name in PARTS}
        return Entry(container, str(told["kind"]), parts, float(told["seconds"]))
    except CompiledModelError as error:
        if isinstance(error.__cause__, OSError):  # such as one that another process dropped just now
            raise error.__cause__ from None
        raise _damaged(error) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UnusableError(f"its key cannot be read ({type(error).__name__})") from error


def _part(told: Mapping[str, object]) -> KeyPart:
    words = told["words"]
    if not isinstance(told["digest"], str) or not isinstance(words, dict):
        raise TypeError
    return KeyPart(told["digest"], {str(name): str(value) for name, value in words.items()})


def _check_writers(status: os.stat_result) -> None:
    """Refuse a file into which somebody else may have written anything; root may write anything anyway."""
    if not hasattr(os, "geteuid"):
        return
    if status.st_uid not in (os.geteuid(), 0):
        raise UnusableError(f"it belongs to another user (number {status.st_uid})")
    if status.st_mode & S_IWOTH:
        raise UnusableError("anybody may write into it")


def _damaged(error: CompiledModelError) -> UnusableError:
    """The same in the words of a cache: which file it is, and what to do, is said elsewhere."""
    return UnusableError(f"it is damaged: {str(error).partition(' is damaged: ')[2].partition(';')[0] or error}")
