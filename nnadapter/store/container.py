"""Container format: a file of checked parts, read by memory mapping.

    prefix    64 bytes: magic, version, offset, length and SHA-256 of the table
    parts     each aligned to 64 bytes, large ones to a page
    table     message `Table` of container.proto, at the end of the file

A mapped file may be replaced or removed while it is read, but not changed.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from stat import S_ISREG
from threading import Thread
from typing import BinaryIO, NamedTuple

from nnadapter import limits
from nnadapter.errors import CompiledModelError
from nnadapter.files.atomic_files import replace_file
from nnadapter.files.messages import Messages
from nnadapter.files.source_kind import MAGIC
from nnadapter.store.container_descriptor import DESCRIPTOR

VERSION = 1
PREFIX = struct.Struct("<8sIIQQ32s")
"""Magic, version, zero, offset and length of the table, SHA-256 of the table."""
ALIGNMENT = 64
PAGE = 4096
"""Page size in bytes. Parts of at least this size are aligned to it, so that each can be mapped separately."""
ADVICE = "compile the model again"
MESSAGES = Messages(
    DESCRIPTOR, "nnadapter.container", CompiledModelError, "compiled model", ADVICE, limits.CONTAINER_BYTES
)


class Part(NamedTuple):
    """Row of a container's table: kind, place and checksums of one part."""

    kind: str
    offset: int
    length: int
    crc32: int
    sha256: bytes


def aligned(offset: int, length: int) -> int:
    """Return the first offset from `offset` on at which a part of `length` bytes may begin."""
    alignment = PAGE if length >= PAGE else ALIGNMENT
    return offset + -offset % alignment


_DIGEST_BYTES = 32
_CHECKED_BYTES = 1 << 24
_AHEAD_BYTES = 1 << 20


