"""Distances between tensors: cosine, SQNR and Euclidean distance."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from nnadapter.accuracy import Distance, distance, distance_per_item

EQUAL, UNRELATED = Distance(1.0, inf, 0.0, 0.0), Distance(0.0, -inf, inf, inf)
NUMBERS = st.floats(-1e100, 1e100, allow_subnormal=False).filter(lambda x: x == 0 or abs(x) > 1e-100)
PAIRS = array_shapes(max_dims=3, max_side=5).flatmap(
    lambda shape: st.tuples(arrays(np.float64, shape, elements=NUMBERS), arrays(np.float64, shape, elements=NUMBERS))
)


def close(got, expected):
    """Return True if all numbers agree; small Euclidean distances have no absolute tolerance."""
    pairs = zip(
        (got.cosine, got.sqnr_db, got.relative), (expected.cosine, expected.sqnr_db, expected.relative), strict=True
    )
    same = all(a == pytest.approx(b, rel=1e-9, abs=1e-9) for a, b in pairs)
    return same and got.euclidean == pytest.approx(expected.euclidean, rel=1e-9, abs=0)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "uint8", "int64"])
def test_formulas(dtype):
    random = np.random.default_rng(7)
    r = (random.normal(size=(3, 40)) * 30 + 60).astype(dtype)
    a = (r + random.normal(size=r.shape) * 5).astype(dtype)
    got, x, y = distance(a, r), a.astype(np.float64).ravel(), r.astype(np.float64).ravel()
    noise = x - y
    assert got.cosine == pytest.approx(x @ y / np.sqrt((x @ x) * (y @ y)))
    assert got.sqnr_db == pytest.approx(10 * np.log10((y @ y) / (noise @ noise)))
    assert got.euclidean == pytest.approx(np.linalg.norm(noise))
    assert got.relative == pytest.approx(np.linalg.norm(noise) / np.linalg.norm(y))


def test_complex_numbers_are_pairs():
    r = np.array([3 + 4j, 1j])
    assert distance(r * 1j, r).cosine == pytest.approx(0)
    assert distance(r * 2, r).relative == pytest.approx(1)


@pytest.mark.parametrize(
    ("actual", "reference", "expected"),
    [
        ([], [], EQUAL),
        ([1, 2], [1, 2], EQUAL),
        ([0, 0], [0, 0], EQUAL),
        ([0, 0], [3, 4], Distance(0.0, 0.0, 5.0, 1.0)),
        ([3, 4], [0, 0], Distance(0.0, -inf, 5.0, inf)),
        ([-3, -4], [3, 4], Distance(-1.0, -20 * np.log10(2), 10.0, 2.0)),
        ([np.nan, 1], [np.nan, 1], EQUAL),
        ([np.inf, -np.inf], [np.inf, -np.inf], EQUAL),
        ([np.nan, 1], [1, 1], UNRELATED),
        ([1, 1], [1, np.nan], UNRELATED),
        ([np.inf, 1], [-np.inf, 1], UNRELATED),
        ([np.inf, 1], [np.nan, 1], UNRELATED),
        ([np.inf, 0, np.nan], [np.inf, 2, np.nan], Distance(0.0, 0.0, 2.0, 1.0)),
        ([3e300, 4e300], [6e300, 8e300], Distance(1.0, 20 * np.log10(2), 5e300, 0.5)),
        ([3e-300, 4e-300], [6e-300, 8e-300], Distance(1.0, 20 * np.log10(2), 5e-300, 0.5)),
        ([1e-300], [1e300], Distance(1.0, 0.0, 1e300, 1.0)),
    ],
)  # fmt: skip
def test_special_numbers(actual, reference, expected):
    assert close(distance(np.array(actual, float), np.array(reference, float)), expected)


def test_unequal_shapes():
    with pytest.raises(ValueError, match=r"shapes differ: \[\(2, 3\)\] and \[\(3, 2\)\]"):
        distance(np.zeros((2, 3)), np.zeros((3, 2)))
    with pytest.raises(ValueError, match="shapes differ"):
        distance([np.zeros(2)], [np.zeros(1), np.zeros(1)])
    with pytest.raises(ValueError, match="shapes differ"):
        distance_per_item(np.zeros((2, 3)), np.zeros((2, 1)))


@given(PAIRS)
def test_laws(pair):
    a, r = pair
    got, back = distance(a, r), distance(r, a)
    assert -1 <= got.cosine <= 1 and got.cosine == pytest.approx(back.cosine, abs=1e-9)
    assert got.euclidean == back.euclidean
    assert distance(r, r) == EQUAL
    assert got.sqnr_db == pytest.approx(-20 * np.log10(got.relative) if got.relative else inf)
    assert (got == EQUAL) == np.array_equal(a, r)


@given(PAIRS, st.integers(-50, 50), st.randoms())
def test_scale_and_order_do_not_matter(pair, exponent, random):
    a, r = (array.ravel() for array in pair)
    order = random.sample(range(a.size), a.size)
    scaled = distance(a[order] * 2.0**exponent, r[order] * 2.0**exponent)
    got = distance(a, r)
    assert close(scaled, Distance(got.cosine, got.sqnr_db, got.euclidean * 2.0**exponent, got.relative))


@given(PAIRS)
def test_several_arrays_are_one_vector_and_items_are_separate(pair):
    a, r = pair
    assert distance_per_item(a, r) == tuple(map(distance, a, r))
    assert distance([*a], [*r]) == distance(a, r)


@given(PAIRS)
def test_squared_distances_of_parts_add_up(pair):
    a, r = pair
    parts = np.array([part.euclidean for part in distance_per_item(a, r)])
    assert np.linalg.norm(parts / max(parts.max(), 1e-300)) * parts.max() == pytest.approx(distance(a, r).euclidean)
