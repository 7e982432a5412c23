"""Reading an image between its pixels: which neighbors each place has, and what they weigh.

A place is a coordinate in pixels along one axis. Neighbors are found axis by axis, and what they weigh is multiplied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from itertools import product

import numpy as np

from nnadapter.ir.operand import Array

Neighbors = list[tuple[Array, Array]]
"""Along one axis: for each of some neighbors, its index and its weight at every place."""
_CUBIC_ALPHA = np.float32(-0.75)


def _nearest(place: Array) -> Neighbors:
    return [(place, np.ones_like(place))]


def _linear(place: Array) -> Neighbors:
    below = np.floor(place)
    rest = place - below
    return [(below, 1 - rest), (below + 1, rest)]


def _cubic(place: Array) -> Neighbors:
    """Source: Keys, 1981, doi 10.1109/TASSP.1981.1163711, with the parameter -0.75."""
    below = np.floor(place)
    rest = place - below
    return [
        (below - 1, _far(1 + rest)),
        (below, _near(rest)),
        (below + 1, _near(1 - rest)),
        (below + 2, _far(2 - rest)),
    ]


def _near(distance: Array) -> Array:
    """Weight of a neighbor at most one pixel away."""
    return ((_CUBIC_ALPHA + 2) * distance - (_CUBIC_ALPHA + 3)) * distance * distance + 1


def _far(distance: Array) -> Array:
    """Weight of a neighbor one to two pixels away."""
    return ((_CUBIC_ALPHA * distance - 5 * _CUBIC_ALPHA) * distance + 8 * _CUBIC_ALPHA) * distance - 4 * _CUBIC_ALPHA


NEIGHBORS: Mapping[str, Callable[[Array], Neighbors]] = {"cubic": _cubic, "linear": _linear, "nearest": _nearest}
"""By mode: places -> neighbors, whose indices are whole numbers that may lie outside; places are whole if nearest."""


def zero_outside(neighbors: Neighbors, size: int) -> Neighbors:
    """The neighbors with those outside an axis of `size` pixels weighing nothing."""
    return [
        (np.clip(index, 0, size - 1), np.where((index >= 0) & (index < size), weight, np.float32(0)))
        for index, weight in neighbors
    ]


def reflected(place: Array, low: float, high: float) -> Array:
    """Places thrown back at both borders until they lie between them."""
    span = np.float32(high - low)
    if span == 0:
        return np.full_like(place, low)
    outside = np.where(place < low, low - place, place - high).astype(np.float32)
    turns = np.floor(outside / span)
    rest = outside - turns * span
    # An even number of turns ends at the border where the place lies outside.
    from_low = (turns % 2 == 0) == (place < low)
    inside = np.where(from_low, low + rest, high - rest)
    return np.where(outside > 0, inside, place).astype(np.float32)


def weighted_sum(source: Array, axes: Sequence[tuple[int, Neighbors]], out: Array, spare: Array) -> None:
    """Add up all neighbors of every place, times what they weigh.

    Args:
        source: [C, pixels], the spatial axes of an image flattened.
        axes: for every spatial axis, its size and the neighbors at each of the places.
        out: where the sums go, [C, places].
        spare: as `out`.
    """
    for number, neighbors in enumerate(product(*(axis_neighbors for _, axis_neighbors in axes))):
        target = spare if number else out
        pixels = _flattened([size for size, _ in axes], [index for index, _ in neighbors])
        np.take(source, pixels, axis=1, out=target, mode="clip")
        np.multiply(target, reduce(np.multiply, (weight for _, weight in neighbors)), target)
        if number:
            np.add(out, spare, out)


def _flattened(sizes: Sequence[int], indices: Sequence[Array]) -> Array:
    flat = indices[0].astype(np.int64)
    for size, index in zip(sizes[1:], indices[1:], strict=True):
        flat = flat * size + index.astype(np.int64)
    return flat