class Container:
    """Reader of a file of checksummed parts. Thread-safe."""

    def __init__(self, data: memoryview, name: str) -> None:
        self._data, self.name = data.toreadonly(), name
        self.parts = self._table()
        self._checked: set[int] = set()
        self._ahead: dict[int, Thread] = {}

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], check: Callable[[os.stat_result], object] = lambda status: None
    ) -> Container:
        """Map a file to memory and read its table. Never blocks on a pipe.

        `check` receives the status of the opened file, and raises if it is unacceptable.

        Raises:
            CompiledModelError: it cannot be read, is no container, is damaged, or of a newer version.
        """
        name = os.fsdecode(path)
        try:
            with open(path, "rb", opener=_open_at_once) as file:
                status = os.fstat(file.fileno())
                check(status)
                size = status.st_size if S_ISREG(status.st_mode) else 0
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise CompiledModelError(
                f"{name!r} cannot be read: {reason}; pass the path of a compiled model", file=name
            ) from error
        return cls(memoryview(data), name)

    @classmethod
    def of(cls, contents: bytes | bytearray | memoryview) -> Container:
        return cls(memoryview(contents).cast("B"), "the compiled model")

    def contents(self, number: int, kind: str = "") -> memoryview:
        """Return the read-only contents of a part, which are checked on first access.

        Raises:
            CompiledModelError: no such part, another kind than `kind`, or corrupt contents.
        """
        if not 0 <= number < len(self.parts):
            raise self.damaged(f"part {number} was requested, expected a number below {len(self.parts)}")
        part = self.parts[number]
        if kind and part.kind != kind:
            raise self.damaged(f"part {number} is {part.kind!r}, expected {kind!r}")
        return self._checked_data(number, part)

    def check_ahead(self, numbers: Iterable[int]) -> None:
        """Check large parts in a background thread; reading a corrupt part raises the error."""
        part_range = range(len(self.parts))
        large = [number for number in numbers if number in part_range and self.parts[number].length >= _AHEAD_BYTES]
        if large:
            thread = Thread(target=self._check_all, args=(large,), name="nnadapter check", daemon=True)
            with suppress(RuntimeError):  # without a thread, the part is checked when it is read
                thread.start()
                self._ahead.update(dict.fromkeys(large, thread))

    def _check_all(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._check_one(number)

    def _check_one(self, number: int) -> memoryview:
        part = self.parts[number]
        data = self._data[part.offset : part.offset + part.length]
        if number not in self._checked and zlib.crc32(data) == part.crc32:
            self._checked.add(number)
        return data

    def _checked_data(self, number: int, part: Part) -> memoryview:
        if number not in self._checked and number in self._ahead:
            self._ahead[number].join()
        data = self._check_one(number)
        if number not in self._checked:
            raise self.damaged(f"part {number} ({part.kind}, {part.length} bytes) is corrupt")
        return data

    def verify(self) -> None:
        """Check every byte of the file. Raises CompiledModelError if it is corrupt."""
        end = PREFIX.size
        for number, part in enumerate(self.parts):
            self._check_zeros(end, part.offset)
            end = part.offset + part.length
            if sha256(self.contents(number)).digest() != part.sha256:
                raise self.damaged(f"part {number} ({part.kind}, {part.length} bytes) is corrupt")
        self._check_zeros(end, self._table_offset)

    def damaged(self, problem: str) -> CompiledModelError:
        return CompiledModelError(f"{self.name!r} is damaged: {problem}; {ADVICE}", file=self.name)

    def _table(self) -> tuple[Part, ...]:
        size = self._data.nbytes
        if size < PREFIX.size or bytes(self._data[: len(MAGIC)]) != MAGIC:
            begin = bytes(self._data[: len(MAGIC)])
            raise CompiledModelError(
                f"{self.name!r} is not a compiled model: it has {size} bytes and begins with {begin!r}, expected "
                f"{MAGIC!r}; pass one that `nnadapter compile` wrote",
                file=self.name,
            )
        _, version, zero, offset, length, digest = PREFIX.unpack_from(self._data)
        if version > VERSION:
            raise CompiledModelError(
                f"{self.name!r} has format version {version}, and this nnadapter knows 1 to {VERSION}; update "
                "nnadapter, or compile the model again with this one",
                file=self.name,
            )
        if version < 1 or zero or length > limits.CONTAINER_BYTES or offset < PREFIX.size or offset + length != size:
            raise self.damaged(f"its table has {length} bytes at {offset}, and the file ends at {size}")
        table = self._data[offset:]
        if sha256(table).digest() != digest:
            raise self.damaged("its table is corrupt")
        self._table_offset: int = offset
        message = MESSAGES.parse_whole("Table", table)
        parts = tuple(Part(row.kind, row.offset, row.length, row.crc32, bytes(row.sha256)) for row in message.parts)
        self._check(parts)
        return parts

    def _check(self, parts: tuple[Part, ...]) -> None:
        for number, part in enumerate(parts):
            inside = PREFIX.size <= part.offset <= part.offset + part.length <= self._table_offset
            if not inside or aligned(part.offset, part.length) != part.offset or len(part.sha256) != _DIGEST_BYTES:
                raise self.damaged(
                    f"part {number} has {part.length} bytes at offset {part.offset}, expected a multiple of "
                    f"{ALIGNMENT} and an end of at most {self._table_offset}"
                )
        for number, (part, other) in enumerate(pairwise(parts)):
            if part.offset + part.length > other.offset:
                raise self.damaged(f"parts {number} and {number + 1} overlap")

    def _check_zeros(self, begin: int, end: int) -> None:
        for at in range(begin, end, _CHECKED_BYTES):
            if bytes(self._data[at : min(end, at + _CHECKED_BYTES)]).strip(b"\0"):
                raise self.damaged(f"there are unexpected bytes between {begin} and {end}")


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


class ContainerWriter:
    """Writer of a container file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._end = file.write(bytes(PREFIX.size))
        self._parts: list[Part] = []
        self._known: dict[bytes, int] = {}

    def add(self, kind: str, *pieces: bytes | memoryview) -> int:
        """Write a part that consists of `pieces`, and return its number.

        If a part with the same contents exists, its number is returned, with its kind unchanged.
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
        offset = aligned(self._end, length)
        self._file.write(bytes(offset - self._end))
        self._end = offset
        return offset


def write_container(path: str | os.PathLike[str], fill: Callable[[ContainerWriter], None]) -> None:
    """Write a file with the parts that `fill` adds; it replaces `path` when it is complete and on disk.

    Raises:
        CompiledModelError: the file cannot be written; the previous file remains.
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
            f"{str(target)!r} cannot be written: {error.strerror or error}; free some space, or pass another path",
            file=str(target),
        ) from error


def _sync_folder(folder: Path) -> None:
    with suppress(OSError):
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
