"""Sampling of images between pixels: resizing, grids and regions.

Images are [N, C, H, W], volumes [N, C, D, H, W]. RESIZE_NEAREST and RESIZE_LINEAR accept any rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import OperandType
from nnadapter.ir.operations.row import (
    Row,
    check_at_least,
    check_dimensions,
    check_length,
    check_onnx_order,
    check_vector,
    family,
    like,
)

row = family(cost="movement")

_ROUNDING = 1e-3


def _resize(first: OperandType, shape: tuple[int, ...], scales: Sequence[float], **attributes: object) -> OperandType:
    check_length(first.rank, shape=shape, scales=scales)
    check_at_least(0, shape=shape)
    for axis, (size, scale, result) in enumerate(zip(first.dimensions, scales, shape, strict=True)):
        # However sizes or scales were rounded, they agree within one element.
        if not scale > 0 or abs(size * scale - result) >= 1 + _ROUNDING * max(1, result) or (size == 0 and result > 0):
            raise InvalidModelError(
                f"axis {axis} is resized from {size} to {result} elements, expected about {size} * {scale}"
            )
    return like(first, shape)


def _linear_flops(outputs: Sequence[OperandType], first: OperandType, **attributes: object) -> int:
    # two products and a sum per resized axis
    changed = zip(first.dimensions, outputs[0].dimensions, strict=True)
    return 3 * outputs[0].size * sum(size != result for size, result in changed)


def _grid_sample(first: OperandType, grid: OperandType, mode: str, **attributes: object) -> OperandType:
    check_onnx_order(first)
    if grid.rank != first.rank:
        raise InvalidModelError(f"grid has rank {grid.rank}, expected {first.rank} as input")
    check_dimensions("grid", grid, (first.dimensions[0], *grid.dimensions[1:-1], first.rank - 2))
    if mode == "cubic" and first.rank != 4:
        raise InvalidModelError(f"mode is 'cubic' for an input of rank {first.rank}, expected one of rank 4")
    return OperandType(first.dtype, (*first.dimensions[:2], *grid.dimensions[1:-1]))


def _grid_sample_flops(outputs: Sequence[OperandType], *types: OperandType, mode: str, **attributes: object) -> int:
    neighbors: int = {"nearest": 1, "linear": 2, "cubic": 4}[mode]
    return 2 * prod([neighbors] * (outputs[0].rank - 2)) * outputs[0].size


def _affine_grid(theta: OperandType, output_shape: Sequence[int], align_corners: bool) -> OperandType:
    axes = len(output_shape)
    if axes not in (2, 3):
        raise InvalidModelError(f"output_shape is {list(output_shape)}, expected two or three sizes")
    # One position cannot be at both corners.
    check_at_least(2 if align_corners else 1, output_shape=output_shape)
    check_dimensions("input", theta, (theta.dimensions[0], axes, axes + 1))
    return OperandType(theta.dtype, (theta.dimensions[0], *output_shape, axes))


def _check_regions(regions: OperandType, columns: int) -> None:
    if regions.rank != 2 or regions.dimensions[1] != columns:
        raise InvalidModelError(f"regions has dimensions {list(regions.dimensions)}, expected [count, {columns}]")


def _region_output(first: OperandType, regions: OperandType, output_shape: Sequence[int]) -> OperandType:
    check_onnx_order(first)
    check_at_least(1, output_shape=output_shape)
    return OperandType(first.dtype, (regions.dimensions[0], first.dimensions[1], *output_shape))


def _roi_align(
    first: OperandType,
    regions: OperandType,
    batch_indices: OperandType,
    output_shape: Sequence[int],
    sampling_ratio: int,
    **attributes: object,
) -> OperandType:
    _check_regions(regions, 4)
    check_vector("batch_indices", batch_indices, regions.dimensions[0])
    check_at_least(0, sampling_ratio=(sampling_ratio,))
    return _region_output(first, regions, output_shape)


def _max_roi_pool(
    first: OperandType, regions: OperandType, output_shape: Sequence[int], spatial_scale: float
) -> OperandType:
    _check_regions(regions, 5)
    return _region_output(first, regions, output_shape)


_RESIZED = (
    "shape: ints, scales: floats, coordinate_transformation_mode: "
    "string(half_pixel|align_corners|asymmetric|pytorch_half_pixel|half_pixel_symmetric) = half_pixel"
)
_REGIONS = "output_shape: ints[2], spatial_scale: float = 1.0"

ROWS: tuple[Row, ...] = (
    row(
        f"RESIZE_NEAREST(input[1..]: number; {_RESIZED}, "
        "nearest_mode: string(round_prefer_floor|round_prefer_ceil|floor|ceil) = round_prefer_floor)",
        _resize,
        0,
        "NNAPI RESIZE_NEAREST_NEIGHBOR; NNADAPTER_RESIZE_NEAREST; ONNX Resize-19, mode nearest",
        quantization="moves",
    ),
    row(
        f"RESIZE_LINEAR(input[1..]: float; {_RESIZED})",
        _resize,
        _linear_flops,
        "NNAPI RESIZE_BILINEAR; NNADAPTER_RESIZE_LINEAR; ONNX Resize-19, mode linear, in every axis that changes",
    ),
    row(
        "GRID_SAMPLE(input[4..5]: float, grid: float as input; mode: string(linear|nearest|cubic) = linear, "
        "padding_mode: string(zeros|border|reflection) = zeros, align_corners: bool = False)",
        _grid_sample,
        _grid_sample_flops,
        "NNADAPTER_GRID_SAMPLE; ONNX GridSample-22; grid [N, …, axes], the last axis' place first, -1 to 1",
    ),
    row(
        "AFFINE_GRID(input[3]: float; output_shape: ints, align_corners: bool = False)",
        _affine_grid,
        lambda outputs, theta, **attributes: 2 * outputs[0].size * theta.dimensions[2],
        "ONNX AffineGrid-20; input [N, axes, axes + 1]; output_shape has spatial sizes, above 1 if corners align",
    ),
    row(
        f"ROI_ALIGN(input[4]: float, regions: float as input, batch_indices: index; {_REGIONS}, "
        "sampling_ratio: int = 0, mode: string(avg|max) = avg, half_pixel: bool = True)",
        _roi_align,
        8,
        "NNAPI ROI_ALIGN; NNADAPTER_ROI_ALIGN; ONNX RoiAlign-22; regions [R, 4] as (left, top, right, bottom)",
    ),
    row(
        f"MAX_ROI_POOL(input[4]: float, regions: float as input; {_REGIONS})",
        _max_roi_pool,
        1,
        "NNAPI ROI_POOLING; ONNX MaxRoiPool-22; regions [R, 5] as (batch, left, top, right, bottom)",
    ),
)
