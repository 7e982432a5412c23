"""How a file of parts is laid out: what writers and readers share."""

from __future__ import annotations

import struct
from typing import NamedTuple

from nnadapter import limits
from nnadapter.errors import CompiledModelError
from nnadapter.files.container.descriptor import DESCRIPTOR
from nnadapter.files.messages import Messages

VERSION = 1
"""The format's version, which files carry; newer ones are refused."""
PREFIX = struct.Struct("<8sIIQQ32s")
"""Magic, version, zero, offset and length of the table, SHA-256 of the table."""
ALIGNMENT = 64
PAGE = 4096
"""Bytes; parts with as many begin at a multiple of it, so that each is mapped by itself."""
ADVICE = "compile the model again"
"""What to do about a file that is not what it should be."""
MESSAGES = Messages(
    DESCRIPTOR, "nnadapter.container", CompiledModelError, "compiled model", ADVICE, limits.CONTAINER_BYTES
)


class Part(NamedTuple):
    """A row of the table."""

    kind: str
    """What it holds, in a word."""
    offset: int
    length: int
    crc32: int
    sha256: bytes


def aligned(offset: int, length: int) -> int:
    """Where a part of that length begins that may begin at `offset`."""
    alignment = PAGE if length >= PAGE else ALIGNMENT
    return offset + -offset % alignment
