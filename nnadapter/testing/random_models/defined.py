"""Values for which ONNX says what comes out, for `recipes`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from nnadapter.ir.operand import Array, DataType
from nnadapter.ir.schema import AttributeValue

Given = Sequence[Array | None]
AttributeValues = Mapping[str, AttributeValue]
SoundnessCheck = Callable[[Given, AttributeValues], bool]
_PAIR = 2


def always(input_arrays: Given, attributes: AttributeValues) -> bool:
    """Every value will do."""
    return True


def _pair(input_arrays: Given) -> tuple[Array, Array]:
    x, y = input_arrays[0], input_arrays[1]
    assert x is not None and y is not None
    return x, y


def division(input_arrays: Given, attributes: AttributeValues) -> bool:
    """Integers are not divided by 0, nor the smallest one by -1; reals by nothing near 0."""
    x, y = _pair(input_arrays)
    if x.dtype.kind == "f":
        return bool((np.abs(y) >= 0.125).all())
    overflows = x.dtype.kind == "i" and bool((x == np.iinfo(x.dtype).min).any()) and bool((y == -1).any())
    return bool((y != 0).all()) and not overflows


def power(input_arrays: Given, attributes: AttributeValues) -> bool:
    """A positive base where the exponent is no whole number; no negative exponent of an integer."""
    x, y = _pair(input_arrays)
    if y.dtype.kind == "f" and (y != np.floor(y)).any() and (x <= 0).any():
        return False
    if x.dtype.kind == "f":
        return bool((x != 0).all())
    return bool((y >= 0).all() and (y == np.floor(y)).all() and np.abs(y).max(initial=0) <= 3)


def cast(input_arrays: Given, attributes: AttributeValues) -> bool:
    """Whatever is cast to an integer is one of its numbers, rounded to zero."""
    value, target = input_arrays[0], DataType(str(attributes["to"]))
    assert value is not None
    if value.dtype == np.bool_ or target is DataType.BOOL or target.is_floating or value.dtype.kind != "f":
        return True
    limits = np.iinfo(np.dtype(target.value))
    truncated = np.trunc(value.astype(np.float64))
    return bool(((truncated >= limits.min) & (truncated <= limits.max)).all())


def in_range(input_arrays: Given, attributes: AttributeValues) -> bool:
    """Indices are those of the axis, counted from either end."""
    value, chosen = _pair(input_arrays)
    axis = attributes["axis"]
    assert isinstance(axis, int)
    size = value.shape[axis]
    return bool(((chosen >= -size) & (chosen < size)).all())


def of_the_batch(input_arrays: Given, attributes: AttributeValues) -> bool:
    """Every region is of a picture that there is: each has an index of its own, or in its first column."""
    pictures, regions = _pair(input_arrays)
    indices = input_arrays[2] if len(input_arrays) > _PAIR else regions[:, 0]
    return indices is None or bool(((indices >= 0) & (indices < pictures.shape[0])).all())


def apart_along_axis(input_arrays: Given, attributes: AttributeValues) -> bool:
    """No two updates of an axis are for one position, where ONNX does not say which of them stays."""
    value, chosen = _pair(input_arrays)
    axis = attributes["axis"]
    assert isinstance(axis, int)
    if attributes["reduction"] != "none" or not chosen.size:
        return True
    ordered = np.sort(chosen % max(value.shape[axis], 1), axis)
    return bool((np.diff(ordered, axis=axis) != 0).all())


def lengths(input_arrays: Given, attributes: AttributeValues) -> bool:
    """No sequence is longer than there are steps."""
    value, sequence_lengths = _pair(input_arrays)
    axis = attributes["time_axis"]
    assert isinstance(axis, int)
    return bool(((sequence_lengths >= 0) & (sequence_lengths <= value.shape[axis])).all())


_LEAST_SPREAD = 0.05


def spread(axes_of: Callable[[int, AttributeValues], tuple[int, ...]]) -> SoundnessCheck:
    """Returns whether numbers that are normalized together differ: else the rounding of their mean is all there is."""

    def sound(input_arrays: Given, attributes: AttributeValues) -> bool:
        value = input_arrays[0]
        assert value is not None
        axes = axes_of(value.ndim, attributes)
        if 0 in value.shape:
            return True
        wide = value.astype(np.float64)
        single = all(value.shape[axis] == 1 for axis in axes)
        return single or bool((wide.std(axes) >= _LEAST_SPREAD * np.abs(wide).max(axes)).all())

    return sound


def axes_given(rank: int, attributes: AttributeValues) -> tuple[int, ...]:
    """The axes that an attribute names."""
    axes = attributes["axes"]
    assert isinstance(axes, tuple)
    return tuple(int(axis) for axis in axes)


def axes_behind(rank: int, attributes: AttributeValues) -> tuple[int, ...]:
    """All axes from one on."""
    axis = attributes["axis"]
    assert isinstance(axis, int)
    return tuple(range(axis, rank))


def written(input_arrays: Given, attributes: AttributeValues) -> bool:
    """What is written to a cache begins within it, and ends within it where it does not go round."""
    cache, updates = _pair(input_arrays)
    axis, starts = attributes["axis"], input_arrays[2] if len(input_arrays) > 2 else None
    assert isinstance(axis, int)
    if starts is None:
        return True
    size, count = cache.shape[axis], updates.shape[axis]
    last = size - 1 if attributes["mode"] == "circular" else size - count
    return bool(((starts >= 0) & (starts <= last)).all())
