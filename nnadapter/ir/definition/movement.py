"""Reference implementations: moving, repeating and creating elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nnadapter.ir.operand import Array


def _split(x: Array, axis: int, split: Any) -> list[Array]:
    return np.split(x, np.cumsum(split)[:-1], axis)


def _depth_to_space(xp: Any, x: Any, block_size: int, mode: str) -> Any:
    n, c, h, w = x.shape
    depth = c // block_size**2
    blocks, order = (
        ((n, block_size, block_size, depth, h, w), (0, 3, 4, 1, 5, 2))
        if mode == "DCR"
        else ((n, depth, block_size, block_size, h, w), (0, 1, 4, 2, 5, 3))
    )
    return x.reshape(blocks).transpose(order).reshape(n, depth, h * block_size, w * block_size)


def _space_to_depth(xp: Any, x: Any, block_size: int) -> Any:
    n, c, h, w = x.shape
    blocks = x.reshape(n, c, h // block_size, block_size, w // block_size, block_size)
    return blocks.transpose(0, 3, 5, 1, 2, 4).reshape(n, c * block_size**2, h // block_size, w // block_size)


SHARED: Mapping[str, Callable[..., Any]] = {
    "CONCAT": lambda xp, *inputs, axis: xp.concatenate(inputs, axis),
    "DEPTH_TO_SPACE": _depth_to_space,
    "EXPAND": lambda xp, x, shape: xp.broadcast_to(x, shape),
    "FILL": lambda xp, value, shape: xp.broadcast_to(value, shape),
    "RESHAPE": lambda xp, x, shape: x.reshape(shape),
    "SPACE_TO_DEPTH": _space_to_depth,
    "TILE": lambda xp, x, repeats: xp.tile(x, repeats),
    "TRANSPOSE": lambda xp, x, perm, output_layout: x.transpose(perm),
}

FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "SPLIT": _split,
    "RANGE": lambda start, delta, count: start + np.arange(count).astype(start.dtype) * delta,
    "EYE_LIKE": lambda x, to, k: np.eye(x.shape[0], x.shape[1], int(k)),
}

DOCS = """\
# *
input: Any operand.
block_size: Height and width of a block, 1 or more.
# RESHAPE: The same elements in the same order, with other dimensions.
| flat(output) = flat(input), in row-major order
shape: The new dimensions; -1 and 0 have no special meaning.
-> output: The data type of `input`; dimensions `shape`; layout NCHW.
- A 0 in `shape` is a size of 0, not ONNX's copy of the input's.
- The result of an NHWC operand is NCHW: elements keep their order.
- The pass simplify merges consecutive ones.
- A per-tensor quantization passes on to the result.
example: counting(2, 3), shape=(3, 2)
# TRANSPOSE: The same elements, with the axes in another order.
| output axis i is input axis perm[i]: output.dimensions[i] = input.dimensions[perm[i]]
perm: The input axis of every result axis.
output_layout: Label for the layout of the result: `NCHW`, or `NHWC` for rank 4. It moves nothing.
-> output: The data type of `input`, with layout `output_layout`.
- perm gives the source of each axis, not its destination.
- perm is required, and has no negative axes.
- output_layout is a label: from NCHW to NHWC takes perm (0, 2, 3, 1) and output_layout NHWC.
- The passes simplify and cancel_transposes merge consecutive ones; channels_last defers them.
- A per-tensor quantization passes on to the result.
example: counting(1, 2, 3), perm=(2, 0, 1)
# EXPAND: Axes of size 1 repeated, as in numpy broadcasting.
| output[…, i, …] = input[…, 0, …] if the input has size 1, otherwise input[…, i, …]
shape: The dimensions of the result, of at least the rank of `input`.
-> output: The data type of `input`; dimensions `shape`.
- Dimensions align at the last axis.
- A 1 in `shape` is rejected for a larger input axis. ONNX's Expand allows it, since shapes broadcast in both
  directions; here `shape` is that of the result.
