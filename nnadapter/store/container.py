"""Container format: a file of checked parts, read by memory mapping.

    prefix    64 bytes: magic, version, where the table lies, and its SHA-256
    parts     each at a multiple of 64 bytes, large ones at a page
    table     the message `Table` of container.proto; the file's last bytes

What parts mean is for those who write them. Nothing here knows a model.

Reading a file of parts: the table at once, a part when it is first asked for; nothing is believed unchecked.

Sizes are held against the file's own before memory is taken. The file is mapped: it may be replaced or removed while
somebody reads, but not changed.
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


_DIGEST_BYTES = 32
_CHECKED_BYTES = 1 << 24
_AHEAD_BYTES = 1 << 20
"""Fewer are checked before a thread has started."""


class Container:
    """A file of parts. Usable from many threads at once."""

    def __init__(self, data: memoryview, name: str) -> None:
        """Take what a file holds, and what messages call it; see `open` and `of`."""
        self._data, self.name = data.toreadonly(), name
        self.parts = self._table()
        self._checked: set[int] = set()
        self._ahead: dict[int, Thread] = {}

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], check: Callable[[os.stat_result], object] = lambda status: None
    ) -> Container:
        """Map a file, and read its table.

        Args:
            path: of the file. Nobody is waited for where it is a pipe.
            check: looks at what the system says of the very file that is opened, and raises where it is not wanted.

        Raises:
            CompiledModelError: it cannot be read, is none, is damaged, or of a newer version.
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
                f"{name!r} cannot be read: {reason}; give the path of a compiled model", file=name
            ) from error
        return cls(memoryview(data), name)

    @classmethod
    def of(cls, contents: bytes | bytearray | memoryview) -> Container:
        """Read the table of a file whose contents are given."""
        return cls(memoryview(contents).cast("B"), "the compiled model")

    def contents(self, number: int, kind: str = "") -> memoryview:
        """Return the contents of a part, which are checked when they are first asked for; not to be changed.

        Args:
            number: position in the table.
            kind: what it has to be; anything if empty.

        Raises:
            CompiledModelError: there is no such part, or it is not what it was.
        """
        if not 0 <= number < len(self.parts):
            raise self.damaged(f"part {number} is asked for, and there are {len(self.parts)}")
        part = self.parts[number]
        if kind and part.kind != kind:
            raise self.damaged(f"part {number} is {part.kind!r}, expected {kind!r}")
        return self._checked_data(number, part)

    def check_ahead(self, numbers: Iterable[int]) -> None:
        """Have a thread check large parts that somebody is going to ask for, who has other things to do before.

        Nothing is said of what it finds: a part that is not what it was is checked again, by who asks for it.
        """
        part_range = range(len(self.parts))
        large = [number for number in numbers if number in part_range and self.parts[number].length >= _AHEAD_BYTES]
        if large:
            thread = Thread(target=self._check_all, args=(large,), name="nnadapter check", daemon=True)
            with suppress(RuntimeError):  # no thread can be had: who asks for a part checks it
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
            raise self.damaged(f"part {number} ({part.kind}, {part.length} bytes) is not what it was")
        return data

    def verify(self) -> None:
        """Read the whole file, and hold every byte of it against what was written.

        Raises:
            CompiledModelError: one is another.
        """
        end = PREFIX.size
        for number, part in enumerate(self.parts):
            self._check_zeros(end, part.offset)
            end = part.offset + part.length
            if sha256(self.contents(number)).digest() != part.sha256:
                raise self.damaged(f"part {number} ({part.kind}, {part.length} bytes) is not what it was")
        self._check_zeros(end, self._table_offset)

    def damaged(self, problem: str) -> CompiledModelError:
        """The error that says that the file is not what it should be."""
        return CompiledModelError(f"{self.name!r} is damaged: {problem}; {ADVICE}", file=self.name)

    def _table(self) -> tuple[Part, ...]:
        size = self._data.nbytes
        if size < PREFIX.size or bytes(self._data[: len(MAGIC)]) != MAGIC:
            begin = bytes(self._data[: len(MAGIC)])
            raise CompiledModelError(
                f"{self.name!r} is no compiled model: it has {size} bytes and begins with {begin!r}, expected "
                f"{MAGIC!r}; give one that `nnadapter compile` wrote",
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
            raise self.damaged("its table is not what it was")
        self._table_offset: int = offset
        message = MESSAGES.parse_whole("Table", table)
        parts = tuple(Part(row.kind, row.offset, row.length, row.crc32, bytes(row.sha256)) for row in message.parts)
        self._check(parts)
        return parts

    def _check(self, parts: tuple[Part, ...]) -> None:
        """Refuse parts that do not lie in the file, or overlap."""
        for number, part in enumerate(parts):
            inside = PREFIX.size <= part.offset <= part.offset + part.length <= self._table_offset
            if not inside or aligned(part.offset, part.length) != part.offset or len(part.sha256) != _DIGEST_BYTES:
                raise self.damaged(
                    f"part {number} has {part.length} bytes at {part.offset}, expected them at a multiple of "
                    f"{ALIGNMENT} before {self._table_offset}"
                )
        for number, (part, other) in enumerate(pairwise(parts)):
            if part.offset + part.length > other.offset:
                raise self.damaged(f"parts {number} and {number + 1} overlap")

    def _check_zeros(self, begin: int, end: int) -> None:
        """Refuse anything but zeros between parts."""
        for at in range(begin, end, _CHECKED_BYTES):
            if bytes(self._data[at : min(end, at + _CHECKED_BYTES)]).strip(b"\0"):
                raise self.damaged(f"there is something between {begin} and {end}, where nothing belongs")


def _open_at_once(path: str, flags: int) -> int:
    """Open without waiting for somebody to write, where the path is a pipe."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


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
