"""Gradients of pooling.

Of the largest element of a window, by its index: it gets the window's gradient. Of averages, by a matrix per axis.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from nnadapter.torch_models.decompositions.separable import gathered, means, spread


def max_pool_with_indices_backward(
    grad_output: Tensor,
    image: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: Tensor,
) -> Tensor:
    """Gradient of the image, over two or three axes. Source: aten::max_pool2d_with_indices_backward."""
    rank = len(kernel_size)
    steps = zip(*(_per_axis(sizes, rank) for sizes in (kernel_size, stride or kernel_size, dilation)), strict=True)
    is_disjoint = all((size - 1) * step + 1 <= move for size, move, step in steps)
    return _scattered(grad_output, image, indices, rank, is_disjoint)


def adaptive_max_pool_backward(grad_output: Tensor, image: Tensor, indices: Tensor) -> Tensor:
    """Gradient of the image, over two axes. Source: aten::adaptive_max_pool2d_backward."""
    return _scattered(grad_output, image, indices, 2, False)


def _scattered(gradient: Tensor, image: Tensor, indices: Tensor, rank: int, is_disjoint: bool) -> Tensor:
    """Gradients at the places of their indices; `is_disjoint` says that no place comes twice."""
    planes = image.flatten(-rank)
    zeros, places, values = torch.zeros_like(planes), indices.flatten(-rank), gradient.flatten(-rank)
    scattered = zeros.scatter(-1, places, values) if is_disjoint else zeros.scatter_add(-1, places, values)
    return scattered.view(image.shape)


def average_pool_backward(
    grad_output: Tensor,
    image: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Tensor:
    """Gradient of the image, over two or three axes. Source: aten::avg_pool2d_backward."""
    rank = len(kernel_size)
    moves = zip(*(_per_axis(sizes, rank) for sizes in (kernel_size, stride or kernel_size, padding)), strict=True)
    matrices = [
        _windows(result, size, move, (count_include_pad, divisor_override is not None), grad_output)
        for result, size, move in zip(grad_output.shape[-rank:], image.shape[-rank:], moves, strict=True)
    ]
    gradient = _lying_as(image, spread(grad_output, matrices))
    return gradient if divisor_override is None else gradient / divisor_override


def _windows(result: int, size: int, move: Sequence[int], counting: tuple[bool, bool], like: Tensor) -> Tensor:
    """The matrix of windows along an axis.

    Args:
        result: number of windows.
        size: elements of the axis.
        move: kernel, stride and padding.
        counting: whether padding counts; whether the sum is divided by nothing.
        like: a tensor of the data type wanted.
    """
    kernel, stride, padding = move
    starts = (torch.arange(result, device=like.device) * stride - padding).unsqueeze(1)
    ends = (starts + kernel).clamp(max=size + padding)
    include_pad, only_sums = counting
    counts = ends - starts if include_pad else ends.clamp(max=size) - starts.clamp(min=0)
    return means(size, starts, ends, torch.ones_like(counts) if only_sums else counts, like)


def adaptive_average_pool(image: Tensor, output_size: Sequence[int]) -> Tensor:
    """Means of `output_size` stretches of each of the last axes. Source: aten::_adaptive_avg_pool2d."""
    return _lying_as(image, gathered(image, _stretches(output_size, image.shape[-len(output_size) :], image)))


def adaptive_average_pool_backward(grad_output: Tensor, image: Tensor, rank: int = 2) -> Tensor:
    """Gradient of the image. Source: aten::_adaptive_avg_pool2d_backward."""
    return _lying_as(image, spread(grad_output, _stretches(grad_output.shape[-rank:], image.shape[-rank:], image)))


def adaptive_average_volume_pool_backward(grad_output: Tensor, image: Tensor) -> Tensor:
    """Gradient of the image. Source: aten::_adaptive_avg_pool3d_backward."""
    return adaptive_average_pool_backward(grad_output, image, 3)


def _lying_as(image: Tensor, values: Tensor) -> Tensor:
    """Products along axes lie as they were computed; PyTorch's own results lie as the image does."""
    return values.clone(memory_format=suggest_memory_format(image))  # also without elements


def _stretches(results: Sequence[int], sizes: Sequence[int], like: Tensor) -> list[Tensor]:
    """The matrices of axes that are cut into so many stretches, which may share an element at their ends."""
    matrices = []
    for result, size in zip(results, sizes, strict=True):
        numbers = torch.arange(result, device=like.device).unsqueeze(1)
        starts = torch.div(numbers * size, result, rounding_mode="floor")
        ends = torch.div((numbers + 1) * size + (result - 1), result, rounding_mode="floor")
        matrices.append(means(size, starts, ends, ends - starts, like))
    return matrices


def _per_axis(values: Sequence[int], rank: int) -> Sequence[int]:
    return list(values) * rank if len(values) == 1 else list(values)
