"""Linear maps along single axes, as products with small matrices: what averaging and its gradient are.

The matrix of an axis says how much of each element goes into each result. A map over several axes is applied axis by
axis, the gradient by the transposed matrices. The matrices are made by operations of whole numbers, so that they fold
to constants where sizes are known.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def spread(gradient: Tensor, matrices: Sequence[Tensor]) -> Tensor:
    """Return the gradient [..., sizes…] of what was averaged to [..., results…].

    Args:
        gradient: [..., results…].
        matrices: for each of the last axes, [results, sizes].
    """
    return _along_axes(gradient, matrices)


def gathered(image: Tensor, matrices: Sequence[Tensor]) -> Tensor:
    """Return `image` [..., sizes…] averaged to [..., results…], by matrices [results, sizes]."""
    return _along_axes(image, [matrix.t() for matrix in matrices])


def _along_axes(values: Tensor, factors: Sequence[Tensor]) -> Tensor:
    """Each of the last axes times its factor, [size, new size]; the last one first."""
    for axis, factor in zip(range(values.dim() - 1, -1, -1), reversed(factors), strict=False):
        last = values.dim() - 1
        values = values.transpose(axis, last) if axis != last else values
        values = torch.matmul(values, factor)
        values = values.transpose(axis, last) if axis != last else values
    return values


def means(size: int, starts: Tensor, ends: Tensor, counts: Tensor, like: Tensor) -> Tensor:
    """Return the matrix [results, size] of means over stretches of an axis.

    Args:
        size: elements of the axis.
        starts: [results, 1], the first element of each stretch; it may lie outside.
        ends: [results, 1], the element behind it.
        counts: [results, 1], what each sum is divided by.
        like: a tensor of the data type wanted.
    """
    places = torch.arange(size, device=like.device)
    inside = (places >= starts) & (places < ends)
    return inside.to(like.dtype) / counts.to(like.dtype)
