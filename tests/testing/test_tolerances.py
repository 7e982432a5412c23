from __future__ import annotations

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from nnadapter.accuracy import BANDS
from nnadapter.testing import Precision
from nnadapter.testing.subjects import first_difference

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"
ROW = re.compile(r"^\| (b?float\w+) \| 2\^(-\d+) \| (\S+) \| (\S+) \|$", re.MULTILINE)


def test_documentation_has_the_table():
    table = {
        name: (2.0 ** int(power), float(relative), float(two))
        for name, power, relative, two in ROW.findall(PAGE.read_text())
    }
    assert table == {dtype.value: (band.noise, band.relative, band.absolute) for dtype, band in BANDS.items()}


@pytest.mark.parametrize(
    ("dtype", "off", "fine"),
    [
        (np.float32, 5e-4, True),
        (np.float32, 5e-3, False),
        (np.float16, 8e-3, True),
        (ml_dtypes.bfloat16, 4e-2, True),
        (np.int32, 1, False),
        (np.uint8, 1, True),
        (np.uint8, 2, False),
    ],
)
def test_tolerance_per_data_type(dtype, off, fine):
    expected = np.asarray([1, 2], dtype)
    got = (expected.astype(np.float64) + np.asarray([0, off])).astype(dtype)
    assert (first_difference(got, expected, Precision.FLOAT32, steps=1) == "") is fine


def test_half_precision_has_a_wider_tolerance():
    got, expected = np.float32([1.005]), np.float32([1])
    assert first_difference(got, expected, Precision.FLOAT32) and not first_difference(got, expected, Precision.FLOAT16)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.float8_e4m3fnuz])
def test_nan_and_infinity_must_match(dtype):
    nan = np.asarray([np.nan, 1], dtype)
    assert not first_difference(nan, nan, Precision.FLOAT32)
    assert "1 of 2 elements" in first_difference(nan, np.asarray([1, 1], dtype), Precision.FLOAT32)
    assert first_difference(np.float32([np.inf]), np.float32([1]), Precision.FLOAT32)


def test_zeros_of_sums_of_large_numbers():
    got, expected = np.float32([1e-4, 50]), np.float32([0, 50])
    assert not first_difference(got, expected, Precision.FLOAT32)
    assert first_difference(got[:1], expected[:1], Precision.FLOAT32).endswith("expected 0.0; 1 of 1 elements are off")
