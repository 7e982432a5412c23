"""Weights that lie packed in few bits, in blocks with a scale and a zero point each, as reals."""

from __future__ import annotations

import numpy as np

from nnadapter.ir.deferred import ArrayForm, deferrable
from nnadapter.ir.operand import Array

_ELEMENTS = 1 << 18
"""So many are unpacked at a time: what is made on the way stays in cache."""


def _unpacked_form(
    weight: Array, scale: Array, zero_point: Array | None, *, bits: int, block_size: int, depth: int
) -> ArrayForm:
    return scale.dtype, (weight.shape[0], depth)


@deferrable(_unpacked_form)
def unpacked_weight(
    weight: Array, scale: Array, zero_point: Array | None, *, bits: int, block_size: int, depth: int
) -> Array:
    """Return the weight [N, K] of MAT_MUL_N_BITS, in the data type of its scales.

    Args:
        weight: [N, blocks, bytes], uint8.
        scale: [N, blocks].
        zero_point: [N, bytes] of uint8, or [N, blocks] of reals; None for half of what `bits` bits can say.
        bits: of an integer: 2, 4 or 8.
        block_size: integers in a block.
        depth: K, which need not fill the last block.
    """
    units, blocks = scale.shape
    points = _points(scale, zero_point, bits)
    result = np.empty((units, depth), scale.dtype)
    rows = max(1, _ELEMENTS // max(blocks * block_size, 1))
    for start in range(0, units, rows):
        part = slice(start, start + rows)
        reals = _integers(weight[part], bits).astype(scale.dtype)
        reals -= points[part, :, None]
        reals *= scale[part, :, None]
        result[part] = reals.reshape(len(reals), -1)[:, :depth]
    return result


def _points(scale: Array, zero_point: Array | None, bits: int) -> Array:
    if zero_point is None:
        return np.full(scale.shape, 1 << (bits - 1), scale.dtype)
    if zero_point.dtype == np.uint8:
        zero_point = _integers(zero_point, bits)[:, : scale.shape[1]]
    return zero_point.astype(scale.dtype)


def _integers(packed: Array, bits: int) -> Array:
    """The integers in the bytes of the last axis, lowest bits first."""
    if bits == 8:
        return packed
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return parts.reshape(*packed.shape[:-1], -1)
