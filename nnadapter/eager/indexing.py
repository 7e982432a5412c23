"""numpy's basic indexing (numbers, slices, `...`, None) and one array of indices, as SLICE, GATHER and RESHAPE."""

from __future__ import annotations

from operator import index as as_integer
from typing import Any

import numpy as np

from nnadapter.eager import shaping
from nnadapter.eager.applying import apply
from nnadapter.eager.place import Place
from nnadapter.ir.operand import Array

_BASIC = (int, np.integer, slice)


def get_item(place: Place, array: Array, key: Any) -> Array | None:
    """Return what `array[key]` is, or None where there is no operation for such a key.

    Raises:
        IndexError: the key is out of bounds, or has too many entries.
    """
    keys = key if isinstance(key, tuple) else (key,)
    if len(keys) == 1 and isinstance(keys[0], np.ndarray) and keys[0].dtype.kind in "iu" and array.ndim:
        return shaping.take(place, array, keys[0], 0)
    if not all(_is_basic(entry) for entry in keys):
        return None
    result_shape = array[keys].shape  # a view; numpy says what is wrong with the key
    starts, ends, steps = _slices(array.shape, _complete(keys, array.ndim))
    if 0 in result_shape:
        return apply(
            place, "SLICE", [array], lambda operand: operand[keys], _attributes(array.shape, starts, ends, steps)
        )
    sliced = array
    if any(
        (start, end, step) != (0, size, 1)
        for start, end, step, size in zip(starts, ends, steps, array.shape, strict=True)
    ):
        cut = tuple(
            slice(start, end if end >= 0 else None, step) for start, end, step in zip(starts, ends, steps, strict=True)
        )
        sliced = apply(
            place, "SLICE", [array], lambda operand: operand[cut], _attributes(array.shape, starts, ends, steps)
        )
    return sliced if sliced.shape == result_shape else shaping.reshape(place, sliced, result_shape)


def _is_basic(key: object) -> bool:
    return key is None or key is Ellipsis or (isinstance(key, _BASIC) and not isinstance(key, bool))


def _complete(keys: tuple[Any, ...], rank: int) -> list[Any]:
    """One entry per axis: new axes left out, and `...` for as many whole ones as are needed."""
    axis_keys = [key for key in keys if key is not None]
    key_count = sum(key is not Ellipsis for key in axis_keys)
    if Ellipsis not in axis_keys:
        axis_keys.append(Ellipsis)
    place = next(at for at, key in enumerate(axis_keys) if key is Ellipsis)
    return [*axis_keys[:place], *[slice(None)] * (rank - key_count), *axis_keys[place + 1 :]]


def _slices(shape: tuple[int, ...], keys: list[Any]) -> tuple[list[int], list[int], list[int]]:
    spans = []
    for size, key in zip(shape, keys, strict=True):
        if isinstance(key, slice):
            spans.append(key.indices(size))
        else:
            at = as_integer(key) % size if size else 0
            spans.append((at, at + 1, 1))
    return [span[0] for span in spans], [span[1] for span in spans], [span[2] for span in spans]


def _attributes(shape: tuple[int, ...], starts: list[int], ends: list[int], steps: list[int]) -> dict[str, Any]:
    # Python's end of -1 means "before the first" here; ONNX writes that as one before the first, counted from the end.
    last = [end if end >= 0 else -size - 1 for end, size in zip(ends, shape, strict=True)]
    return {"starts": tuple(starts), "ends": tuple(last), "axes": tuple(range(len(starts))), "steps": tuple(steps)}
