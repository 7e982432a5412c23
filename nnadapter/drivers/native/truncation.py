"""Whether a shared library is all there: the loader maps one that is cut short, and the process dies of it."""

from __future__ import annotations

import struct
from pathlib import Path

_MAGIC = b"\x7fELF"
_HEADER, _SEGMENT = 64, 56
"""Bytes of the header and of an entry of the program header table, in 64 bits."""


def missing_bytes(path: Path) -> int:
    """How many bytes of an ELF file are not there; 0 if none, or if it is of another format.

    Source: Tool Interface Standard, Executable and Linking Format 1.2; System V ABI, ELF-64 object file format.

    Raises:
        OSError: it cannot be read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        header = file.read(_HEADER)
        if header[:4] != _MAGIC or len(header) < _HEADER or header[4] != 2:  # not 64 bits: the loader refuses it
            return 0
        order = "<" if header[5] == 1 else ">"
        start, sections = struct.unpack_from(f"{order}QQ", header, 32)
        entry, count, section, section_count = struct.unpack_from(f"{order}4H", header, 54)
        end = max(start + entry * count, sections + section * section_count)
        if end <= size and entry >= _SEGMENT:
            file.seek(start)
            table = file.read(entry * count)
            ends = (sum(struct.unpack_from(f"{order}Q16xQ", table, entry * index + 8)) for index in range(count))
            end = max(end, *ends, 0)
    return int(max(0, end - size))
