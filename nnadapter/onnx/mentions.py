"""Whether a serialized model mentions an op, told without parsing the model and without reading its weights."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

Contents = bytes | mmap.mmap
_GRAPH = 7
"""The field of ModelProto."""
_WEIGHTS = frozenset({5, 15})
"""The fields of GraphProto that hold initializers, dense and sparse."""
_FIXED_BYTES = {1: 8, 5: 4}
"""By wire type."""


def mentions(source: str | os.PathLike[str] | bytes, word: bytes) -> bool:
    """Whether the word stands in a model (its path, or its contents) anywhere but in the graph's initializers.

    False for what cannot be read, or is no serialized model or path.
    """
    try:
        if isinstance(source, bytes):
            return _stands_in(source, word)
        with Path(source).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as contents:
            return _stands_in(contents, word)
    except (OSError, ValueError, IndexError, TypeError):
        return False


def _stands_in(contents: Contents, word: bytes) -> bool:
    return any(contents.find(word, start, end) >= 0 for start, end in _beside_weights(contents))


def _beside_weights(contents: Contents) -> Iterator[tuple[int, int]]:
    """Where everything but initializers starts and ends."""
    begin = 0
    for number, start, end in _fields(contents, 0, len(contents)):
        for inner, at, stop in _fields(contents, start, end) if number == _GRAPH else ():
            if inner in _WEIGHTS:
                yield begin, at
                begin = stop
    yield begin, len(contents)


def _fields(contents: Contents, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number of each field of a message, and where what it holds starts and ends."""
    while start < end:
        tag, start = _varint(contents, start)
        size = _FIXED_BYTES.get(tag & 7)
        if size is None:
            value, behind = _varint(contents, start)
            size, start = (value, behind) if tag & 7 == 2 else (behind - start, start)
        yield tag >> 3, start, start + size
        start += size


def _varint(contents: Contents, at: int) -> tuple[int, int]:
    """A number, seven bits a byte and the lowest first, and where it ends."""
    value = shift = 0
    while contents[at] & 0x80:
        value |= (contents[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | contents[at] << shift, at + 1
