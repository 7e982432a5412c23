"""Cache folder: files with cached entries, found by key, and evicted by size.

Parts of a key:

device     device name, and the vendor's name of the hardware
driver     version, and a digest of its files
host       versions of nnadapter and ONNX Runtime, and a digest of the code that makes programs
machine    system, processor, its features, number of processors
options    options of the device, and whether the segment is the entire plan
structure  operations, attributes, data types and connections, without names
shapes     every dimension
constants  every byte

Many processes read and write a folder at once. An entry is written under another name and renamed, and never changes.
Each use sets the access time, for eviction of the least recently used. Failures are returned with a reason, not raised.
"""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from stat import S_IMODE, S_IWGRP, S_IWOTH
from typing import BinaryIO, NamedTuple

from nnadapter.errors import CacheWarning, CompiledModelError
from nnadapter.files.atomic_files import cache_folder, replace_file
from nnadapter.options import Options
from nnadapter.records import dataclass
from nnadapter.store.container import Container, ContainerWriter, Part

PARTS = ("device", "driver", "host", "machine", "options", "structure", "shapes", "constants")
_OF_MODEL = PARTS.index("structure")
_SHORT = 7
_LONGEST = 120


class KeyPart(NamedTuple):
    """Digest of one thing that an entry depends on, and facts (`words`) that explain a mismatch."""

    digest: str
    words: Mapping[str, str]


class Key(NamedTuple):
    """Identity of an entry: its kind, and digests of everything that it depends on."""

    kind: str
    parts: Mapping[str, KeyPart]

    @property
    def short(self) -> tuple[str, ...]:
        return tuple(self.parts[name].digest[:_SHORT] for name in PARTS)

    @property
    def name(self) -> str:
        hasher = sha256("\n".join((self.kind, *(self.parts[name].digest for name in PARTS))).encode())
        return ".".join((hasher.hexdigest()[:32], "-".join(self.short), self.kind))


def text_part(words: Mapping[str, object]) -> KeyPart:
    """Return a key part with a digest of facts by name."""
    texts = {name: str(value) for name, value in words.items()}
    return KeyPart(sha256(repr(sorted(texts.items())).encode()).hexdigest(), texts)


def short_parts(name: str) -> tuple[str, ...] | None:
    """Return the digest prefixes in an entry's file name, as in `Key.short`; None for other names."""
    pieces = name.split(".")
    parts = tuple(pieces[1].split("-")) if len(pieces) == 3 else ()
    return parts if len(parts) == len(PARTS) else None


def nearest(key: Key, names: Sequence[str]) -> str | None:
    """Return the file name of the entry most like a key; None if no part of the model is the same."""
    parts = key.short

    def similarity(name: str) -> tuple[int, tuple[bool, ...]]:
        equal = tuple(part == other for part, other in zip(parts, short_parts(name) or (), strict=False))
        # the model counts more: a segment of another model is no useful comparison
        return sum(equal) + 2 * sum(equal[_OF_MODEL:]), equal

    best = max(names, key=similarity, default=None)
    return best if best is not None and any(similarity(best)[1][_OF_MODEL:]) else None


def differences(key: Key, other: Mapping[str, KeyPart]) -> tuple[str, ...]:
    """Return a text for each part in which a key differs from the parts of another entry."""
    return tuple(
        _difference(name, other[name], key.parts[name])
        for name in PARTS
        if name not in other or other[name].digest != key.parts[name].digest
    )


def _difference(name: str, entry_part: KeyPart, key_part: KeyPart) -> str:
    changed = [
        f"{word} {_shown(entry_part.words.get(word))} there, {_shown(key_part.words.get(word))} here"
        for word in dict.fromkeys((*entry_part.words, *key_part.words))
        if entry_part.words.get(word) != key_part.words.get(word)
    ]
    return f"{name} ({'; '.join(changed)})" if changed else name


