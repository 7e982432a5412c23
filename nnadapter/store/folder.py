"""Cache folder: entries by key, their outcomes, and eviction by size.

device     what the person calls it, and the vendor's name for its hardware
driver     its version, and a digest of its files
host       version of nnadapter, a digest of what makes programs in it; of ONNX Runtime, where that is under the driver
machine    system, processor, what that can do, how many of them
options    of the device, and whether the segment is the whole plan
structure  operations, attributes, data types, what is connected with what: no names
shapes     every dimension
constants  every byte of them

A folder of entries, which many processes read and write at once.

1. An entry is written under another name and renamed, so it is complete or not there. Nobody changes one.
2. Names hold the key, so one is found without an index, and the nearest one by listing names.
3. When an entry is used, its time of access is set; those used longest ago go first where the folder holds too much.
4. Whatever goes wrong is a value with a reason. Nothing here raises but for a programmer's mistake.
"""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from stat import S_IMODE, S_IWGRP, S_IWOTH
from typing import BinaryIO, NamedTuple

from nnadapter.errors import CacheWarning, CompiledModelError
from nnadapter.files.atomic_files import cache_folder, replace_file
from nnadapter.options import Options
from nnadapter.store.container import Container, ContainerWriter, Part

PARTS = ("device", "driver", "host", "machine", "options", "structure", "shapes", "constants")
"""In the order in which a key names them."""
_OF_MODEL = PARTS.index("structure")
"""From here on they are the segment's."""
_SHORT = 7
"""Digits of a part's digest in a file's name."""
_LONGEST = 120


class KeyPart(NamedTuple):
    """One part of a key."""

    digest: str
    """SHA-256, in hexadecimal digits."""
    words: Mapping[str, str]
    """What it says, for people."""


class Key(NamedTuple):
    """What decides what was made."""

    kind: str
    """`program`, or which question was answered."""
    parts: Mapping[str, KeyPart]
    """By the names of `PARTS`."""

    @property
    def short(self) -> tuple[str, ...]:
        """The beginnings of the parts' digests."""
        return tuple(self.parts[name].digest[:_SHORT] for name in PARTS)

    @property
    def name(self) -> str:
        """Of the file: a digest of the whole key, then the beginnings of its parts' digests."""
        whole = sha256("\n".join((self.kind, *(self.parts[name].digest for name in PARTS))).encode())
        return ".".join((whole.hexdigest()[:32], "-".join(self.short), self.kind))


def text_part(words: Mapping[str, object]) -> KeyPart:
    """Return a part that is what it says."""
    texts = {name: str(value) for name, value in words.items()}
    return KeyPart(sha256(repr(sorted(texts.items())).encode()).hexdigest(), texts)


def short_parts(name: str) -> tuple[str, ...] | None:
    """Return what `Key.short` was of the key that a file is named for; None where it is no such name."""
    pieces = name.split(".")
    parts = tuple(pieces[1].split("-")) if len(pieces) == 3 else ()
    return parts if len(parts) == len(PARTS) else None


def nearest(key: Key, names: Sequence[str]) -> str | None:
    """Return the file, of some of the key's kind, that is most like it; None where nothing of the model is the same."""
    wanted = key.short

    def likeness(name: str) -> tuple[int, tuple[bool, ...]]:
        equal = tuple(one == other for one, other in zip(wanted, short_parts(name) or (), strict=False))
        # The model counts more: a segment of another model on the same device is nothing to compare with.
        return sum(equal) + 2 * sum(equal[_OF_MODEL:]), equal

    best = max(names, key=likeness, default=None)
    return best if best is not None and any(likeness(best)[1][_OF_MODEL:]) else None


def differences(key: Key, other: Mapping[str, KeyPart]) -> tuple[str, ...]:
    """Return the parts in which a key differs from that of an entry, in words."""
    return tuple(
        _difference(name, other[name], key.parts[name])
        for name in PARTS
        if name not in other or other[name].digest != key.parts[name].digest
    )


def _difference(name: str, there: KeyPart, here: KeyPart) -> str:
    changed = [
        f"{word} {_shown(there.words.get(word))} there, {_shown(here.words.get(word))} here"
        for word in dict.fromkeys((*there.words, *here.words))
        if there.words.get(word) != here.words.get(word)
    ]
    return f"{name} ({'; '.join(changed)})" if changed else name


