"""Lines through measured times, whose coefficients are seconds and so never negative."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnadapter.costs.roofline import Numbers

_ROUNDS = 20
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
    known = unit > 0
    if not times[known].any():
        return coefficients
    weighed, target = matrix[known] / unit[known, None], times[known] / unit[known]
    trust = np.ones(len(target))
    for _ in range(_ROUNDS):
        coefficients = _non_negative(weighed * trust[:, None], target * trust)
        off = np.abs(weighed @ coefficients - target)
        trust = np.sqrt(np.minimum(1.0, _TRUSTED / np.maximum(off, 1e-12)))
    return coefficients


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


def error(rows: Sequence[Sequence[float]], seconds: Sequence[float], coefficients: Numbers) -> float:
    """The median of |fitted - measured| / measured; 0 where nothing took time."""
    times = np.asarray(seconds, dtype=np.float64)
    positive = times > 0
    if not positive.any():
        return 0.0
    fitted = np.asarray(rows, dtype=np.float64).reshape(len(times), -1) @ coefficients
    return float(np.median(np.abs(fitted - times)[positive] / times[positive]))
