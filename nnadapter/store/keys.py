"""Keys of cache entries."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from stat import S_ISREG
from typing import Any

import nnadapter
from nnadapter.drivers.interface import INTERFACE_VERSION
from nnadapter.drivers.registry import device_info, device_of, driver_files
from nnadapter.drivers.selection import HOSTS, Selected
from nnadapter.files.atomic_files import calibrations_of_driver
from nnadapter.options import Options, fallback_text
from nnadapter.process.packages import installed_builds, installed_version, own_version
from nnadapter.process.processors import machine_name, usable
from nnadapter.process.resources import memoize, new_lock
from nnadapter.records import dataclass, field
from nnadapter.store.folder import Key, KeyPart, text_part

_MAKING = ("drivers", "ir", "kernels", "onnx")
_SHOWN = 12


def surroundings(device: str, *, takes_onnx: bool) -> Mapping[str, KeyPart]:
    """Return the key parts of all that a program depends on except its segment.

    `takes_onnx` adds the version of ONNX Runtime.
    """
    return {
        **of_device(device),
        "host": text_part(
            {
                "nnadapter": own_version(),
                "files": _digest_of_host(),
                **({"onnxruntime": installed_builds("onnxruntime")} if takes_onnx else {}),
            }
        ),
        "machine": machine(),
    }


def of_device(device: str) -> Mapping[str, KeyPart]:
    """Return the key parts `device` and `driver`."""
    info = device_info(device)
    return {
        "device": text_part({"name": device, "hardware": info.sub_type, "vendor": info.vendor}),
        "driver": text_part(
            {
                "version": info.version,
                "distribution": info.distribution,
                "interface": ".".join(map(str, INTERFACE_VERSION)),
                "files": _digest_of_driver(device),
            }
        ),
    }


def _digest_of_driver(device: str) -> str:
    files = driver_files(device)
    return _digest_of(tuple(map(_state_of, files))) if files else ""


@memoize(1)
def _digest_of_host() -> str:
    folder = Path(nnadapter.__file__).parent
    return _digest_of(tuple(_state_of(file) for room in _MAKING for file in sorted((folder / room).rglob("*.py"))))


def _state_of(file: Path) -> tuple[Path, int, int]:
    with suppress(OSError):
        status = file.stat()
        return file, status.st_mtime_ns, status.st_size
    return file, 0, 0


@memoize(8)
def _digest_of(states: tuple[tuple[Path, int, int], ...]) -> str:
    hasher = sha256()
    for file, _, _ in states:
        with suppress(OSError):
            contents = file.read_bytes()
            hasher.update(b"%d:" % len(contents))
            hasher.update(contents)
    return hasher.hexdigest()[:_SHOWN]


@memoize(1)
def machine() -> KeyPart:
    """Return the key part `machine`."""
    flags = sha256(" ".join(_abilities()).encode()).hexdigest()[:_SHOWN]
    return text_part(
        {
            "system": platform.system(),
            "processor": machine_name(),
            "abilities": flags,
            "processors": usable(),
            "byteorder": sys.byteorder,
        }
    )


def _abilities() -> Iterator[str]:
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
        line = next((line for line in lines if line.startswith(("flags", "Features"))), "")
        yield from sorted(line.partition(":")[2].split())


_PIECE_BYTES = 1 << 22
_BEHIND_BYTES = 1 << 13
"""Bytes read beyond a file's piece, for a path that crosses its end."""
_MOST_THREADS = 8
_LOCATION = b"location"
_BEGINS = re.compile(rb"(?:\x0a|\x8a\x80{0,8}\x00)(?:\x08|\x88\x80{0,8}\x00)\Z")
"""Bytes before `location`: key tag of StringStringEntryProto and length 8. Zero-padded varints are valid but rare."""
_BEFORE_BYTES = 32
"""Bytes read before a file's piece, for an entry that crosses its beginning."""
_LENGTH = re.compile(rb"\x12([\x01-\x7f]|[\x80-\xff][\x01-\x3f])")
"""Bytes after `location`: tag and length of the value."""
_ENTRY_BYTES = re.compile(rb"(?<![\x80-\xff])([\x01-\x7f]|[\x80-\xff][\x01-\x3f])\Z")
_USUAL = b"\x0a\x08"
_seeking = new_lock()
Named = Callable[[bytes, int], Iterator[str]]
_Piece = tuple[set[str], bytes]


class UnkeyedError(Exception):
    """A model has no digest; the message is the reason. Internal to this package."""


