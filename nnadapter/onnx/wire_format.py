"""Protobuf's form in files, walked through and rewritten field by field: what is large is passed over, not read."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator

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
