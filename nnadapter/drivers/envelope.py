"""Bytes that are kept and read back: a prefix that says what they are, a header, and contents.

They are: magic, version and length of the header as little-endian uint32, SHA-256 of that length and of everything that
follows, the header, and the contents.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from hashlib import sha256
from typing import NamedTuple

from nnadapter.errors import IncompatibleProgramError

_PREFIX = struct.Struct("<8sII32s")
_LENGTH = struct.Struct("<I")
PREFIX_BYTES = _PREFIX.size
"""Bytes in front of the header."""
ADVICE = "compile the model again"
"""What to do about a program that cannot be read."""


class Envelope(NamedTuple):
    """One kind of such bytes."""

    magic: bytes
    """8 bytes that are the first ones of this kind and of no other."""
    version: int
    """Raised whenever header or contents change their meaning; other versions are refused."""

    def close(self, header: bytes, contents: Iterable[bytes | memoryview]) -> bytes:
        """Return a header and the parts of the contents as bytes that `open` takes."""
        parts = (header, *contents)
        digest = sha256(_LENGTH.pack(len(header)))
        for part in parts:
            digest.update(part)
        return b"".join((_PREFIX.pack(self.magic, self.version, len(header), digest.digest()), *parts))

    def header_of(self, blob: memoryview) -> bytes | None:
        """Return the header of such bytes, which are not checked; None if they are of another kind or version."""
        if len(blob) < PREFIX_BYTES:
            return None
        magic, version, length, _ = _PREFIX.unpack_from(blob)
        is_supported = (magic, version) == (self.magic, self.version) and length <= len(blob) - PREFIX_BYTES
        return bytes(blob[PREFIX_BYTES : PREFIX_BYTES + length]) if is_supported else None

    def open(self, blob: bytes | memoryview, *, is_checked: bool = False) -> tuple[bytes, memoryview]:
        """Return the header and the contents, which are not copied; a view has to be read-only.

        Args:
            blob: the bytes.
            is_checked: whoever gives them has held them against a checksum; they are not read once more for the digest.

        Raises:
            IncompatibleProgramError: the bytes are damaged, or of another kind or version.
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
            raise IncompatibleProgramError(f"the program's contents do not match its digest: damaged; {ADVICE}")
        return bytes(payload[:length]), payload[length:]

    @staticmethod
    def _digest(length: int, payload: memoryview) -> bytes:
        hasher = sha256(_LENGTH.pack(length))
        hasher.update(payload)
        return hasher.digest()
