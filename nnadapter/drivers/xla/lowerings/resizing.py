"""What gives pictures another size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from nnadapter.drivers.geometry import linear_places, nearest_places, resized_axes
from nnadapter.drivers.tables.lowering import Computes, lowers
from nnadapter.drivers.xla.lowerings.closing import (
    ALL_FLOATS,
    ALL_NUMBERS,
    HELD,
    LAYOUTS,
    Function,
    channels_second,
    computes,
    moves,
)
from nnadapter.ir.named_operation import NamedOperation
from nnadapter.ir.operand import Array


def _taken(x: Any, places: Array, axis: int) -> Any:
    """Elements of an axis; what is repeated evenly is a broadcast, which compiles to far less than a gather."""
    size = x.shape[axis]
    factor = len(places) // size if size else 0
    if factor and np.array_equal(places, np.repeat(np.arange(size), factor)):
        return jnp.repeat(x, factor, axis, total_repeat_length=len(places)) if factor > 1 else x
    return jnp.take(x, places, axis, mode="clip")


@lowers("RESIZE_NEAREST", types=ALL_NUMBERS, quantized=True, layouts=LAYOUTS)
def lower_nearest(operation: NamedOperation) -> Computes:
    """The nearest element of each axis."""
    tables = [(axis, nearest_places(operation, axis)) for axis in resized_axes(operation)]

    def compute(x: Any) -> Any:
        for axis, places in tables:
            x = _taken(x, places, axis)
        return x

    return compute


@lowers("RESIZE_LINEAR", types=ALL_FLOATS, layouts=LAYOUTS)
def lower_linear(operation: NamedOperation) -> Computes:
    """A mix of two elements of each axis."""
    tables = [(axis, *linear_places(operation, axis)) for axis in resized_axes(operation)]

    def function(x: Any, **attributes: Any) -> Any:
        for axis, before, behind, share in tables:
            weight = share.astype(x.dtype).reshape(-1, *[1] * (x.ndim - 1 - axis))
            x = _taken(x, before, axis) * (1 - weight) + _taken(x, behind, axis) * weight
        return x

    return computes(operation, function)


def _depth_to_space(x: Any, block_size: int, mode: str) -> Any:
    n, c, h, w = x.shape
    depth = c // block_size**2
    blocks, order = (
        ((n, block_size, block_size, depth, h, w), (0, 3, 4, 1, 5, 2))
        if mode == "DCR"
        else ((n, depth, block_size, block_size, h, w), (0, 1, 4, 2, 5, 3))
    )
    return x.reshape(blocks).transpose(order).reshape(n, depth, h * block_size, w * block_size)


def _space_to_depth(x: Any, block_size: int) -> Any:
    n, c, h, w = x.shape
    blocks = x.reshape(n, c, h // block_size, block_size, w // block_size, block_size)
    return blocks.transpose(0, 3, 5, 1, 2, 4).reshape(n, c * block_size**2, h // block_size, w // block_size)


_BLOCKS: Mapping[str, Function] = {"DEPTH_TO_SPACE": _depth_to_space, "SPACE_TO_DEPTH": _space_to_depth}


@lowers(*_BLOCKS, types=HELD, quantized=True, layouts=LAYOUTS)
def lower_blocks(operation: NamedOperation) -> Computes:
    """Channels as blocks of pixels, or the other way round."""
    return moves(operation, channels_second(operation, _BLOCKS[operation.type]))
