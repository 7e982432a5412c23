"""Operations that move, repeat or create elements; they have no FLOPs, except RANGE."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import DataType, Layout, OperandType
from nnadapter.ir.operations.row import Row, broadcast, check_at_least, check_axis, check_length, family, like
from nnadapter.ir.operations.windows import image_like, image_size

row = family(cost="movement", quantization="moves")


def _reshape(first: OperandType, shape: tuple[int, ...]) -> OperandType:
    check_at_least(0, shape=shape)
    if prod(shape) != first.size:
        raise InvalidModelError(
            f"shape {list(shape)} holds {prod(shape)} elements, expected {first.size} as in {list(first.dimensions)}"
        )
    return OperandType(first.dtype, shape)


def _transpose(first: OperandType, perm: Sequence[int], output_layout: str) -> OperandType:
    if sorted(perm) != list(range(first.rank)):
        raise InvalidModelError(f"perm is {list(perm)}, expected a permutation of the axes 0 to {first.rank - 1}")
    layout = Layout(output_layout)
    if layout is Layout.NHWC and first.rank != 4:
        raise InvalidModelError(f"output_layout is 'NHWC' for rank {first.rank}, expected rank 4")
    return OperandType(first.dtype, tuple(first.dimensions[axis] for axis in perm), layout)


def _expand(first: OperandType, shape: tuple[int, ...]) -> OperandType:
    check_at_least(0, shape=shape)
    if broadcast((shape, first.dimensions)) != shape:
        raise InvalidModelError(f"shape is {list(shape)}, expected a shape that {list(first.dimensions)} broadcasts to")
    return like(first, shape) if len(shape) == first.rank else OperandType(first.dtype, shape)


def _tile(first: OperandType, repeats: Sequence[int]) -> OperandType:
    check_length(first.rank, repeats=repeats)
    check_at_least(0, repeats=repeats)
    return like(first, tuple(size * times for size, times in zip(first.dimensions, repeats, strict=True)))


def _concat(first: OperandType, *others: OperandType, axis: int) -> OperandType:
    check_axis(axis, first.rank)
    leading, trailing = first.dimensions[:axis], first.dimensions[axis + 1 :]
    total = first.dimensions[axis]
    for position, type_ in enumerate(others, 1):
        dimensions = type_.dimensions
        if len(dimensions) != first.rank or dimensions[:axis] != leading or dimensions[axis + 1 :] != trailing:
            raise InvalidModelError(
                f"input {position} has dimensions {list(dimensions)}, "
                f"expected those of input 0, {list(first.dimensions)}, on every axis but {axis}"
            )
        total += dimensions[axis]
    return like(first, (*leading, total, *trailing))


def _split(first: OperandType, axis: int, split: Sequence[int]) -> tuple[OperandType, ...]:
    check_axis(axis, first.rank)
    check_at_least(0, split=split)
    if not split or sum(split) != first.dimensions[axis]:
        raise InvalidModelError(
            f"split is {list(split)} with the sum {sum(split)}, "
            f"expected {first.dimensions[axis]}, the size of axis {axis}"
        )
    leading, trailing = first.dimensions[:axis], first.dimensions[axis + 1 :]
    return tuple(like(first, (*leading, size, *trailing)) for size in split)


def _pixels_up(first: OperandType, block_size: int, mode: str) -> OperandType:
    _, channels, height, width = image_size(first)
    block = _block(block_size)
    if channels % (block * block):
        raise InvalidModelError(f"input has {channels} channels, expected a multiple of block_size² = {block * block}")
    return image_like(first, channels // (block * block), height * block, width * block)


def _pixels_down(first: OperandType, block_size: int) -> OperandType:
    _, channels, height, width = image_size(first)
    block = _block(block_size)
    if height % block or width % block:
        raise InvalidModelError(f"height and width are {height} and {width}, expected multiples of block_size {block}")
    return image_like(first, channels * block * block, height // block, width // block)


def _block(block: int) -> int:
    if block < 1:
        raise InvalidModelError(f"block_size is {block}, expected at least 1")
    return block


def _fill(value: OperandType, shape: tuple[int, ...]) -> OperandType:
    check_at_least(0, shape=shape)
    return OperandType(value.dtype, shape)


def _range(start: OperandType, delta: OperandType, count: int) -> OperandType:
    if delta.rank != 0:
        raise InvalidModelError(f"delta has dimensions {list(delta.dimensions)}, expected a scalar")
    if count < 0:
        raise InvalidModelError(f"count is {count}, expected 0 or more")
    return OperandType(start.dtype, (count,))


ROWS: tuple[Row, ...] = (
    row(
        "RESHAPE(input; shape: ints)",
        _reshape,
        0,
        "NNAPI RESHAPE; ONNX Reshape-21 with the shape resolved",
        cost="view",
    ),
    row(
        "TRANSPOSE(input; perm: ints, output_layout: string(NCHW|NHWC) = NCHW)",
        _transpose,
        0,
        "NNAPI TRANSPOSE; ONNX Transpose-21; output_layout labels the result",
    ),
    row("EXPAND(input; shape: ints)", _expand, 0, "NNADAPTER_EXPAND; ONNX Expand-13, with the resulting shape"),
    row("TILE(input; repeats: ints)", _tile, 0, "NNAPI TILE; ONNX Tile-13"),
    row(
        "CONCAT(*inputs[1..] as inputs; axis: int)",
        _concat,
        0,
        "NNAPI CONCATENATION; NNADAPTER_CONCAT; ONNX Concat-13",
        quantization="moves real",
    ),
    row(
        "SPLIT(input[1..]; axis: int, split: ints -> *outputs)",
        _split,
        0,
        "NNAPI SPLIT with sizes; ONNX Split-18",
    ),
    row(
        "DEPTH_TO_SPACE(input[4]; block_size: int, mode: string(DCR|CRD) = DCR)",
        _pixels_up,
        0,
        "NNAPI DEPTH_TO_SPACE; ONNX DepthToSpace-13",
    ),
    row(
        "SPACE_TO_DEPTH(input[4]; block_size: int)",
        _pixels_down,
        0,
        "NNAPI SPACE_TO_DEPTH; ONNX SpaceToDepth-13",
    ),
    row(
        "FILL(value[0]; shape: ints)",
        _fill,
        0,
        "NNAPI FILL; NNADAPTER_FILL; ONNX ConstantOfShape-25",
        quantization="",
    ),
    row(
        "RANGE(start[0]: number, delta: number as start; count: int)",
        _range,
        2,
        "NNADAPTER_RANGE; ONNX Range-27, with the number of elements in the place of the limit: start + i * delta",
        quantization="",
    ),
    row(
        "EYE_LIKE(input[2]; to: dtype, k: int = 0)",
        lambda first, to, k: OperandType(DataType(to), first.dimensions),
        0,
        "ONNX EyeLike-22: of the input, the dimensions alone matter",
        quantization="",
    ),
)
