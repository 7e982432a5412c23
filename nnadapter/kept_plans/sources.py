"""What a session is made of, by every byte of it: the model's file, and those of external data that it names.

A file's path, size and time do not say what it holds, so bytes are read, by several threads, a piece at a time: nothing
of them stays in memory. The model is not parsed. Where it names files, protobuf writes the same few bytes in front of
each name; what looks like them and is none only adds a file to what decides, or keeps a plan from being kept.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from stat import S_ISREG
from typing import Any

from nnadapter.caching.key import KeyPart
from nnadapter.process.forking import new_lock
from nnadapter.process.processors import usable

_PIECE_BYTES = 1 << 22
_BEHIND_BYTES = 1 << 13
"""Of the next piece, that a name may reach into; paths are no longer than half of it."""
_MOST_THREADS = 8
_LOCATION = b"location"
_BEGINS = re.compile(rb"(?:\x0a|\x8a\x80{0,8}\x00)(?:\x08|\x88\x80{0,8}\x00)\Z")
"""Before it: the key of StringStringEntryProto, and eight bytes of length. Nobody writes numbers with zeros behind
them; who reads them takes them."""
_BEFORE_BYTES = 32
"""In front of a name, that say how long the entry is; of the piece before, where a name is the first of a piece."""
_LENGTH = re.compile(rb"\x12([\x01-\x7f]|[\x80-\xff][\x01-\x3f])")
"""Behind it: the tag and the length of the value."""
_ENTRY_BYTES = re.compile(rb"(?<![\x80-\xff])([\x01-\x7f]|[\x80-\xff][\x01-\x3f])\Z")
"""In front of the entry: the end of its tag, and its length."""
_USUAL = b"\x0a\x08"
_seeking = new_lock()
"""Held from where a file is to be read on until it is, on systems that do not read from a place."""
Named = Callable[[bytes, int], Iterator[str]]
_Piece = tuple[set[str], bytes]


class UnkeyedError(Exception):
    """What a session is made of cannot be told by its bytes, for this reason. Nobody outside of this room sees it."""


@dataclass(frozen=True, slots=True)
class Source:
    """A digest of what a session is made of."""

    model: KeyPart
    """The model's own file."""
    beside: KeyPart
    """That, and what it names."""
    held: Any = field(compare=False)
    """An absolute path; contents, also of what was a message."""


def source_of(source: Any) -> Source:
    """Return the digest of a model: a path, its contents, or an `onnx.ModelProto`.

    Raises:
        UnkeyedError: it has none, such as a model in memory that names files.
        OSError: a file cannot be read.
    """
    if isinstance(source, (str, os.PathLike)):
        return _of_file(Path(source))
    contents = source if isinstance(source, bytes) else _serialized(source)
    names, digest = _taken(contents, len(contents), _named)
    if names:
        raise UnkeyedError("a model that is not in a file names files of external data")
    return _source(contents, digest, len(contents), {})


def begun_source(source: Any) -> Callable[[], Source]:
    """Return what gives `source_of` a model; the bytes of a large file are read from now on, by threads."""
    if not _is_large(source):
        return partial(source_of, source)
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(1)
    telling = pool.submit(source_of, source)
    pool.shutdown(wait=False)
    return telling.result


def _is_large(source: Any) -> bool:
    try:
        return isinstance(source, (str, os.PathLike)) and Path(source).stat().st_size > _PIECE_BYTES
    except (OSError, ValueError):  # what is wrong with it is said where it is read
        return False


def _serialized(model: Any) -> bytes:
    from google.protobuf.message import EncodeError, Message

    if not isinstance(model, Message):
        raise UnkeyedError("it is no model")
    try:
        contents: bytes = model.SerializeToString(deterministic=True)
    except (EncodeError, ValueError) as error:
        raise UnkeyedError("it is larger than protobuf's 2 GiB") from error
    return contents


def _of_file(path: Path) -> Source:
    size, names, digest = _file(path, _named)
    beside = {}
    for name in sorted(names):
        if not Path(name).is_absolute() and ".." not in Path(name).parts:  # such ones are refused
            beside[name] = _beside(path.parent / name)
    return _source(path.absolute(), digest, size, beside)


