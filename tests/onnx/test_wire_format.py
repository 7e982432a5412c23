from __future__ import annotations

import pytest

from nnadapter.onnx import fields, varint, varint_bytes


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 2**32, 2**63 - 1, 2**64 - 1])
def test_numbers_round_trip(value):
    written = varint_bytes(value)
    assert varint(written, 0) == (value, len(written))


@pytest.mark.parametrize(
    "contents", [b"\x80", b"\x80" * 11 + b"\0", b"\x80" * 1_000_000], ids=["cut short", "too long", "a megabyte"]
)
def test_unterminated_numbers_are_refused(contents):
    with pytest.raises(IndexError):
        varint(contents, 0)
    with pytest.raises(IndexError):
        list(fields(contents, 0, len(contents)))
