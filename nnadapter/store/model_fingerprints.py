"""Fingerprints of models: digests of their structure and constants, from which the keys of cache entries are made.

SHA-256 of the contents of constants: of every byte, once in a process, in several threads.

A file's path, size and time do not say what it holds, so bytes are read. What is known by where it lies in a file that
this process opened, or by the array that holds it, is not read again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import sha256
from typing import Any

from nnadapter.drivers.interface import SegmentModel
from nnadapter.ir.canonical import Canonical, Contents
from nnadapter.ir.model import Model
from nnadapter.ir.operand import Array
from nnadapter.process.cache import Cache
from nnadapter.process.processors import usable

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