def _beside(path: Path) -> tuple[int, str]:
    """Bytes in a file of external data, and a digest of it; what looks like names in weights is none."""
    try:
        size, _, digest = _file(path, _no_names)
    except (OSError, ValueError):  # no file, or no path of one: nor can a model be loaded that names it
        return 0, "not there"
    return size, digest


def _source(held: Any, digest: str, size: int, beside: dict[str, tuple[int, str]]) -> Source:
    own = KeyPart(digest, {"operations": "a model", "bytes": str(size)})
    whole = sha256(repr((digest, sorted(beside.items()))).encode()).hexdigest()
    nbytes = size + sum(file_size for file_size, _ in beside.values())
    return Source(own, KeyPart(whole, {"files": str(1 + len(beside)), "bytes": str(nbytes)}), held)


def _file(path: Path, named: Named) -> tuple[int, frozenset[str], str]:
    """Bytes in a file, what it names, and a digest of it."""
    if not S_ISREG(path.stat().st_mode):  # a pipe is opened once
        raise UnkeyedError("it is no regular file")
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        return size, *_taken(file.fileno(), size, named)


def _taken(held: int | bytes, size: int, named: Named) -> tuple[frozenset[str], str]:
    """The files that contents name, and their digest: of the digests of their pieces.

    Args:
        held: a file that is open, by its number, or contents.
        size: bytes.
        named: finds the names in a piece.
    """
    starts = range(0, size, _PIECE_BYTES)
    whole, names = sha256(str(size).encode()), set[str]()
    for found, digest in _each(lambda start: _piece(held, start, named), starts):
        whole.update(digest)
        names |= found
    return frozenset(names), whole.hexdigest()


def _each(take: Callable[[int], _Piece], starts: Sequence[int]) -> Iterator[_Piece]:
    """What is taken of each piece, in their order; one alone is taken in this thread."""
    if len(starts) < 2:
        yield from map(take, starts)
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(usable(), _MOST_THREADS)) as pool:
        yield from pool.map(take, starts)


def _piece(held: int | bytes, start: int, named: Named) -> _Piece:
    before = min(start, _BEFORE_BYTES)
    first, most = start - before, before + _PIECE_BYTES + _BEHIND_BYTES
    data = held[first : first + most] if isinstance(held, bytes) else _read(held, most, first)
    return set(named(data, before)), sha256(memoryview(data)[before : before + _PIECE_BYTES]).digest()


def _read(file: int, nbytes: int, first: int) -> bytes:
    """Bytes of an open file; Windows reads on where somebody read before, so there one thread reads at a time."""
    if hasattr(os, "pread"):
        return os.pread(file, nbytes, first)
    with _seeking:
        os.lseek(file, first, os.SEEK_SET)
        return os.read(file, nbytes)


def _no_names(data: bytes, before: int) -> Iterator[str]:
    return iter(())


def _named(data: bytes, before: int) -> Iterator[str]:
    """Files that contents name, each in the piece in which the word in front of its name begins.

    The word itself is looked for, which skips most bytes: a pattern looks at each of them, and took 1.5 s for 100 MB.

    Args:
        data: a piece, and some of what lies around it.
        before: bytes of that in front of the piece.
    """
    at = data.find(_LOCATION, before)
    while 0 <= at < before + _PIECE_BYTES:
        begins = _BEGINS.search(data[max(at - _BEFORE_BYTES, 0) : at])
        if begins is not None:
            yield _name_behind(data, at, begins.group())
        at = data.find(_LOCATION, at + 1)


def _name_behind(data: bytes, at: int, begins: bytes) -> str:
    """The file that is named behind the word there, by an entry that holds this key and this value and nothing else.

    Of a value that stands twice, or in front of its key, readers take another one.
    """
    length = _LENGTH.match(data, at + len(_LOCATION))
    if begins == _USUAL and length is not None:
        (digits,) = length.groups()
        name = data[length.end() : length.end() + _number(digits)]
        first = at - len(_USUAL)
        size = _ENTRY_BYTES.search(data[max(first - _BEFORE_BYTES, 0) : first])
        if size is not None and _number(size.group(1)) == length.end() + len(name) - first:
            return name.decode(errors="surrogateescape")
    raise UnkeyedError("a file of external data is named in an unusual way")


def _number(digits: bytes) -> int:
    """A number of one or two bytes, as protobuf writes it."""
    return digits[0] & 0x7F | (digits[1] << 7 if len(digits) > 1 else 0)
