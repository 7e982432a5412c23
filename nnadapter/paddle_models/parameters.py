"""Whether a file of parameters is whole: neither Paddle nor its converter look, and go on with what memory holds."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

_BITS: Mapping[int, int] = MappingProxyType(
    {0: 8, 1: 16, 2: 32, 3: 64, 4: 16, 5: 32, 6: 64, 20: 8, 21: 8, 22: 16, 23: 64, 24: 128, 32: 8, 33: 8}
)
"""Type of a tensor -> bits of an element. Source: paddle's framework.proto, VarType.Type."""
_DESCRIPTION_BYTES = 1 << 12
_TYPE, _SIZE = 0x08, 0x10
"""Tags of a description. Source: paddle's framework.proto, VarType.TensorDesc."""


def check_whole(path: Path) -> None:
    """Do nothing where a file holds tensors from its beginning to its end, as Paddle writes them.

    Raises:
        ValueError: it does not.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        while file.tell() < size:
            begins = file.tell()
            try:
                ends = _bytes_of_next(file) + file.tell()
            except (struct.error, IndexError, KeyError):
                raise ValueError(f"the parameters hold no tensor of Paddle's at byte {begins:,} of {size:,}") from None
            if ends > size:
                raise ValueError(f"the parameters end within a tensor: {size:,} bytes, expected {ends:,} or more")
            file.seek(ends)


def _bytes_of_next(file: BinaryIO) -> int:
    """How many bytes the elements of the next tensor have, which follow."""
    _, levels = struct.unpack("<IQ", file.read(12))
    if levels:  # offsets of sequences, which parameters have none of
        raise KeyError(levels)
    _, length = struct.unpack("<Ii", file.read(8))
    if not 0 < length <= _DESCRIPTION_BYTES:
        raise KeyError(length)
    description = file.read(length)
    if len(description) < length:
        raise IndexError(length)
    numbers = iter(_numbers(description))
    kind, sizes = None, []
    for tag in numbers:
        value = next(numbers, 0)
        if tag == _TYPE:
            kind = value
        elif tag == _SIZE:
            sizes.append(value)
        else:
            raise KeyError(tag)
    return prod(sizes) * _BITS[kind if kind is not None else -1] // 8


def _numbers(contents: bytes) -> Iterator[int]:
    """The varints that some bytes are."""
    value, shift = 0, 0
    for byte in contents:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield value
            value, shift = 0, 0