def _shown(text: str | None) -> str:
    if text is None:
        return "nothing"
    return repr(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")


_warned_of: set[str] = set()


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a cache lookup for a segment."""

    is_hit: bool
    miss_reason: str = ""
    """Reason of a miss, with the differing parts of the nearest key."""


def warn_once(message: str) -> None:
    """Warn about the cache once per process and message; do not raise if warnings are errors."""
    if message not in _warned_of:
        _warned_of.add(message)
        with suppress(CacheWarning):
            warnings.warn(message, CacheWarning, stacklevel=2)


def warn_unwritten(reason: str) -> None:
    """Warn once per reason that the cache cannot be written."""
    warn_once(
        f"the cache is not written: {reason}; free some space, or pass another folder as cache_dir or "
        "NNADAPTER_CACHE_DIR"
    )


PROGRAMS = "programs"
FORMAT = 1
_KEY, MADE = "cache.key", "cache.made"


class UnusableError(Exception):
    """An entry cannot be used. Internal to this package."""


class Entry(NamedTuple):
    """Opened container file with its key; `seconds` is the time that computing its contents took."""

    container: Container
    kind: str
    parts: Mapping[str, KeyPart]
    seconds: float

    @property
    def row(self) -> Part:
        """Row of the contents in the container's table; its length and SHA-256 are not verified."""
        return self.container.parts[1]

    @property
    def made(self) -> memoryview:
        """Cached contents, as a read-only view of the mapped file; raises UnusableError if they are corrupt."""
        try:
            return self.container.contents(1, MADE)
        except CompiledModelError as error:
            raise _damaged(error) from error

    def verify(self) -> None:
        try:
            self.container.verify()
        except CompiledModelError as error:
            raise _damaged(error) from error

    def is_for(self, key: Key) -> bool:
        digests = {name: part.digest for name, part in key.parts.items()}
        return self.kind == key.kind and {name: part.digest for name, part in self.parts.items()} == digests


def write_entry(file: BinaryIO, key: Key, fill: Callable[[ContainerWriter], object], seconds: float) -> None:
    """Write an entry with this key, and with the parts that `fill` adds, into an empty file.

    `seconds` is the time that computing the contents took.
    """
    parts = {name: {"digest": part.digest, "words": dict(part.words)} for name, part in key.parts.items()}
    header = {"format": FORMAT, "kind": key.kind, "seconds": seconds, "parts": parts}
    writer = ContainerWriter(file)
    writer.add(_KEY, json.dumps(header).encode())
    fill(writer)
    writer.finish()


def read_entry(path: Path) -> Entry:
    """Open an entry, and read its key.

    Raises:
        OSError: the file does not exist or cannot be read.
        UnusableError: the file is damaged, has another format version, or may be from another user.
    """
    try:
        container = Container.open(path, _check_writers)
        header = json.loads(bytes(container.contents(0, _KEY)))
        if header["format"] != FORMAT:
            raise UnusableError(f"the file has format {header['format']!r}, expected {FORMAT}")
        parts = {name: _part(header["parts"][name]) for name in PARTS}
        return Entry(container, str(header["kind"]), parts, float(header["seconds"]))
    except CompiledModelError as error:
        if isinstance(error.__cause__, OSError):
            raise error.__cause__ from None
        raise _damaged(error) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UnusableError(f"the file's key cannot be read ({type(error).__name__})") from error


def _part(fields: Mapping[str, object]) -> KeyPart:
    words = fields["words"]
    if not isinstance(fields["digest"], str) or not isinstance(words, dict):
        raise TypeError
    return KeyPart(fields["digest"], {str(name): str(value) for name, value in words.items()})


def _check_writers(status: os.stat_result) -> None:
    if not hasattr(os, "geteuid"):
        return
    if status.st_uid not in (os.geteuid(), 0):
        raise UnusableError(f"the file belongs to another user (number {status.st_uid})")
    if status.st_mode & S_IWOTH:
        raise UnusableError("any user may write to the file")


def _damaged(error: CompiledModelError) -> UnusableError:
    return UnusableError(f"it is damaged: {str(error).partition(' is damaged: ')[2].partition(';')[0] or error}")


_ABANDONED_SECONDS = 3600
_UNFINISHED = ".part"
_LOOKED_EVERY = 64
"""Number of written entries after which the folder's bytes are counted again."""
_ROOM = 16
"""Eviction frees another 1/16 of the limit for the next writes."""
_written: dict[Path, tuple[int, int]] = {}
"""Folder -> bytes when last counted plus bytes written since, and entries written since."""


class _TooMuchError(Exception):
    pass


class Miss(NamedTuple):
    """Reason why no entry is found or can be used."""

    reason: str
    is_defect: bool = False
    """True for a damaged entry or folder, which deserves a warning."""


class Listed(NamedTuple):
    """File in a cache folder with its size and the time of its last use."""

    path: Path
    nbytes: int
    used: float


class Folder(NamedTuple):
    """Cache folder, which need not exist. `max_bytes` limits the size of all files together."""

    path: Path
    max_bytes: int

    def has(self, key: Key) -> bool:
        return self._of(key).exists()

    def find(self, key: Key) -> Entry | Miss:
        entry = self._read(self._of(key))
        if entry is None:
            return Miss(self._miss_reason(key))
        if isinstance(entry, Entry) and not entry.is_for(key):
            return Miss("there is an entry with this file name, but with another key", is_defect=True)
        return entry

    def contents(self, key: Key) -> memoryview | Miss:
        entry = self.find(key)
        try:
            return entry if isinstance(entry, Miss) else entry.made
        except UnusableError as error:
            return Miss(f"there is an entry, but {error}", is_defect=True)

    def warn_of_miss(self, miss: Miss) -> str:
        if miss.is_defect:
            warn_once(f"cache {str(self.path)!r}: {miss.reason}; it is created again")
        return miss.reason

    def named(self, name: str) -> Entry | Miss:
        entry = self._read(self.path / name) if _is_entry(name) and Path(name).name == name else None
        return Miss(f"entry {name[:40]!r} is gone") if entry is None else entry

    def keep(self, key: Key, contents: bytes | memoryview, seconds: float) -> str:
        """Write an entry, and evict others if needed; return the reason if it is not written.

        `seconds` is the time that computing the contents took.
        """
        if len(contents) > self.max_bytes:
            return self._too_much(len(contents))
        return self.keep_parts(key, lambda writer: writer.add(MADE, contents), seconds)

    def keep_parts(self, key: Key, fill: Callable[[ContainerWriter], object], seconds: float) -> str:
        path, nbytes = self._of(key), 0

        def write(file: BinaryIO) -> None:
            nonlocal nbytes
            write_entry(file, key, fill, seconds)
            nbytes = file.seek(0, os.SEEK_END)
            if nbytes > self.max_bytes:
                raise _TooMuchError
            if hasattr(os, "fchmod"):
                os.fchmod(file.fileno(), S_IMODE(os.fstat(file.fileno()).st_mode) & ~(S_IWGRP | S_IWOTH))

        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(path, write)
        except OSError as error:
            return f"{str(self.path)!r} cannot be written: {error.strerror or error}"
        except _TooMuchError:
            return self._too_much(nbytes)
        self._wrote(path, nbytes)
        return ""

    def shrink(self, max_bytes: int) -> tuple[Listed, ...]:
        """Evict least recently used entries down to `max_bytes`, and remove unfinished files."""
        return self._shrink(max_bytes, max_bytes, None)[0]

    def entries(self) -> list[Listed]:
        """Return every entry, usable or not, least recently used first."""
        listed = [Listed(Path(file.path), status.st_size, status.st_atime) for file, status in self._files(_is_entry)]
        return sorted(listed, key=lambda entry: (entry.used, entry.path.name))

    def _read(self, path: Path) -> Entry | Miss | None:
        try:
            entry = read_entry(path)
        except FileNotFoundError:
            return None
        except UnusableError as error:
            return Miss(f"there is an entry, but {error}", is_defect=True)
        except OSError as error:
            return Miss(f"{str(path)!r} cannot be read: {error.strerror or error}", is_defect=True)
        with suppress(OSError):
            os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
        return entry

    def _too_much(self, nbytes: int) -> str:
        return f"{nbytes} bytes are more than max_cache_bytes, {self.max_bytes}"

    def _of(self, key: Key) -> Path:
        return self.path / key.name

    def _miss_reason(self, key: Key) -> str:
        names = [name for name in self._names() if _is_entry(name) and name.endswith(f".{key.kind}")]
        best = nearest(key, names)
        if best is None:
            return "no similar entry is cached" if names else "nothing is cached"
        try:
            parts = read_entry(self.path / best).parts
        except (OSError, UnusableError):
            return "no similar entry can be read"
        device, other = (key_parts["device"].words.get("name") for key_parts in (key.parts, {**key.parts, **parts}))
        if other != device:
            return f"nothing is cached for {device}; the nearest entry is for {other}"
        return f"the nearest entry differs in {', '.join(differences(key, parts)) or 'nothing'}"

    def _shrink(self, most: int, target: int, spared: Path | None) -> tuple[tuple[Listed, ...], int]:
        """Evict entries down to `target` bytes if they exceed `most`, except the file `spared`.

        Returns the evicted entries and the remaining bytes.
        """
        self._sweep()
        entries, dropped = self.entries(), list[Listed]()
        total = sum(entry.nbytes for entry in entries)
        if total <= most:
            return (), total
        for entry in entries:
            if total <= target:
                break
            if entry.path != spared and _remove(entry.path):
                dropped.append(entry)
                total -= entry.nbytes
        return tuple(dropped), total

    def _wrote(self, path: Path, nbytes: int) -> None:
        """Count a written entry, and evict others if needed. The folder can be large, so it is seldom listed."""
        written, count = _written.get(self.path, (self.max_bytes, 0))
        if written + nbytes > self.max_bytes or count >= _LOOKED_EVERY:
            _, remaining = self._shrink(self.max_bytes, self.max_bytes - self.max_bytes // _ROOM, path)
            _written[self.path] = remaining, 0
        else:
            _written[self.path] = written + nbytes, count + 1

    def _names(self) -> list[str]:
        try:
            return [entry.name for entry in os.scandir(self.path)]
        except OSError:
            return []

    def _sweep(self) -> None:
        for entry, status in self._files(lambda name: name.startswith(".") and name.endswith(_UNFINISHED)):
            if time.time() - status.st_mtime > _ABANDONED_SECONDS:
                _remove(Path(entry.path))

    def _files(self, is_wanted: Callable[[str], bool]) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
        try:
            listed = list(os.scandir(self.path))
        except OSError:
            return
        for entry in listed:
            if is_wanted(entry.name):
                with suppress(OSError):
                    yield entry, entry.stat(follow_symlinks=False)


def _is_entry(name: str) -> bool:
    return short_parts(name) is not None and not name.startswith(".")


def _remove(path: Path) -> bool:
    with suppress(OSError):
        path.unlink(missing_ok=True)
        return True
    return False


def folder_of(options: Options) -> Folder:
    """Return the cache folder of a session; `Options.cache_dir` is a path, or True for the default."""
    chosen = options.cache_dir
    path = usual_folder() if chosen is None or isinstance(chosen, bool) else Path(chosen)
    return Folder(path.absolute(), options.max_cache_bytes)


def usual_folder() -> Path:
    """Return the default cache folder of the user."""
    return cache_folder() / PROGRAMS
