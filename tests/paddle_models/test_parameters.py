"""Damaged parameter files that Paddle and its converter would accept."""

from __future__ import annotations

import struct

import pytest

from nnadapter.paddle.model_files import check_whole


def tensor(kind, *sizes, elements=b""):
    """Serialize a tensor in Paddle's format: versions, no sequence offsets, a description, elements."""
    description = bytes((8, kind)) + b"".join(bytes((16, size & 127 | 128, size >> 7)) for size in sizes)
    return struct.pack("<IQIi", 0, 0, 0, len(description)) + description + elements


WHOLE = tensor(5, 2, 3, elements=bytes(24)) + tensor(3, elements=bytes(8)) + tensor(0, 200, elements=bytes(200))


@pytest.mark.parametrize("size", [len(WHOLE), len(WHOLE) - 200 - 25])
def test_complete_tensors_are_accepted(tmp_path, size):
    (tmp_path / "p").write_bytes(WHOLE[:size])
    check_whole(tmp_path / "p")


@pytest.mark.parametrize(("contents", "match"), [
    (WHOLE[:-1], f"end within a tensor: {len(WHOLE) - 1} bytes, expected {len(WHOLE)} or more"),
    (WHOLE[:30], "end within a tensor"),
    (WHOLE + b"x", f"no Paddle tensor at byte {len(WHOLE)} of"),
    (WHOLE[:10], "no Paddle tensor at byte 0 of 10"),
    (tensor(9, 2), "no Paddle tensor"),
    (b"\xff" * 64, "no Paddle tensor"),
    (struct.pack("<IQIi", 0, 0, 0, 1 << 30) + bytes(99), "no Paddle tensor"),
    (struct.pack("<IQIi", 0, 0, 0, 12) + b"\x08\x05\x10" + b"\xff" * 8 + b"\x7f", "end within a tensor"),
])  # fmt: skip
def test_truncated_or_invalid_tensors_are_an_error(tmp_path, contents, match):
    (tmp_path / "p").write_bytes(contents)
    with pytest.raises(ValueError, match=match):
        check_whole(tmp_path / "p")
