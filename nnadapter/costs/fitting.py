"""Lines through measured times, whose coefficients are seconds and so never negative."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnadapter.costs.roofline import Numbers

_ROUNDS = 20
_LEAST_SHARE = 0.05
_TRUSTED = 0.1
"""A relative difference up to which a measurement counts in full; beyond it, it counts the less the farther off."""


def fit(rows: Sequence[Sequence[float]], seconds: Sequence[float], least: Sequence[float] | None = None) -> Numbers:
    """Return coefficients, none negative, by which `rows` give `seconds`: least squares of relative differences.

    1. Relative, because a size that takes a second must not decide what one of a microsecond takes.
    2. Where the best fit has a negative coefficient, the most negative one is left out and the rest fitted again.
    3. What is far off counts less, so that a measurement that was disturbed decides nothing.

    Args:
        rows: [measurements, quantities].
        seconds: [measurements].
        least: [measurements], what each is certain to: differences are relative to that at least.

    Source: Huber: Robust Estimation of a Location Parameter (1964), by iteratively reweighted least squares.
    """
    times = np.asarray(seconds, dtype=np.float64)
    matrix = np.asarray(rows, dtype=np.float64).reshape(len(times), -1)
    coefficients = np.zeros(matrix.shape[1])
    unit = np.maximum(times, 0.0 if least is None else np.asarray(least))
    is_positive = unit > 0
    if not times[is_positive].any():
        return coefficients
    weighed, target = matrix[is_positive] / unit[is_positive, None], times[is_positive] / unit[is_positive]
    trust = np.ones(len(target))
    for _ in range(_ROUNDS):
        coefficients = _non_negative(weighed * trust[:, None], target * trust)
        off = np.abs(weighed @ coefficients - target)
        previous_trust, trust = trust, np.sqrt(np.minimum(1.0, _TRUSTED / np.maximum(off, 1e-12)))
        if np.array_equal(trust, previous_trust):  # the next round would be this one again
            break
    return coefficients


def fit_line(
    rows: Sequence[Sequence[float]], seconds: Sequence[float], least: Sequence[float] | None = None
) -> Numbers:
    """Return a, b and c of a `Line`, none negative, by which work gives seconds; see `fit` for what counts.

    The length of two sides at right angles is each side times its share in it; with the shares of the round before,
    what is left is a sum.

    Args:
        rows: [measurements, 3], operations, FLOPs and bytes of each, the operations of one being alike.
        seconds: [measurements].
        least: see `fit`.
    """
    matrix = np.asarray(rows, dtype=np.float64).reshape(len(seconds), 3)
    shares = np.full((len(seconds), 2), np.sqrt(0.5))
    coefficients = np.zeros(3)
    for _ in range(_ROUNDS):
        rows_now = np.column_stack([matrix[:, 0], matrix[:, 1:] * shares])
        coefficients = fit(rows_now.tolist(), seconds, least)
        sides = matrix[:, 1:] * coefficients[1:]
        length = np.hypot(sides[:, 0], sides[:, 1])
        fitted_shares = np.divide(sides, length[:, None], out=np.zeros_like(sides), where=length[:, None] > 0)
        # A side that was left out gets a way back in.
        shares = np.clip((shares + fitted_shares) / 2, _LEAST_SHARE, 1.0)
    return coefficients


def line_seconds(rows: Sequence[Sequence[float]], coefficients: Numbers) -> Numbers:
    """Return what a, b and c of a `Line` say of `rows`, see `fit_line` [measurements]."""
    matrix = np.asarray(rows, dtype=np.float64).reshape(-1, 3)
    predicted: Numbers = matrix[:, 0] * coefficients[0] + np.hypot(*(matrix[:, 1:] * coefficients[1:]).T)
    return predicted


def _non_negative(matrix: Numbers, target: Numbers) -> Numbers:
    coefficients = np.zeros(matrix.shape[1])
    scale = np.abs(matrix).max(axis=0)
    active = np.flatnonzero(scale > 0)
    while len(active):
        solved = np.linalg.lstsq(matrix[:, active] / scale[active], target, rcond=None)[0]
        if solved.min() >= 0:
            coefficients[active] = solved / scale[active]
            break
        active = np.delete(active, solved.argmin())
    return coefficients


def error(fitted: Numbers, seconds: Sequence[float]) -> float:
    """The median of |fitted - measured| / measured; 0 where nothing took time."""
    times = np.asarray(seconds, dtype=np.float64)
    positive = times > 0
    if not positive.any():
        return 0.0
    return float(np.median(np.abs(fitted - times)[positive] / times[positive]))
