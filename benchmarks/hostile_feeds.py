"""Feeds that are no arrays, or lie about what they hold; for an input x of float[n, 3]."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Never

import numpy as np
from numpy.lib.stride_tricks import as_strided

from benchmarks.hostile import HUGE

_X = np.ones((2, 3), np.float32)


class _Subclass(np.ndarray):
    """An array of another class."""


class _Raising:
    def __array__(self, *_: Any, **__: Any) -> Never:
        raise RuntimeError("no array")


class _Endless:
    def __len__(self) -> int:
        return 10**9

    def __getitem__(self, _: int) -> float:
        return 1.0


FEEDS: Mapping[str, Callable[[], Any]] = {
    "objects": lambda: {"x": np.full((1000, 3), None, object)},
    "texts": lambda: {"x": np.array([["a", "b", "c"]])},
    "bytes": lambda: {"x": np.array([[b"a", b"b", b"c"]])},
    "another byte order": lambda: {"x": _X.astype(">f4")},
    "backwards": lambda: {"x": _X[::-1, ::-1]},
    "columns first": lambda: {"x": np.asfortranarray(_X)},
    "elements that overlap": lambda: {"x": as_strided(np.ones(30, np.float32), (9, 3), (4, 4))},
    "nothing": lambda: {"x": np.ones((0, 3), np.float32)},
    "a view of one as 2**40": lambda: {"x": np.broadcast_to(np.float32(1), (HUGE, 3))},
    "strides of 0": lambda: {"x": as_strided(_X, (2**38, 3), (0, 0))},
    "a subclass": lambda: {"x": _X.view(_Subclass)},
    "a masked array": lambda: {"x": np.ma.masked_array(_X, _X > 0)},
    "an address that is not aligned": lambda: {"x": np.frombuffer(b"\0" * 25, np.float32, 6, 1).reshape(2, 3)},
    "32 axes": lambda: {"x": np.ones((1,) * 32, np.float32)},
    "records": lambda: {"x": np.zeros((2, 3), [("a", "f4")])},
    "complex numbers": lambda: {"x": _X.astype(complex)},
    "None": lambda: {"x": None},
    "a ragged list": lambda: {"x": [[1, [2], 3]]},
    "what raises": lambda: {"x": _Raising()},
    "a list without end": lambda: {"x": _Endless()},
    "names that are no texts": lambda: {b"x": _X, 1: _X},
    "a name of 10 MB": lambda: {"n" * 10_000_000: _X},
    "a list in place of a dictionary": lambda: [_X],
}
"""A person's name for each, and what makes it."""
