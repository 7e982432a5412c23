"""Protobuf's form in files, walked through field by field: what is large is passed over, not read."""

from __future__ import annotations

import mmap
from collections.abc import Iterator

Contents = bytes | mmap.mmap
BYTES = 2
"""The wire type of messages, strings and bytes."""
_LONGEST = 10
"""Bytes of a number of 64 bits."""
_FIXED_BYTES = {1: 8, 5: 4}
"""By wire type."""


def fields(contents: Contents, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Give the tag of each field of a message (number and wire type), where it starts, where its value does, and ends.

    Raises:
        IndexError: the contents end in the middle of a number.
    """
    at = start
    while at < end:
        tag, start = varint(contents, at)
        size = _FIXED_BYTES.get(tag & 7)
        if size is None:
            value, behind = varint(contents, start)
            size, start = (value, behind) if tag & 7 == BYTES else (behind - start, start)
        yield tag, at, start, start + size
        at = start + size


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
