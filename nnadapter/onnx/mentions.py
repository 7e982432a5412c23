"""Whether a serialized model mentions an op, told without parsing the model and without reading its weights."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

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
    for tag, _, start, end in fields(contents, 0, len(contents)):
        for inner, _, at, stop in fields(contents, start, end) if tag >> 3 == _GRAPH else ():
            if inner >> 3 in _WEIGHTS:
                yield begin, at
                begin = stop
    yield begin, len(contents)
