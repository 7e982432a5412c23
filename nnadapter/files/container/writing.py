"""Writing a file of parts: each is written when it is added, equal ones once, the table at the end."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from nnadapter.errors import CompiledModelError
from nnadapter.files.container.layout import MESSAGES, PREFIX, VERSION, Part, aligned
from nnadapter.files.replacing import replace_file
from nnadapter.files.source_kind import MAGIC


class ContainerWriter:
    """Takes the parts of a file that is being written."""

    def __init__(self, file: BinaryIO) -> None:
        """Begin a file, which is empty."""
        self._file = file
        self._end = file.write(bytes(PREFIX.size))
        self._parts: list[Part] = []
        self._known: dict[bytes, int] = {}

    def add(self, kind: str, *pieces: bytes | memoryview) -> int:
        """Write a part, unless there is one of the same contents, and return its position in the table.

        Args:
            kind: what it holds, in a word; the first of equal parts says it.
            pieces: its contents, one behind the other.
        """
        contents = [memoryview(piece).cast("B") for piece in pieces]
        hasher = sha256()
        for piece in contents:
            hasher.update(piece)
        digest = hasher.digest()
        if digest not in self._known:
            self._known[digest] = len(self._parts)
            self._parts.append(self._written(kind, contents, digest))
        return self._known[digest]

    def finish(self) -> None:
        """Write the table, and what says where it is.

        Raises:
            CompiledModelError: there are more parts than readers take.
        """
        table = MESSAGES.new("Table")
        for part in self._parts:
            table.parts.add(**part._asdict())
        written = MESSAGES.bytes_of(table)
        offset = self._pad(len(written))
        self._file.write(written)
        self._file.seek(0)
        self._file.write(PREFIX.pack(MAGIC, VERSION, 0, offset, len(written), sha256(written).digest()))
        self._file.flush()

    def _written(self, kind: str, contents: list[memoryview], digest: bytes) -> Part:
        length = sum(piece.nbytes for piece in contents)
        offset, crc32 = self._pad(length), 0
        for piece in contents:
            self._file.write(piece)
            crc32 = zlib.crc32(piece, crc32)
        self._end += length
        return Part(kind, offset, length, crc32, digest)

    def _pad(self, length: int) -> int:
        """Fill up with zeros to where something of that length begins."""
        offset = aligned(self._end, length)
        self._file.write(bytes(offset - self._end))
        self._end = offset
        return offset


def write_container(path: str | os.PathLike[str], fill: Callable[[ContainerWriter], None]) -> None:
    """Have `fill` add the parts of a file, which takes the place of `path` when it is complete and on disk.

    What stood there stays as long as somebody has it mapped, and if anything fails.

    Raises:
        CompiledModelError: the file cannot be written; nothing stands beside it then.
    """
    target = Path(path)

    def write(file: BinaryIO) -> None:
        writer = ContainerWriter(file)
        fill(writer)
        writer.finish()
        os.fsync(file.fileno())

    try:
        replace_file(target.resolve(), write)
        _sync_folder(target.resolve().parent)
    except OSError as error:
        raise CompiledModelError(
            f"{str(target)!r} cannot be written: {error.strerror or error}; free some room, or give another path",
            file=str(target),
        ) from error


def _sync_folder(folder: Path) -> None:
    """Have the new name on disk too, where the system knows how."""
    with suppress(OSError):
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