def _shown(text: str | None) -> str:
    if text is None:
        return "nothing"
    return repr(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")


_told: set[str] = set()
"""What this process was warned of."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a cache did for a program."""

    is_hit: bool
    """The program was kept, and is used."""
    miss_reason: str = ""
    """Why it was compiled, which part of the key differed, and why it is not kept, if it is not; empty for a hit."""


def warn_once(message: str) -> None:
    """Warn of what is wrong with a cache, once in a process for each message.

    Where a person has made warnings errors, it is none: it would come out of a compilation, as if that had failed.
    """
    if message not in _told:
        _told.add(message)
        with suppress(CacheWarning):
            warnings.warn(message, CacheWarning, stacklevel=2)


def warn_unwritten(why: str) -> None:
    """Warn that nothing is written into a cache, and why."""
    warn_once(
        f"the cache is not written: {why}; free some room, or give another folder as cache_dir or NNADAPTER_CACHE_DIR"
    )


FORMAT = 1
"""Raised whenever entries change their meaning; others are not used."""
_KEY, MADE = "cache.key", "cache.made"
"""Kinds of parts."""


class UnusableError(Exception):
    """An entry is not used, for this reason. Nobody outside of this room sees it."""


class Entry(NamedTuple):
    """A file that was opened, whose key was read."""

    container: Container
    kind: str
    parts: Mapping[str, KeyPart]
    seconds: float
    """What it took to make."""

    @property
    def row(self) -> Part:
        """What the table says of what was made: its length and SHA-256, unchecked."""
        return self.container.parts[1]

    @property
    def made(self) -> memoryview:
        """What was made, read-only, where the file is mapped.

        Raises:
            UnusableError: it is not what it was.
        """
        try:
            return self.container.contents(1, MADE)
        except CompiledModelError as error:
            raise _damaged(error) from error

    def verify(self) -> None:
        """Read every byte, and raise UnusableError where one is another."""
        try:
            self.container.verify()
        except CompiledModelError as error:
            raise _damaged(error) from error

    def is_for(self, key: Key) -> bool:
        """Whether all of a key is that of the entry."""
        digests = {name: part.digest for name, part in key.parts.items()}
        return self.kind == key.kind and {name: part.digest for name, part in self.parts.items()} == digests


def write_entry(file: BinaryIO, key: Key, fill: Callable[[ContainerWriter], object], seconds: float) -> None:
    """Write an entry of parts that `fill` adds into a file, which is empty."""
    parts = {name: {"digest": part.digest, "words": dict(part.words)} for name, part in key.parts.items()}
    told = {"format": FORMAT, "kind": key.kind, "seconds": seconds, "parts": parts}
    writer = ContainerWriter(file)
    writer.add(_KEY, json.dumps(told).encode())
    fill(writer)
    writer.finish()


def read_entry(path: Path) -> Entry:
    """Open an entry, and read its key.

    Raises:
        OSError: there is none, or it cannot be read.
        UnusableError: it is damaged, of another version, or not ours.
    """
    try:
        container = Container.open(path, _check_writers)
        told = json.loads(bytes(container.contents(0, _KEY)))
        if told["format"] != FORMAT:
            raise UnusableError(f"it has format {told['format']!r}, expected {FORMAT}")
        parts = {name: _part(told["parts"][name]) for name in PARTS}
        return Entry(container, str(told["kind"]), parts, float(told["seconds"]))
    except CompiledModelError as error:
        if isinstance(error.__cause__, OSError):  # such as one that another process dropped just now
            raise error.__cause__ from None
        raise _damaged(error) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UnusableError(f"its key cannot be read ({type(error).__name__})") from error


def _part(told: Mapping[str, object]) -> KeyPart:
    words = told["words"]
    if not isinstance(told["digest"], str) or not isinstance(words, dict):
        raise TypeError
    return KeyPart(told["digest"], {str(name): str(value) for name, value in words.items()})


def _check_writers(status: os.stat_result) -> None:
    """Refuse a file into which somebody else may have written anything; root may write anything anyway."""
    if not hasattr(os, "geteuid"):
        return
    if status.st_uid not in (os.geteuid(), 0):
        raise UnusableError(f"it belongs to another user (number {status.st_uid})")
    if status.st_mode & S_IWOTH:
        raise UnusableError("anybody may write into it")


def _damaged(error: CompiledModelError) -> UnusableError:
    """The same in the words of a cache: which file it is, and what to do, is said elsewhere."""
    return UnusableError(f"it is damaged: {str(error).partition(' is damaged: ')[2].partition(';')[0] or error}")


_ABANDONED_SECONDS = 3600
"""A file that is being written for longer was left behind by a process that ended."""
_UNFINISHED = ".part"
_LOOKED_EVERY = 64
"""Entries that a process writes before it counts again what all of them write."""
_ROOM = 16
"""Where there is too much, the sixteenth part is made free: the next entries need nobody to look for what goes."""
_written: dict[Path, tuple[int, int]] = {}
"""Folder -> the bytes in it when they were counted last, and since; how many entries were written since."""


class _TooMuchError(Exception):
    """An entry is larger than all entries may be together."""


class Miss(NamedTuple):
    """Why there is nothing to be used."""

    reason: str
    is_defect: bool = False
    """An entry was there, and something is wrong with it or its folder: a person should know."""


class Listed(NamedTuple):
    """A file of a cache, by its name and what the system says of it."""

    path: Path
    nbytes: int
    used: float
    """Seconds since 1970."""


class Folder(NamedTuple):
    """Where entries lie.

    Args:
        path: need not exist.
        max_bytes: of all files together.
    """

    path: Path
    max_bytes: int

    def has(self, key: Key) -> bool:
        """Whether there is an entry of a key, good or not."""
        return self._of(key).exists()

    def find(self, key: Key) -> Entry | Miss:
        """Return the entry of a key, or why there is none."""
        found = self._read(self._of(key))
        if found is None:
            return Miss(self._why(key))
        if isinstance(found, Entry) and not found.is_for(key):
            return Miss("there is an entry of its name, and its key is another one", is_defect=True)
        return found

    def contents(self, key: Key) -> memoryview | Miss:
        """Return what the entry of a key holds, or why there is nothing."""
        found = self.find(key)
        try:
            return found if isinstance(found, Miss) else found.made
        except UnusableError as error:
            return Miss(f"there is an entry, and {error}", is_defect=True)

    def warn_of_miss(self, miss: Miss) -> str:
        """Return why there is nothing; a person is warned where something is wrong."""
        if miss.is_defect:
            warn_once(f"cache {str(self.path)!r}: {miss.reason}; it is made anew")
        return miss.reason

    def named(self, name: str) -> Entry | Miss:
        """Return the entry of a name that another entry gives, or why there is none."""
        found = self._read(self.path / name) if _is_entry(name) and Path(name).name == name else None
        return Miss(f"entry {name[:40]!r} is gone") if found is None else found

    def keep(self, key: Key, made: bytes | memoryview, seconds: float) -> str:
        """Write an entry, and drop others where there is too much; return why it was not kept, empty if it was."""
        if len(made) > self.max_bytes:
            return self._too_much(len(made))
        return self.keep_parts(key, lambda writer: writer.add(MADE, made), seconds)

    def keep_parts(self, key: Key, fill: Callable[[ContainerWriter], object], seconds: float) -> str:
        """As `keep`, of an entry of parts that `fill` adds."""
        path, nbytes = self._of(key), 0

        def write(file: BinaryIO) -> None:
            nonlocal nbytes
            write_entry(file, key, fill, seconds)
            nbytes = file.seek(0, os.SEEK_END)
            if nbytes > self.max_bytes:
                raise _TooMuchError
            if hasattr(os, "fchmod"):  # one that others may write to would not be used
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
        """Drop what was used longest ago until no more is left than `max_bytes`, and what was never finished."""
        return self._shrink(max_bytes, max_bytes, None)[0]

    def entries(self) -> list[Listed]:
        """Every entry, good or not, the one used longest ago first."""
        found = [Listed(Path(file.path), status.st_size, status.st_atime) for file, status in self._files(_is_entry)]
        return sorted(found, key=lambda entry: (entry.used, entry.path.name))

    def drop(self, path: Path) -> bool:
        """Remove an entry; whether it is gone."""
        return _removed(path)

    def _read(self, path: Path) -> Entry | Miss | None:
        """The entry in a file, which is used now; None where there is no file."""
        try:
            entry = read_entry(path)
        except FileNotFoundError:
            return None
        except UnusableError as error:
            return Miss(f"there is an entry, and {error}", is_defect=True)
        except OSError as error:
            return Miss(f"{str(path)!r} cannot be read: {error.strerror or error}", is_defect=True)
        with suppress(OSError):  # it may belong to root, or lie where nothing is written
            os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
        return entry

    def _too_much(self, nbytes: int) -> str:
        return f"{nbytes} bytes are more than max_cache_bytes, {self.max_bytes}"

    def _of(self, key: Key) -> Path:
        return self.path / key.name

    def _why(self, key: Key) -> str:
        names = [name for name in self._names() if _is_entry(name) and name.endswith(f".{key.kind}")]
        best = nearest(key, names)
        if best is None:
            return "nothing like it is kept" if names else "nothing is kept"
        try:
            parts = read_entry(self.path / best).parts
        except (OSError, UnusableError):
            return "nothing like it can be read"
        here, there = (key_parts["device"].words.get("name") for key_parts in (key.parts, {**key.parts, **parts}))
        if there != here:  # then driver and options are another one's, too
            return f"of this nothing is kept for {here}; the nearest entry is of {there}"
        return f"the nearest entry differs in {', '.join(differences(key, parts)) or 'nothing'}"

    def _shrink(self, most: int, wanted: int, kept: Path | None) -> tuple[tuple[Listed, ...], int]:
        """What was dropped as there were more bytes than `most`, until only what is wanted was there, and how many are.

        What is to be kept stays. What cannot be removed, as where somebody reads it on Windows, does too.
        """
        self._sweep()
        entries, dropped = self.entries(), list[Listed]()
        total = sum(entry.nbytes for entry in entries)
        if total <= most:
            return (), total
        for entry in entries:
            if total <= wanted:
                break
            if entry.path != kept and _removed(entry.path):
                dropped.append(entry)
                total -= entry.nbytes
        return tuple(dropped), total

    def _wrote(self, path: Path, nbytes: int) -> None:
        """Look whether there is too much: not each time, as a folder may hold thousands of entries."""
        written, count = _written.get(self.path, (self.max_bytes, 0))
        if written + nbytes > self.max_bytes or count >= _LOOKED_EVERY:
            _, left = self._shrink(self.max_bytes, self.max_bytes - self.max_bytes // _ROOM, path)
            _written[self.path] = left, 0
        else:
            _written[self.path] = written + nbytes, count + 1

    def _names(self) -> list[str]:
        try:
            return [entry.name for entry in os.scandir(self.path)]
        except OSError:
            return []

    def _sweep(self) -> None:
        """Remove what processes left behind that ended while they wrote."""
        for entry, status in self._files(lambda name: name.startswith(".") and name.endswith(_UNFINISHED)):
            if time.time() - status.st_mtime > _ABANDONED_SECONDS:
                _removed(Path(entry.path))

    def _files(self, wanted: Callable[[str], bool]) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
        """Files whose names are wanted; those that go while somebody looks are left out."""
        try:
            listed = list(os.scandir(self.path))
        except OSError:
            return
        for entry in listed:
            if wanted(entry.name):
                with suppress(OSError):
                    yield entry, entry.stat(follow_symlinks=False)


def _is_entry(name: str) -> bool:
    return short_parts(name) is not None and not name.startswith(".")


def _removed(path: Path) -> bool:
    with suppress(OSError):
        path.unlink(missing_ok=True)
        return True
    return False


def folder_of(options: Options) -> Folder:
    """Return the folder of a session's cache; `cache_dir` is a path, or True for the usual one."""
    chosen = options.cache_dir
    path = usual_folder() if chosen is None or isinstance(chosen, bool) else Path(chosen)
    return Folder(path.absolute(), options.max_cache_bytes)


def usual_folder() -> Path:
    """The folder of programs that are kept where a person names none."""
    return cache_folder() / "programs"
