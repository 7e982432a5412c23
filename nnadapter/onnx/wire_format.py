"""Protobuf wire format: fields walked through without parsing, op mentions, and size checks.

A serialized model walked through before it is parsed: how much it holds of what takes more memory than its bytes.

Parsers make an object of each message, of a hundred bytes where two are written, and hand them to code that looks at
each again and again. So a model is held against `nnadapter.limits` as bytes:

1. Fields of large messages are counted and looked into. In most models these are the model and its graph.
2. What is small is not walked through. Pairs of bytes in it that can begin a message of a few bytes are counted, at the
   speed of numpy: there are at least as many as such messages.
3. Contents of tensors that are large are passed over.

What is no message ends the walk: whoever parses it says what is wrong.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache

from nnadapter import limits
from nnadapter.errors import InvalidModelError

Contents = bytes | mmap.mmap
NUMBER = 0
"""The wire type of numbers of a variable length."""
BYTES = 2
"""The wire type of messages, strings and bytes."""
GRAPH = 7 << 3 | BYTES
"""The tag of the graph in ONNX's ModelProto."""
INITIALIZER = 5 << 3 | BYTES
"""In GraphProto."""
RAW_DATA = 9 << 3 | BYTES
"""In TensorProto."""
_LONGEST = 10
"""Bytes of a number of 64 bits."""
_FIXED_BYTES = {1: 8, 5: 4}
"""By wire type."""
_NO_TYPES = frozenset((3, 4, 6, 7))
"""Wire types that nothing has here: the ends of groups, and what protobuf keeps for later."""


