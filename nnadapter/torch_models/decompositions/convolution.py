"""Gradients of convolutions as convolutions, over any number of spatial axes, plain and transposed.

A convolution relates an image x, a result y and a filter w by y[t] = sum over k of w[k] x[stride t + dilation k - pad].
So for a gradient g of y:

- the gradient of x is a transposed convolution of g with the same filter;
- the gradient of w is dw[k] = sum over t of g[t] x[dilation k + stride t - pad]: a convolution of x with g as the
  filter, in which stride and dilation have changed places. Batch and channels change places as well, because it is the
  batch that is summed over.

A transposed convolution is the same with x and y exchanged.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch._prims_common import suggest_memory_format
from torch.ops import aten


def convolution_backward(
    grad_output: Tensor,
    image: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of image [N, C, …], weight and bias [O]; None for those that `output_mask` does not ask for.

    Source: aten::convolution_backward.
    """
    rank = image.dim() - 2
    moves = tuple(tuple(sizes) * (rank if len(sizes) == 1 else 1) for sizes in (stride, padding, dilation))
    of_input = of_weight = None
    if output_mask[0]:
        gradient = _transposed_input_gradient if transposed else _input_gradient
        of_input = gradient(grad_output, image, weight, moves, groups)
    if output_mask[1]:
        image, result = (grad_output, image) if transposed else (image, grad_output)
        of_weight = _weight_gradient(image, result, weight, moves, groups)
    of_bias = aten.sum.dim_IntList(grad_output, [0, *range(2, rank + 2)]) if output_mask[2] else None
    return of_input, of_weight, of_bias


Moves = tuple[tuple[int, ...], ...]
"""Stride, padding and dilation, a number for each spatial axis."""


def _input_gradient(gradient: Tensor, image: Tensor, weight: Tensor, moves: Moves, groups: int) -> Tensor:
    """What rows and columns no window reached, at the end of the image, is the output padding."""
    reached = [
        (size - 1) * stride - 2 * padding + dilation * (kernel - 1) + 1
        for size, kernel, stride, padding, dilation in zip(gradient.shape[2:], weight.shape[2:], *moves, strict=True)
    ]
    output_padding = [size - covered for size, covered in zip(image.shape[2:], reached, strict=True)]
    return _convolution(gradient, weight, moves, groups, output_padding=output_padding)


def _transposed_input_gradient(gradient: Tensor, image: Tensor, weight: Tensor, moves: Moves, groups: int) -> Tensor:
    return _cropped(_convolution(gradient, weight, moves, groups), image.shape[2:])


def _weight_gradient(image: Tensor, result: Tensor, weight: Tensor, moves: Moves, groups: int) -> Tensor:
    """The gradient of weight [O, C / groups, …], with the image [N, C, …] and the result [N, O, …]."""
    stride, padding, dilation = moves
    filters = _batch_and_channels_exchanged(result, 1)
    sums = _convolution(_batch_and_channels_exchanged(image, groups), filters, (dilation, padding, stride), groups)
    gradient: Tensor = aten.transpose.int(_cropped(sums, weight.shape[2:]), 0, 1)
    return gradient.contiguous(memory_format=suggest_memory_format(weight))


def _batch_and_channels_exchanged(image: Tensor, groups: int) -> Tensor:
    """[N, groups * C, …] -> [C, groups * N, …]."""
    if groups == 1:
        return aten.transpose.int(image, 0, 1)
    batch, channels, *sizes = image.shape
    grouped = aten.reshape.default(image, [batch, groups, channels // groups, *sizes])
    exchanged = aten.permute.default(grouped, [2, 1, 0, *range(3, grouped.dim())])
    return aten.reshape.default(exchanged, [channels // groups, groups * batch, *sizes])


def _cropped(image: Tensor, sizes: Sequence[int]) -> Tensor:
    """The first `sizes` elements of the spatial axes."""
    for axis, size in enumerate(sizes, 2):
        if image.shape[axis] != size:
            image = aten.slice.Tensor(image, axis, 0, size)
    return image


def _convolution(
    image: Tensor, weight: Tensor, moves: Moves, groups: int, output_padding: Sequence[int] | None = None
) -> Tensor:
    """A convolution without bias; with output padding a transposed one."""
    stride, padding, dilation = moves
    transposed, extra = output_padding is not None, output_padding or [0] * len(stride)
    result: Tensor = aten.convolution.default(image, weight, None, stride, padding, dilation, transposed, extra, groups)
    return result
