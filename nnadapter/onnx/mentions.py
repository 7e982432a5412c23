"""Whether a serialized model mentions an op, told without parsing the model and without reading its weights."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

from nnadapter.onnx.wire_format import Contents, fields

_GRAPH = 7
"""The field of ModelProto."""
_WEIGHTS = frozenset({5, 15})
"""The fields of GraphProto that hold initializers, dense and sparse."""


def mentions(source: str | os.PathLike[str] | bytes, word: bytes) -> bool:
    """Whether the word stands in a model (its path, or its contents) anywhere but in the graph's initializers.

    False for what cannot be read, or is no serialized model or path.
    """
    try:
        with mapped(source) as contents:
            return bool(mentioned(contents, frozenset((word,))))
    except (OSError, ValueError, IndexError, TypeError):
        return False


@contextmanager
def mapped(source: str | os.PathLike[str] | bytes) -> Iterator[Contents]:
    """Give the contents of a model; a file is mapped into memory.

    Raises:
        OSError, ValueError, TypeError: it cannot be read, is empty, or is no path.
    """
    if isinstance(source, bytes):
        yield source
        return
    with open(source, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as contents:
        yield contents


def mentioned(contents: Contents, words: frozenset[bytes]) -> frozenset[bytes]:
    """Return the words that stand anywhere in a model but in the graph's initializers.

    Raises:
        IndexError: the contents are no model.
    """
    return frozenset(filter(search(contents), words))


def search(contents: Contents) -> Callable[[bytes], bool]:
    """Return a function that searches a model for a word, beside the graph's initializers, and remembers the answer.

    Raises:
        IndexError: the contents are no model.
    """
    parts = list(_beside_weights(contents))

    @cache
    def is_mentioned(word: bytes) -> bool:
        return any(contents.find(word, start, end) >= 0 for start, end in parts)

    return is_mentioned


def _beside_weights(contents: Contents) -> Iterator[tuple[int, int]]:
    """Where everything but initializers starts and ends."""
    begin = 0
    for tag, _, start, end in fields(contents, 0, len(contents)):
        for inner, _, at, stop in fields(contents, start, end) if tag >> 3 == _GRAPH else ():
            if inner >> 3 in _WEIGHTS:
                yield begin, at
                begin = stop
    yield begin, len(contents)
