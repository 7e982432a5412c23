"""Pools over images [N, H, W, C] and over any number of spatial axes of [N, C, …], axis by axis, one pass per tap."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from nnadapter.drivers.fake_npu.kernels.kernel import NumpyKernel, check_indices
from nnadapter.drivers.fake_npu.kernels.windows import Window
from nnadapter.ir.operand import Array

_IMAGE, _AXES = 1, 2
"""First spatial axis of images [N, H, W, C] and of [N, C, …]."""


def _combined(x: Array, window: Window, first: int, result: Sequence[int], combine: Callable[..., object]) -> Array:
    """Combine the elements of each window of a padded array."""
    for axis in range(window.rank):
        leading = (slice(None),) * (first + axis)
        parts = [x[(*leading, window.along(axis, tap, result[axis]))] for tap in range(window.kernel_shape[axis])]
        x = parts[0].copy()
        for part in parts[1:]:
            combine(x, part, out=x)
    return x


def _lowest(dtype: np.dtype[Any]) -> float:
    return -np.inf if dtype.kind == "f" else int(np.iinfo(dtype).min)


def max_pool(out: Array, x: Array, *, first: int, **geometry: Any) -> None:
    """Return the largest element of each window; one that is not a number wins."""
    window, result = Window(**geometry), out.shape[first : first + x.ndim - 2]
    padded = window.pad(x, first, result, _lowest(x.dtype))
    np.copyto(out, _combined(padded, window, first, result, np.maximum))


def average_pool(out: Array, x: Array, *, first: int, count_include_pad: bool, **geometry: Any) -> None:
    """Return the sum of each window over the number of elements that count."""
    window, spatial = Window(**geometry), slice(first, first + x.ndim - 2)
    share = window.shares(x.shape[spatial], out.shape[spatial], include_pad=bool(count_include_pad))
    total = _combined(window.pad(x, first, out.shape[spatial]), window, first, out.shape[spatial], np.add)
    np.multiply(total, share[..., None] if first == _IMAGE else share, out)


def p_norm_pool(out: Array, x: Array, *, p: int, **geometry: Any) -> None:
    """Return the p-th root of the sum of absolute values to the power of p of each window."""
    window, result = Window(**geometry), out.shape[_AXES:]
    powers = np.abs(x) if p == 1 else x * x if p == 2 else np.abs(x) ** np.float32(p)
    total = _combined(window.pad(powers, _AXES, result), window, _AXES, result, np.add)
    np.copyto(out, total if p == 1 else np.sqrt(total) if p == 2 else total ** np.float32(1 / p))


def max_pool_with_indices(out: Array, indices: Array, x: Array, *, storage_order: str, **geometry: Any) -> None:
    """Return the largest element of each window and its number; the first of equals, and never padding."""
    window, result, image = Window(**geometry), out.shape[2:], x.shape[2:]
    padded = window.pad(x, _AXES, result, _lowest(x.dtype))
    order = np.arange(prod(image)).reshape(image, order="C" if storage_order == "row_major" else "F")
    numbers = window.pad(order[None, None], _AXES, result, -1)[0, 0]
    out[...], indices[...] = _lowest(x.dtype), 0
    seen = np.zeros(result, np.bool_)
    for values, places in _taps(window, padded, numbers, result):
        inside = places >= 0
        # A window's first element inside the image replaces padding, whatever it is.
        larger = inside & (~seen | (values > out))
        np.copyto(out, values, where=larger)
        np.copyto(indices, np.broadcast_to(places, out.shape), where=larger)
        seen |= inside
    planes = np.arange(prod(x.shape[:2])) * prod(image)
    np.add(indices, planes.reshape(*x.shape[:2], *(1,) * window.rank), indices)


def _taps(window: Window, padded: Array, numbers: Array, result: Sequence[int]) -> Iterator[tuple[Array, Array]]:
    """Yield for every tap the elements that it reads and their numbers."""
    for tap in window.taps():
        where = tuple(window.along(axis, step, result[axis]) for axis, step in enumerate(tap))
        yield padded[(slice(None), slice(None), *where)], numbers[where]


def max_unpool(out: Array, x: Array, indices: Array) -> None:
    """Write elements at the places that indices name, and zeros elsewhere."""
    check_indices(indices, out.size)
    out[...] = 0
    out.reshape(-1)[indices.reshape(-1)] = x.reshape(-1)


KERNELS: Mapping[str, NumpyKernel] = {
    "average_pool": NumpyKernel(partial(average_pool, first=_IMAGE)),
    "average_pool_axes": NumpyKernel(partial(average_pool, first=_AXES)),
    "max_pool": NumpyKernel(partial(max_pool, first=_IMAGE)),
    "max_pool_axes": NumpyKernel(partial(max_pool, first=_AXES)),
    "max_pool_with_indices": NumpyKernel(max_pool_with_indices),
    "max_unpool": NumpyKernel(max_unpool),
    "p_norm_pool": NumpyKernel(p_norm_pool),
}
"""Rows of the kernel table."""
