"""File format of stored programs.

A file has, in order: magic, version, header length, SHA-256 digest, header, contents. Version and length are
little-endian uint32. The digest is of the length, header and contents.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, NamedTuple

from nnadapter.errors import IncompatibleProgramError

_PREFIX = struct.Struct("<8sII32s")
_LENGTH = struct.Struct("<I")
PREFIX_BYTES = _PREFIX.size
"""Size of the fixed part before the header."""
ADVICE = "compile the model again"


class Envelope(NamedTuple):
    """File format of one kind of stored program."""

    magic: bytes
    """8 bytes, unique to this kind."""
    version: int
    """Changes with the format; other versions are refused."""

    def close(self, header: bytes, contents: Iterable[bytes | memoryview]) -> bytes:
        parts = (header, *contents)
        digest = sha256(_LENGTH.pack(len(header)))
        for part in parts:
            digest.update(part)
        return b"".join((_PREFIX.pack(self.magic, self.version, len(header), digest.digest()), *parts))

    def header_of(self, blob: memoryview) -> bytes | None:
        """Return the header, without checking the digest; None for another kind or version."""
        if len(blob) < PREFIX_BYTES:
            return None
        magic, version, length, _ = _PREFIX.unpack_from(blob)
        is_supported = (magic, version) == (self.magic, self.version) and length <= len(blob) - PREFIX_BYTES
        return bytes(blob[PREFIX_BYTES : PREFIX_BYTES + length]) if is_supported else None

    def open(self, blob: bytes | memoryview, *, is_checked: bool = False) -> tuple[bytes, memoryview]:
        """Return header and contents without copying the contents. A view must be read-only.

        `is_checked` skips the digest, because the caller has verified a checksum.
        """
        is_immutable = isinstance(blob, bytes) or (isinstance(blob, memoryview) and blob.readonly)
        if not is_immutable or len(blob) < PREFIX_BYTES:
            got = f"{len(blob)} bytes" if is_immutable else type(blob).__name__
            raise IncompatibleProgramError(f"a program is at least {PREFIX_BYTES} bytes, got {got}; {ADVICE}")
        magic, version, length, digest = _PREFIX.unpack_from(blob)
        if magic != self.magic:
            raise IncompatibleProgramError(f"the program starts with {magic!r}, expected {self.magic!r}; {ADVICE}")
        if version != self.version:
            raise IncompatibleProgramError(f"the program has version {version}, expected {self.version}; {ADVICE}")
        payload = memoryview(blob)[PREFIX_BYTES:]
        if length > len(payload) or not (is_checked or self._digest(length, payload) == digest):
            raise IncompatibleProgramError(f"the program is damaged: its contents do not match its digest; {ADVICE}")
        return bytes(payload[:length]), payload[length:]

    @staticmethod
    def _digest(length: int, payload: memoryview) -> bytes:
        hasher = sha256(_LENGTH.pack(length))
        hasher.update(payload)
        return hasher.digest()


def check_seal(recorded: object, seal: Mapping[str, Any]) -> None:
    """Raise IncompatibleProgramError if settings `recorded` in a program differ from a context's (`seal`)."""
    for name, expected in seal.items():
        got = recorded.get(name) if isinstance(recorded, dict) else None
        if got != expected:
            raise IncompatibleProgramError(
                f"the program was compiled with {name} {got!r}, expected {expected!r}; {ADVICE}"
            )
