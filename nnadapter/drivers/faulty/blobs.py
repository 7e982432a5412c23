"""Programs as bytes: those of the device inside, behind what they are about."""

from __future__ import annotations

from nnadapter.drivers.envelope import PREFIX_BYTES, Envelope
from nnadapter.drivers.faulty.subjects import NOTHING, Subject, subject_in
from nnadapter.errors import IncompatibleProgramError

_ENVELOPE = Envelope(magic=b"NNAFAULT", version=1)
_ALIGNMENT = 64
"""Bytes: devices may use what they read where it lies."""


def wrapped(blob: bytes, subject: Subject) -> bytes:
    """Return the bytes of a program, and what it is about."""
    header = subject.to_bytes()
    padding = -(PREFIX_BYTES + len(header)) % _ALIGNMENT
    return _ENVELOPE.close(header + b" " * padding, (blob,))


def unwrapped(blob: memoryview) -> tuple[memoryview, Subject]:
    """Return the bytes of a program and what it is about: nothing where it was written without a script of faults.

    Raises:
        IncompatibleProgramError: the bytes are damaged.
    """
    if _ENVELOPE.header_of(blob) is None:
        return blob, NOTHING
    header, contents = _ENVELOPE.open(blob, is_checked=True)
    try:
        return contents, subject_in(header)
    except ValueError as error:
        raise IncompatibleProgramError("it does not say which operations it has: damaged; compile it again") from error
