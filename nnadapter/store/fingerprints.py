"""Fingerprints of models, devices and drivers, from which the keys of cache entries are made.

SHA-256 of the contents of constants: of every byte, once in a process, in several threads.

A file's path, size and time do not say what it holds, so bytes are read. What is known by where it lies in a file that
this process opened, or by the array that holds it, is not read again.
"""

from __future__ import annotations

import platform
import sys
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import nnadapter
from nnadapter.drivers.interface import INTERFACE_VERSION, SegmentModel
from nnadapter.drivers.registry import device_info, driver_files
from nnadapter.ir.canonical import Canonical, Contents
from nnadapter.ir.model import Model
from nnadapter.ir.operand import Array
from nnadapter.process.cache import Cache, memoize
from nnadapter.process.packages import installed_builds, own_version
from nnadapter.process.processors import machine_name, usable
from nnadapter.store.folder import KeyPart, text_part

_PIECE_BYTES = 1 << 24
"""Contents of more bytes are taken in such pieces, by several threads."""
_WORTH_BYTES = 1 << 20
"""From so many bytes on, threads are faster than one."""
_MOST_THREADS = 8
_MOST_KNOWN = 1 << 16

_by_place: Cache[Hashable, bytes] = Cache("digests of weights", _MOST_KNOWN)
_by_array: dict[int, tuple[weakref.ref[Array], bytes]] = {}
"""By identity, as long as the array lives; see `ir.derived` for why it is a dictionary and a `pop`."""


def digest_of(constants: Sequence[Contents], *, anew: bool = False) -> str:
    """Return one SHA-256 for all constants in their order, in hexadecimal digits.

    Args:
        constants: their lengths count, so that no two sequences have the same bytes.
        anew: read everything, whatever was read before.

    Raises:
        ModelFileError: a file that holds them cannot be read any more, or has changed.
    """
    known = {number: digest for number, constant in enumerate(constants) if not anew and (digest := _known(constant))}
    missing = [number for number in range(len(constants)) if number not in known]
    for number, digest in zip(missing, _taken([constants[number] for number in missing]), strict=True):
        known[number] = digest
        _note(constants[number], digest)
    whole = sha256()
    for number, constant in enumerate(constants):
        digest = known[number]
        whole.update(b"%d:%b" % (constant.nbytes, digest))
    return whole.hexdigest()


def _taken(constants: Sequence[Contents]) -> Iterable[bytes]:
    if sum(constant.nbytes for constant in constants) < _WORTH_BYTES:
        return [_of_one(constant, map) for constant in constants]
    with ThreadPoolExecutor(min(usable(), _MOST_THREADS)) as pool:
        large = {number for number, constant in enumerate(constants) if constant.nbytes > _PIECE_BYTES}
        small = pool.map(
            partial(_of_one, each_piece=map), (constant for at, constant in enumerate(constants) if at not in large)
        )
        of_large = {number: _of_one(constants[number], pool.map) for number in sorted(large)}
        return [of_large[number] if number in large else next(small) for number in range(len(constants))]


def _of_one(contents: Contents, each_piece: Callable[..., Iterable[bytes]]) -> bytes:
    """The digest of what a constant holds; of the digests of its pieces, where it has several."""
    data = contents.read().data
    if data.nbytes <= _PIECE_BYTES:
        return sha256(data).digest()
    pieces = (data[start : start + _PIECE_BYTES] for start in range(0, data.nbytes, _PIECE_BYTES))
    return sha256(b"".join(each_piece(_sha256, pieces))).digest()


def _sha256(data: Any) -> bytes:
    return sha256(data).digest()


def _known(contents: Contents) -> bytes | None:
    if contents.owner is None:
        return None if contents.identity is None else _by_place.get(contents.identity)
    held = _by_array.get(id(contents.owner))
    return held[1] if held is not None and held[0]() is contents.owner else None


def _note(contents: Contents, digest: bytes) -> None:
    owner = contents.owner
    if owner is None:
        if contents.identity is not None:
            _by_place.put(contents.identity, digest)
    elif not owner.flags.writeable:
        _by_array[id(owner)] = weakref.ref(owner, partial(_by_array.pop, id(owner))), digest


def form_of(model: SegmentModel) -> Canonical:
    """Return what of a model decides what is compiled of it.

    Raises:
        NotCanonicalError: it holds something of which that is not known.
    """
    if isinstance(model, Model):
        from nnadapter.ir.canonical import canonical as of_ir

        return of_ir(model)
    from nnadapter.onnx.canonical import canonical as of_onnx

    return of_onnx(model)


_MAKING = ("drivers", "ir", "kernels", "onnx")
"""Rooms of this package whose code makes programs."""
_SHOWN = 12


def surroundings(device: str, *, takes_onnx: bool) -> Mapping[str, KeyPart]:
    """Return the parts of keys of all that a device makes in this process: device, driver, host and machine.

    Args:
        device: its name.
        takes_onnx: ONNX Runtime may be under its driver.
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
    """Return those of these parts that are a device's own: `device` and `driver`."""
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
    """The file, with what is other wherever somebody writes to it: its time and its size."""
    with suppress(OSError):
        found = file.stat()
        return file, found.st_mtime_ns, found.st_size
    return file, 0, 0


@memoize(8)
def _digest_of(states: tuple[tuple[Path, int, int], ...]) -> str:
    whole = sha256()
    for file, _, _ in states:
        with suppress(OSError):
            contents = file.read_bytes()
            whole.update(b"%d:" % len(contents))
            whole.update(contents)
    return whole.hexdigest()[:_SHOWN]


@memoize(1)
def machine() -> KeyPart:
    """Return the part `machine`."""
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
    """What the processor says that it can do, in the way of Linux."""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
        line = next((line for line in lines if line.startswith(("flags", "Features"))), "")
        yield from sorted(line.partition(":")[2].split())