@dataclass(frozen=True, slots=True)
class Source:
    """Digests of a model: `model` covers its own bytes, `beside` also its external data."""

    model: KeyPart
    beside: KeyPart
    origin: Any = field(compare=False)
    """Absolute path of the model, or its contents."""


def source_of(source: Any) -> Source:
    """Return the digest of a model: a path, contents, or an `onnx.ModelProto`.

    Raises:
        UnkeyedError: the model has no digest, such as one in memory with external data.
        OSError: a file cannot be read.
    """
    if isinstance(source, (str, os.PathLike)):
        return _of_file(Path(source))
    contents = source if isinstance(source, bytes) else _serialized(source)
    names, digest = _scanned(contents, len(contents), _named)
    if names:
        raise UnkeyedError("a model in memory has external data in files, so its contents are not known")
    return _source(contents, digest, len(contents), {})


def begun_source(source: Any) -> Callable[[], Source]:
    """Start `source_of`, in a thread if the model is large; return a function that waits for the result."""
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
    except (OSError, ValueError):
        return False


def _serialized(model: Any) -> bytes:
    from google.protobuf.message import EncodeError, Message

    if not isinstance(model, Message):
        raise UnkeyedError("the source is not a model")
    try:
        contents: bytes = model.SerializeToString(deterministic=True)
    except (EncodeError, ValueError) as error:
        raise UnkeyedError("the model is larger than 2 GiB, protobuf's limit") from error
    return contents


def _of_file(path: Path) -> Source:
    size, names, digest = _file(path, _named)
    files = {}
    for name in sorted(names):
        if not Path(name).is_absolute() and ".." not in Path(name).parts:
            files[name] = _external_file(path.parent / name)
    return _source(path.absolute(), digest, size, files)


def _external_file(path: Path) -> tuple[int, str]:
    """Return size and digest of an external data file, without a search for names: weights may look like names."""
    try:
        size, _, digest = _file(path, _no_names)
    except (OSError, ValueError):
        return 0, "not there"
    return size, digest


def _source(model: Any, digest: str, size: int, files: dict[str, tuple[int, str]]) -> Source:
    part = KeyPart(digest, {"operations": "a model", "bytes": str(size)})
    joint = sha256(repr((digest, sorted(files.items()))).encode()).hexdigest()
    nbytes = size + sum(file_size for file_size, _ in files.values())
    return Source(part, KeyPart(joint, {"files": str(1 + len(files)), "bytes": str(nbytes)}), model)


def _file(path: Path, named: Named) -> tuple[int, frozenset[str], str]:
    if not S_ISREG(path.stat().st_mode):
        raise UnkeyedError("the path is not a regular file")
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        return size, *_scanned(file.fileno(), size, named)


def _scanned(contents: int | bytes, size: int, named: Named) -> tuple[frozenset[str], str]:
    starts = range(0, size, _PIECE_BYTES)
    hasher, names = sha256(str(size).encode()), set[str]()
    for piece_names, digest in _scanned_pieces(lambda start: _piece(contents, start, named), starts):
        hasher.update(digest)
        names |= piece_names
    return frozenset(names), hasher.hexdigest()


def _scanned_pieces(take: Callable[[int], _Piece], starts: Sequence[int]) -> Iterator[_Piece]:
    if len(starts) < 2:
        yield from map(take, starts)
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(usable(), _MOST_THREADS)) as pool:
        yield from pool.map(take, starts)


def _piece(contents: int | bytes, start: int, named: Named) -> _Piece:
    overlap = min(start, _BEFORE_BYTES)
    first, most = start - overlap, overlap + _PIECE_BYTES + _BEHIND_BYTES
    data = contents[first : first + most] if isinstance(contents, bytes) else _read(contents, most, first)
    return set(named(data, overlap)), sha256(memoryview(data)[overlap : overlap + _PIECE_BYTES]).digest()


