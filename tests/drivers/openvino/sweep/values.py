from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

_SPECIAL = (0.0, -0.0, np.inf, -np.inf, 1e30, -1e30, 1e-30, 0.5, -0.5, 1.5, 2.5, -2.5, 65504.0)
_RELATIVE = {"float32": 1e-4, "float16": 4e-3}
_ABSOLUTE = {"float32": 1e-5, "float16": 2e-3}


def array_of(random: Random, shape: Sequence[int], dtype: np.dtype, kinds: Sequence[str]) -> np.ndarray:
    """Draw an array of a random kind; `steps` are multiples of a half, many of them equal."""
    generator = np.random.default_rng(random.randrange(1 << 30))
    if dtype == np.bool_:
        return generator.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        low, high = random.choice(((np.iinfo(dtype).min, np.iinfo(dtype).max), (0, 3)))
        return generator.integers(low, high, shape, dtype=dtype, endpoint=True)
    kind = random.choice(kinds)
    if kind == "normal":
        return np.asarray(generator.standard_normal(shape) * 2).astype(dtype)
    if kind == "positive":
        return np.asarray(generator.random(shape) + 0.1).astype(dtype)
    if kind == "steps":
        return np.asarray(generator.integers(-6, 6, shape) / 2).astype(dtype)
    with np.errstate(over="ignore"):
        return np.asarray(generator.choice(_SPECIAL, shape)).astype(dtype)


def difference(mine: np.ndarray, right: np.ndarray, steps: int = 0) -> str:
    """Describe a difference beyond rounding, or return "". NaN as the expected value allows any number.

    Integers may be off by `steps`.
    """
    if mine.dtype != right.dtype or mine.shape != right.shape:
        return f"{mine.dtype}{list(mine.shape)} instead of {right.dtype}{list(right.shape)}"
    if right.dtype.kind != "f":
        wrong = np.abs(mine.astype(np.int64) - right.astype(np.int64)) > steps
    else:
        ours, theirs = mine.astype(np.float64), right.astype(np.float64)
        finite = np.isfinite(theirs)
        scale = max(1.0, float(np.median(np.abs(theirs[finite])))) if finite.any() else 1.0
        bound = _RELATIVE[right.dtype.name] * np.abs(theirs) + _ABSOLUTE[right.dtype.name] * scale
        with np.errstate(invalid="ignore"):
            wrong = np.where(finite, ~(np.abs(ours - theirs) <= bound), (ours != theirs) & ~np.isnan(theirs))
    if not wrong.any():
        return ""
    first = tuple(map(int, np.argwhere(wrong)[0])) if wrong.ndim else ()
    return f"{int(wrong.sum())} of {wrong.size} differ, at {list(first)}: {mine[first]} instead of {right[first]}"