def fields(contents: Contents, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Give the tag of each field of a message (number and wire type), where it starts, where its value does, and ends.

    Raises:
        IndexError: the contents end in the middle of a number, or are no message.
    """
    at = start
    while at < end:
        tag = contents[at]
        begin = at + 1
        if tag & 0x80:
            tag, begin = varint(contents, at)
        if not tag >> 3 or tag & 7 in _NO_TYPES:
            raise IndexError(f"a tag of {tag}")
        size = _FIXED_BYTES.get(tag & 7)
        if size is None:
            value, value_end = varint(contents, begin)
            size, begin = (value, value_end) if tag & 7 == BYTES else (value_end - begin, begin)
        yield tag, at, begin, begin + size
        at = begin + size


def rewritten(
    contents: Contents, start: int, end: int, tag: int, rewrite: Callable[[int, int], bytes | None]
) -> bytes | None:
    """Return a message with its fields of a tag rewritten, the lengths around written anew; None where none of them is.

    Args:
        contents: in which the message lies.
        start: of the message.
        end: of it.
        tag: of fields that are messages or bytes.
        rewrite: from where the value of a field starts and ends to another one; None where it stays.

    Raises:
        IndexError: the message does not end where it says.
    """
    pieces: list[bytes] = []
    copy_start = start
    for field_tag, at, begin, stop in fields(contents, start, end):
        if stop > end:
            raise IndexError("a field ends behind its message")
        inner = rewrite(begin, stop) if field_tag == tag else None
        if inner is not None:
            pieces += [contents[copy_start:at], varint_bytes(tag), varint_bytes(len(inner)), inner]
            copy_start = stop
    return b"".join([*pieces, contents[copy_start:end]]) if pieces else None


def varint(contents: Contents, at: int) -> tuple[int, int]:
    """Return a number, seven bits a byte and the lowest first, and where it ends.

    Raises:
        IndexError: the contents end in the middle of it, or it is too long.
    """
    value = 0
    for shift in range(0, 7 * _LONGEST, 7):
        byte = contents[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, at
    raise IndexError(f"a number of more than {_LONGEST} bytes")


def varint_bytes(value: int) -> bytes:
    """Return a number as it is written."""
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*written, value))


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


_FUNCTIONS = 25 << 3 | BYTES
"""The tag in ModelProto."""
_PIECE_BYTES, _FEW_BYTES = 1 << 20, 16
_INNER: Mapping[str, Mapping[int, str]] = {
    "ModelProto": {
        7: "GraphProto", 8: "OperatorSetIdProto", 14: "StringStringEntryProto", 20: "TrainingInfoProto",
        25: "FunctionProto", 26: "DeviceConfigurationProto",
    },
    "TrainingInfoProto": {
        1: "GraphProto", 2: "GraphProto", 3: "StringStringEntryProto", 4: "StringStringEntryProto",
    },
    "FunctionProto": {
        7: "NodeProto", 9: "OperatorSetIdProto", 11: "AttributeProto", 12: "ValueInfoProto",
        14: "StringStringEntryProto",
    },
    "GraphProto": {
        1: "NodeProto", 5: "TensorProto", 11: "ValueInfoProto", 12: "ValueInfoProto", 13: "ValueInfoProto",
        14: "TensorAnnotation", 15: "SparseTensorProto", 16: "StringStringEntryProto",
    },
    "NodeProto": {5: "AttributeProto", 9: "StringStringEntryProto", 10: "NodeDeviceConfigurationProto"},
    "NodeDeviceConfigurationProto": {2: "ShardingSpecProto"},
    "ShardingSpecProto": {3: "IntIntListEntryProto", 4: "ShardedDimProto"},
    "ShardedDimProto": {2: "SimpleShardedDimProto"},
    "AttributeProto": {
        5: "TensorProto", 6: "GraphProto", 10: "TensorProto", 11: "GraphProto", 14: "TypeProto", 15: "TypeProto",
        22: "SparseTensorProto", 23: "SparseTensorProto",
    },
    "TensorProto": {3: "Segment", 13: "StringStringEntryProto", 16: "StringStringEntryProto"},
    "SparseTensorProto": {1: "TensorProto", 2: "TensorProto"},
    "TensorAnnotation": {2: "StringStringEntryProto"},
    "ValueInfoProto": {2: "TypeProto", 4: "StringStringEntryProto"},
    "TypeProto": {1: "Tensor", 4: "Sequence", 5: "Map", 8: "SparseTensor", 9: "Optional"},
    "Tensor": {2: "TensorShapeProto"},
    "SparseTensor": {2: "TensorShapeProto"},
    "Sequence": {1: "TypeProto"},
    "Optional": {1: "TypeProto"},
    "Map": {2: "TypeProto"},
    "TensorShapeProto": {1: "Dimension"},
}  # fmt: skip
"""Which fields of a message are messages. Source: onnx.proto."""
_MOST: Mapping[tuple[str, int], tuple[int, str]] = {
    ("GraphProto", 1): (limits.NODES, "nodes in a graph"),
    ("GraphProto", 5): (limits.NODES, "initializers in a graph"),
    ("GraphProto", 11): (limits.NODES, "inputs of a graph"),
    ("GraphProto", 12): (limits.NODES, "outputs of a graph"),
    ("FunctionProto", 7): (limits.NODES, "nodes in a function"),
    ("NodeProto", 1): (limits.VALUES_OF_NODE, "inputs of a node"),
    ("NodeProto", 2): (limits.VALUES_OF_NODE, "outputs of a node"),
    ("NodeProto", 5): (limits.ATTRIBUTES, "attributes of a node"),
    ("TensorShapeProto", 1): (limits.DIMENSIONS, "dimensions of a type"),
    ("TensorProto", 1): (limits.DIMENSIONS, "dimensions of a tensor"),
}
"""How often a field may stand in one message, where that differs from `limits.FIELDS`, and what messages call it."""
_NAMES = frozenset([
    ("GraphProto", 2), ("NodeProto", 1), ("NodeProto", 2), ("NodeProto", 3), ("NodeProto", 4), ("NodeProto", 7),
    ("ValueInfoProto", 1), ("TensorProto", 8), ("AttributeProto", 1), ("AttributeProto", 21), ("Dimension", 3),
    ("FunctionProto", 1), ("FunctionProto", 4), ("FunctionProto", 5), ("FunctionProto", 6), ("FunctionProto", 10),
])  # fmt: skip
_NUMBERS = re.compile(rb"(?s:(?:\x40[\x80-\xff]*+[\x00-\x7f])++|(?:\x3d....)++)")
"""Integers or floats of an attribute, each with its tag."""
_STRIDE = (1 << 14) - 1
"""Fields of one kind are held against their limit in between whenever so many more were counted."""
_FULL_OF_NUMBERS = frozenset(("AttributeProto", "TensorProto"))
_DIMENSIONS = ("TensorProto", 1)
"""May be written as one field, packed."""


def check_size(source: str | os.PathLike[str] | bytes, label: str) -> bool:
    """Hold a serialized model against the limits; tell whether it has functions of its own.

    Args:
        source: path or contents; a path that cannot be read is not complained of.
        label: how messages call the model.

    Raises:
        InvalidModelError: it is beyond a limit.
        IndexError: it is no message.
    """
    try:
        with mapped(source) as contents:
            return _checked(contents, label)
    except (OSError, ValueError):  # a file that is empty, or cannot be mapped
        return False


def _checked(contents: Contents, label: str) -> bool:
    walk = _Walk(contents, label)
    walk.through("ModelProto", 0, len(contents))
    return walk.has_functions


@dataclass(slots=True)
class _Walk:
    """One model, and what was counted of it."""

    contents: Contents
    description: str
    pairs: int = 0
    has_functions: bool = False
    pending_messages: list[tuple[str, int, int]] = field(default_factory=list)

    def through(self, kind: str, start: int, end: int) -> None:
        """Look at a message and at those in it, one level after the other: how deep they are does not matter."""
        self.pending_messages.append((kind, start, end))
        while self.pending_messages:
            self._look(*self.pending_messages.pop())

    def _look(self, kind: str, start: int, end: int) -> None:
        counts, since = dict[int, int](), start
        field_spans = (
            self._beside_numbers(start, end) if kind == "AttributeProto" else fields(self.contents, start, end)
        )
        for tag, _, begin, stop in field_spans:
            if stop > end:
                raise IndexError("a field ends behind its message")
            counts[tag] = count = counts.get(tag, 0) + 1
            if not count & _STRIDE:
                self._count(kind, tag >> 3, count)
            if stop - begin > limits.UNLOOKED_BYTES:
                self._count_pairs(since, begin)
                since = stop
                self._open(kind, tag >> 3, begin, stop)
        self._count_pairs(since, end)
        for tag, count in counts.items():
            self._count(kind, tag >> 3, count)
        self.has_functions = self.has_functions or (kind == "ModelProto" and _FUNCTIONS in counts)

    def _beside_numbers(self, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """The fields of an attribute, of which those that stand behind each other as numbers are passed over."""
        while start < end:
            numbers = _NUMBERS.match(self.contents, start, end)
            if numbers:
                start = numbers.end()
                continue
            field_span = next(fields(self.contents, start, end))
            yield field_span
            start = field_span[-1]

    def _count_pairs(self, start: int, end: int) -> None:
        """Count what can be messages of fewer than 16 bytes, between two places."""
        if end - start > limits.UNLOOKED_BYTES:
            import numpy as np

            begins = np.zeros(256, bool)
            begins[[number << 3 | BYTES for number in range(1, 16)]] = True
            for at in range(start, end, _PIECE_BYTES):
                piece = np.frombuffer(self.contents[at : min(at + _PIECE_BYTES, end)], np.uint8)
                self.pairs += int(np.count_nonzero(begins[piece[:-1]] & (piece[1:] < _FEW_BYTES)))
                if self.pairs > limits.MESSAGES:
                    raise self._beyond(f"more than {limits.MESSAGES:,} parts of a few bytes", limits.MESSAGES)

    def _open(self, kind: str, number: int, begin: int, stop: int) -> None:
        """Look into what is large."""
        message = _INNER.get(kind, {}).get(number)
        if message is not None:
            self.pending_messages.append((message, begin, stop))
        elif (kind, number) == _DIMENSIONS and stop - begin > limits.DIMENSIONS * 10:
            raise self._beyond("more dimensions of a tensor", limits.DIMENSIONS)
        elif (kind, number) in _NAMES and stop - begin > limits.NAME_BYTES:
            raise self._beyond(f"a name of {stop - begin:,} bytes", limits.NAME_BYTES)

    def _count(self, kind: str, number: int, count: int) -> None:
        most, name = _MOST.get((kind, number), (limits.FIELDS, "parts of one kind"))
        counts = (kind, number) in _MOST or kind not in _FULL_OF_NUMBERS or number in _INNER[kind]
        if counts and count > most:
            raise self._beyond(f"more than {most:,} {name}", most)

    def _beyond(self, amount: str, most: int) -> InvalidModelError:
        return InvalidModelError(
            f"{self.description} has {amount}, expected at most {most:,}; export it again, or see docs/security.md"
        )