def _read(file: int, nbytes: int, first: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(file, nbytes, first)
    with _seeking:
        os.lseek(file, first, os.SEEK_SET)
        return os.read(file, nbytes)


def _no_names(data: bytes, overlap: int) -> Iterator[str]:
    return iter(())


def _named(data: bytes, overlap: int) -> Iterator[str]:
    """Yield the names of external data files in a piece of a model file.

    The word `location` precedes a name. The name belongs to the piece with the start of this word.
    """
    at = data.find(_LOCATION, overlap)
    while 0 <= at < overlap + _PIECE_BYTES:
        begins = _BEGINS.search(data[max(at - _BEFORE_BYTES, 0) : at])
        if begins is not None:
            yield _name_behind(data, at, begins.group())
        at = data.find(_LOCATION, at + 1)


def _name_behind(data: bytes, at: int, begins: bytes) -> str:
    length = _LENGTH.match(data, at + len(_LOCATION))
    if begins == _USUAL and length is not None:
        (digits,) = length.groups()
        name = data[length.end() : length.end() + _number(digits)]
        first = at - len(_USUAL)
        size = _ENTRY_BYTES.search(data[max(first - _BEFORE_BYTES, 0) : first])
        if size is not None and _number(size.group(1)) == length.end() + len(name) - first:
            return name.decode(errors="surrogateescape")
    raise UnkeyedError("a file of external data is referenced in an unusual way, so the model cannot be identified")


def _number(digits: bytes) -> int:
    return digits[0] & 0x7F | (digits[1] << 7 if len(digits) > 1 else 0)


PLAN = "plan"
_PACKAGES = ("onnx", "numpy")


def key_of(source: Source, devices: Sequence[Selected], options: Options) -> Key:
    """Return the key of a session's cached plans, from its model, its devices in order, and its options.

    Raises:
        OSError: a file that options name, or a calibration, cannot be read.
    """
    around = {device.name: of_device(device.name) for device in devices if device.name not in HOSTS}
    parts = {
        **{
            part: _joined({name: key_parts[part] for name, key_parts in around.items()})
            for part in ("device", "driver")
        },
        "host": text_part(
            {
                "nnadapter": own_version(),
                "files": _own_files(),
                **{package: installed_version(package) for package in _PACKAGES},
                "onnxruntime": installed_builds("onnxruntime"),
            }
        ),
        "machine": _machine(devices),
        "options": text_part(
            {
                **_of_session(options),
                **dict(_of_devices(devices)),
                "order": [selected_device.name for selected_device in devices],
            }
        ),
        "structure": source.model,
        "shapes": KeyPart(source.model.digest, {"inputs": "any"}),
        "constants": source.beside,
    }
    return Key(PLAN, parts)


def _joined(parts: Mapping[str, KeyPart]) -> KeyPart:
    words = dict.fromkeys(word for part in parts.values() for word in part.words)
    joined = {word: ", ".join(part.words.get(word, "") for part in parts.values()) for word in words}
    return KeyPart(sha256(repr([(name, part.digest) for name, part in parts.items()]).encode()).hexdigest(), joined)


def _machine(devices: Sequence[Selected]) -> KeyPart:
    calibrated = sha256(repr(sorted(_calibrations(devices))).encode()).hexdigest()[:_SHOWN]
    return text_part({**machine().words, "calibrations": calibrated})


def _calibrations(devices: Sequence[Selected]) -> Iterator[tuple[str, str]]:
    for name in sorted({*HOSTS, *(device_of(device.name) for device in devices)}):
        for file in calibrations_of_driver(name):
            yield file.name, sha256(file.read_bytes()).hexdigest()


def _of_devices(devices: Sequence[Selected]) -> Iterator[tuple[str, object]]:
    yield "devices", ", ".join(device.name for device in devices)
    for device in devices:
        yield f"named {device.name}", device.named
        yield f"isolated {device.name}", device.limits is not None
        for name, value in device.options.items():
            yield f"{device.name}.{name}", value


def _of_session(options: Options) -> dict[str, object]:
    return {
        "policy": options.policy,
        "precision": str(options.precision),
        "verify": options.verify,
        "fallback": fallback_text(options.fallback),
        "rules": _option_value(options.rules),
        "plan": _option_value(options.plan),
    }


def _option_value(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str) and "\n" in value:
        return value
    if not isinstance(value, (str, os.PathLike)):
        return repr(value)
    return sha256(Path(value).read_bytes()).hexdigest()[:_SHOWN]


@memoize(1)
def _own_files() -> str:
    """Return a digest of size and modification time of every Python file of this package and the partitioner.

    Edits change the time; installations change the version in the key.
    """
    package = Path(nnadapter.__file__).parent
    listed = sorted(_listed(package, "")) + sorted(_listed(package.with_name("partition"), ""))
    return sha256(repr(listed).encode()).hexdigest()[:_SHOWN]


def _listed(folder: Path | str, inside: str) -> Iterator[tuple[str, int, int]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                status = entry.stat()
                yield inside + entry.name, status.st_size, status.st_mtime_ns
            elif entry.name != "__pycache__" and entry.is_dir(follow_symlinks=False):
                yield from _listed(entry.path, f"{inside}{entry.name}/")
