"""Rows per task: few tasks, but several for each actor, within the memory."""

from __future__ import annotations

import pytest

from nnadapter.onnx import ModelMetadata, Signature
from nnadapter.ray.rows import known_rows, rows_at_once
from partition import Value


def signature(row, made, *, dtype="float32"):
    """Return a signature with one input and one output of these row shapes; None is an unknown shape."""
    values = [
        Value(name=name, dtype=dtype, shape=None if shape is None else ("N", *shape))
        for name, shape in (("x", row), ("y", made))
    ]
    return Signature((values[0],), (), (values[1],), ModelMetadata("", "", "", "", "", 0, {}))


@pytest.mark.parametrize(
    ("row", "made", "rows", "actors", "expected"),
    [
        ((16,), (16,), None, 1, 512),
        ((16,), None, 10**6, 1, 512),
        ((16,), (16,), 10**6, 1, 8192),
        ((16,), (16,), 10**5, 2, 3072),
        ((16,), (16,), 1000, 2, 512),
        ((3, 224, 224), (1000,), 10**6, 1, 64),
        ((16,), (128, 768), 10**6, 1, 64),
        (("L",), ("L", 4), 10**6, 1, 8192),
        ((3, 96, 96), (1000,), None, 1, 128),
        ((3, 96, 96), (1000,), 4000, 2, 128),
        ((3, 96, 96), (1000,), 10**6, 2, 256),
    ],
    ids=[
        "unknown number", "unknown size", "small", "for two", "few", "large pictures", "much comes out", "open sizes",
        "an unknown number of pictures", "few pictures", "many pictures",
    ],
)  # fmt: skip
def test_small_rows_come_in_large_batches(row, made, rows, actors, expected):
    given = rows_at_once(signature(row, made), ["x"], ["y"], batch_size=64, rows=rows, actors=actors)
    assert given == expected


def test_run_is_never_split():
    assert rows_at_once(signature((16,), (16,)), ["x"], ["y"], batch_size=600, rows=None, actors=1) == 600
    assert rows_at_once(signature((16,), (16,)), ["x"], ["y"], batch_size=100_000, rows=10, actors=1) == 100_000


def test_unknown_row_count_is_not_computed():
    class Unknown:
        def _meta_count(self):
            return None

        def count(self):
            raise AssertionError("this computes")

    assert known_rows(Unknown()) is None and known_rows(object()) is None
