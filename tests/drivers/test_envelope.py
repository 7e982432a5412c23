from __future__ import annotations

from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnadapter.drivers.envelope import PREFIX_BYTES, Envelope
from nnadapter.errors import IncompatibleProgramError
from tests.every import for_every

ENVELOPE = Envelope(magic=b"ENVELOPE", version=3)
BLOB = ENVELOPE.close(b"header", [b"some", memoryview(b"thing")])


@given(st.binary(max_size=80), st.lists(st.binary(max_size=80), max_size=3))
def test_round_trip(header, parts):
    read, contents = ENVELOPE.open(ENVELOPE.close(header, parts))
    assert read == header and bytes(contents) == b"".join(parts)


def test_view_is_read_without_a_copy():
    _, contents = ENVELOPE.open(memoryview(BLOB))
    assert np.shares_memory(np.frombuffer(contents, np.uint8), np.frombuffer(BLOB, np.uint8))
    with pytest.raises(IncompatibleProgramError, match="got memoryview"):
        ENVELOPE.open(memoryview(bytearray(BLOB)))  # may change after its digest is checked


def test_prefix_has_magic_version_and_digest():
    assert BLOB[:16] == b"ENVELOPE" + bytes([3, 0, 0, 0, 6, 0, 0, 0])
    assert BLOB[16:PREFIX_BYTES] == sha256(bytes([6, 0, 0, 0]) + b"headersomething").digest()
    assert BLOB[PREFIX_BYTES:] == b"headersomething"


@for_every(position=range(len(BLOB)), bit=[1, 128])
def test_a_flipped_bit_is_found(position, bit):
    damaged = BLOB[:position] + bytes([BLOB[position] ^ bit]) + BLOB[position + 1 :]
    with pytest.raises(IncompatibleProgramError, match="compile the model again$"):
        ENVELOPE.open(damaged)


@pytest.mark.parametrize(
    ("blob", "message"),
    [
        (None, "a program is at least 48 bytes, got NoneType"),
        (b"short", "a program is at least 48 bytes, got 5 bytes"),
        (BLOB[:-1], "is damaged: its contents do not match its digest"),
        (BLOB + b"x", "is damaged: its contents do not match its digest"),
        (Envelope(magic=b"LETTERS!", version=3).close(b"", []), "starts with b'LETTERS!', expected b'ENVELOPE'"),
        (Envelope(magic=b"ENVELOPE", version=4).close(b"", []), "has version 4, expected 3"),
    ],
)
def test_invalid_bytes_are_refused(blob, message):
    with pytest.raises(IncompatibleProgramError, match=message):
        ENVELOPE.open(blob)


def test_checked_bytes_skip_the_digest():
    damaged = memoryview(BLOB[:-1] + b"!")
    with pytest.raises(IncompatibleProgramError, match="damaged"):
        ENVELOPE.open(damaged)
    assert bytes(ENVELOPE.open(damaged, is_checked=True)[1]) == b"somethin!"
    with pytest.raises(IncompatibleProgramError, match="damaged"):
        ENVELOPE.open(memoryview(BLOB[:PREFIX_BYTES]), is_checked=True)  # the header is longer than the bytes
