"""Deviation between values: every type, sequences, and NaN."""

from __future__ import annotations

from math import inf

import ml_dtypes
import numpy as np
import pytest

from nnadapter.accuracy import Tolerance, deviation

USUAL = Tolerance(relative=1e-3, absolute=1e-5)
STEP = Tolerance(relative=1e-3, absolute=1e-5, steps=1)


def apart(got, expected, tolerance=USUAL):
    return deviation("v", got, expected, tolerance)


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_integers_are_compared_as_integers(dtype):
    found = apart(np.array([2**60 + 1, 5], dtype), np.array([2**60, 5], dtype))
    assert (found.largest_absolute, found.beyond, found.tolerances) == (1.0, 1, inf)
    assert not apart(np.array([2**60 + 1], dtype), np.array([2**60], dtype), STEP).beyond


def test_extreme_integers():
    for dtype in (np.int8, np.int64, np.uint64):
        ends = np.iinfo(dtype)
        found = apart(np.array(ends.min, dtype), np.array(ends.max, dtype))
        assert found.largest_absolute == float(ends.max - ends.min) and found.beyond == 1


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float16", "float32", "float64"])
def test_deviation_of_floating_point_numbers(name):
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    expected, got = np.asarray([1, 2, np.nan], dtype), np.asarray([1, 4, np.nan], dtype)
    found = apart(got, expected)
    assert (found.largest_absolute, found.largest_relative, found.beyond) == (2, 1, 1)
    assert apart(expected, expected).tolerances == 0


@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.uint4, np.int8, np.uint16])
def test_deviation_of_quantized_integers(dtype):
    expected, got = np.asarray([1, 2], dtype), np.asarray([1, 3], dtype)
    assert apart(got, expected).beyond == 1 and not apart(got, expected, STEP).beyond
    assert apart(np.asarray([1, 4], dtype), expected, STEP).beyond == 1


@pytest.mark.parametrize(
    ("got", "expected", "beyond"),
    [
        (np.float32([np.inf, -np.inf]), np.float32([np.inf, np.inf]), 1),
        (np.float32([np.nan]), np.float32([1]), 1),
        (np.float32([1]), np.float32([np.inf]), 1),
        (np.array([True, False]), np.array([True, True]), 1),
        (np.array(["a", "bc"]), np.array(["a", "b"], object), 1),
        (np.complex64([1 + 1j]), np.complex64([1 + 1.0001j]), 0),
        (np.complex64([1 + 1j]), np.complex64([1 + 2j]), 1),
        (np.zeros((0, 4), np.float32), np.zeros((0, 4), np.float32), 0),
        (np.zeros((0, 4), np.float32), np.zeros((0,), np.float32), 1),
        (np.float32([1]), np.float64([1]), 1),
        (None, None, 0),
        (None, np.float32([1]), 1),
        ([], [], 0),
        ([np.float32([1])], [], 1),
        ([np.zeros((2, 3), np.float32), np.ones(2)], [np.zeros((2, 3), np.float32), np.ones(2)], 0),
        ([np.zeros((2, 3), np.float32), np.ones(2)], [np.zeros((2, 3), np.float32), np.zeros(2)], 2),
        ([{1: 0.5, 2: 0.5}], [{1: 0.5, 2: 0.5001}], 0),
        ([{1: 0.5}], [{2: 0.5}], 1),
    ],
)
def test_deviation_of_other_values(got, expected, beyond):
    assert apart(got, expected).beyond == beyond


def test_scaled_tolerance_allows_cancellation_errors():
    got, expected = np.float32([1e-4, 50]), np.float32([0, 50])
    assert (
        apart(got, expected).beyond
        and not apart(got, expected, Tolerance(relative=0, absolute=1e-5, scaled=True)).beyond
    )
