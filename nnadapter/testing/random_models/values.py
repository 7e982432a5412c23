"""Random contents: small numbers, many of them equal or exact, so that ties and signs of zero are met."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from types import MappingProxyType

import numpy as np

from nnadapter.ir.operand import Array, DataType

_SEEDS = 1000

_REALS: Mapping[str, Callable[[np.random.Generator, tuple[int, ...]], Array]] = MappingProxyType(
    {
        "normal": lambda generator, size: generator.standard_normal(size),
        "quarters": lambda generator, size: generator.integers(-8, 9, size) / 4,
        "positive": lambda generator, size: generator.uniform(0.25, 2, size),
        "unit": lambda generator, size: generator.uniform(-1, 1, size),
    }
)
_INTEGERS: Mapping[str, tuple[int, int]] = MappingProxyType({"small": (-5, 6), "positive": (1, 5), "indices": (0, 2)})


def contents(random: Random, dtype: DataType, dimensions: tuple[int, ...]) -> Array:
    """An array of one of a few distributions."""
    generator = np.random.default_rng(random.randrange(_SEEDS))
    if dtype is DataType.BOOL:
        return np.asarray(generator.integers(0, 2, dimensions), np.bool_)
    if dtype.is_floating:
        return np.asarray(_REALS[random.choice(list(_REALS))](generator, dimensions)).astype(dtype.value)
    low, high = _INTEGERS[random.choice(list(_INTEGERS))]
    return integers(generator, dtype, dimensions, low, high)


def integers(
    generator: np.random.Generator, dtype: DataType, dimensions: tuple[int, ...], low: int, high: int
) -> Array:
    """Integers in [low, high), or [0, high) where the data type has no negative ones."""
    least = 0 if dtype.value.startswith("uint") else low
    return np.asarray(generator.integers(least, max(high, least + 1), dimensions)).astype(dtype.value)


def indices(random: Random, dtype: DataType, dimensions: tuple[int, ...], size: int) -> Array:
    """Indices into an axis of `size` elements; once in a while counted from the end."""
    generator = np.random.default_rng(random.randrange(_SEEDS))
    low = -size if random.random() < 0.3 else 0
    return integers(generator, dtype, dimensions, low, size)