- A per-tensor quantization passes on to the result.
example: [[1.0], [2.0]], shape=(2, 2, 3)
# TILE: The operand, repeated along each axis.
| output[…, i, …] = input[…, i mod size, …]
repeats: Number of repetitions along each axis, 0 or more.
-> output: The data type of `input`; every dimension times its number of repeats.
- 1 2 becomes 1 2 1 2, not 1 1 2 2.
- A per-tensor quantization passes on to the result.
example: [[1.0, 2.0]], repeats=(2, 2)
# CONCAT: Operands concatenated along an axis.
| output = inputs[0], inputs[1], … along axis
inputs: One or more of the same data type and rank, equal in every dimension except along the axis.
-> output: The inputs' data type; along the axis, the sum of their sizes. Layout of the first.
- If all inputs have the same quantization, integers move and the result inherits it. Otherwise the result has its own
  quantization, and every input is rescaled to it.
- The number of inputs is not limited.
example: counting(2, 2), [[10.0], [20.0]], axis=1
# SPLIT: An operand split into pieces along an axis.
| outputs[p] = input[…, split[0] + … + split[p - 1] : split[0] + … + split[p], …]
split: Sizes of the pieces, one per output. Their sum is the size of the axis.
-> outputs: One per number in `split`. The data type and layout of `input`.
- `split` is required, for equal pieces too.
- A piece may have size 0, and there may be only one piece.
- A per-tensor quantization passes on to the result.
example: counting(1, 5), axis=1, split=(2, 3)
# DEPTH_TO_SPACE: Channels become blocks of pixels: a larger image with fewer channels.
| output[n, c, y * b + i, x * b + j] = input[n, k, y, x], b = block_size, C' = C / (b * b)
| DCR: k = (i * b + j) * C' + c    CRD: k = c * b * b + i * b + j
input: [N, C, H, W], or [N, H, W, C] for layout NHWC; C a multiple of block_size squared.
mode: Order of channels in a block. `DCR`: depth, column, row. `CRD`: column, row, depth, as in PyTorch's PixelShuffle.
-> output: [N, C / b², H * b, W * b], in the data type and layout of `input`.
- The two modes agree only if C' is 1.
- A per-tensor quantization passes on to the result.
example: counting(1, 8, 1, 1), block_size=2, mode='CRD'
# SPACE_TO_DEPTH: Blocks of pixels become channels: a smaller image with more channels.
| output[n, (i * b + j) * C + c, y, x] = input[n, c, y * b + i, x * b + j], b = block_size
input: [N, C, H, W], or [N, H, W, C] for layout NHWC; H and W multiples of block_size.
-> output: [N, C * b², H / b, W / b], in the data type and layout of `input`.
- It is the inverse of DEPTH_TO_SPACE with mode DCR, not CRD.
- A per-tensor quantization passes on to the result.
example: counting(1, 2, 2, 2), block_size=2
# FILL: A tensor filled with one number.
| output[…] = value
value: A scalar: rank 0.
shape: The dimensions of the result; empty for a scalar.
-> output: The data type of `value`; dimensions `shape`.
- [1] is not a scalar, and is rejected.
example: 7.0, shape=(2, 2)
# RANGE: Evenly spaced numbers.
| output[i] = start + i * delta for i = 0 to count - 1
start: The first number, a scalar.
delta: The distance, a scalar; it may be negative.
count: Number of elements, 0 or more.
-> output: [count]. The data type of `start`.
- There is no limit: the converter computes the count from ONNX's limit.
- Multiply instead of accumulating: rounding errors of sums grow.
example: 10, -3, count=4
# EYE_LIKE: Ones on a diagonal, zeros elsewhere, with the dimensions of another matrix.
| output[i, j] = 1 if j - i = k, else 0
input: A matrix; only its dimensions matter.
k: Diagonal: 0 the main one, 1 the one above it, -1 the one below.
-> output: The data type `to`; dimensions of `input`.
- The matrix need not be square.
- `to` is required; it does not default to the input's data type.
example: counting(2, 3), to='int32', k=1
"""
