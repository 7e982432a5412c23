"""Operations that read images between their pixels: grids, regions, and convolutions whose windows are bent.

Images are [N, C, H, W], and volumes [N, C, D, H, W]; they have no other layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import FLOATING, DataType, OperandType
from nnadapter.ir.operations.row import Types, integer, integers, per_output, present, row
from nnadapter.ir.operations.shape_rules import check_at_least, check_dimensions, check_onnx_order, check_vector
from nnadapter.ir.operations.windows import window_count
from nnadapter.ir.schema import Attribute, AttributeKind, Attributes, OperationSchema, Role

_INPUT = Role("input", FLOATING)
_ALIGN_CORNERS = Attribute("align_corners", AttributeKind.BOOL, False)
_SCALE = Attribute("spatial_scale", AttributeKind.FLOAT, 1.0)
_OUTPUT_SHAPE = Attribute("output_shape", AttributeKind.INTS, length=2)


def _grid_sample(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    first, grid = present(types, 0), present(types, 1)
    check_onnx_order(first)
    if grid.rank != first.rank:
        raise InvalidModelError(f"grid has rank {grid.rank}, expected {first.rank} as input")
    check_dimensions("grid", grid, (first.dimensions[0], *grid.dimensions[1:-1], first.rank - 2))
    if attributes["mode"] == "cubic" and first.rank != 4:
        raise InvalidModelError(f"mode is 'cubic' for an input of rank {first.rank}, expected one of rank 4")
    return (OperandType(first.dtype, (*first.dimensions[:2], *grid.dimensions[1:-1])),)


def _affine_grid(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    theta, shape = present(types, 0), integers(attributes, "output_shape")
    axes = len(shape)
    if axes not in (2, 3):
        raise InvalidModelError(f"output_shape is {list(shape)}, expected two or three sizes")
    # One position cannot be at both corners.
    check_at_least("output_shape", shape, 2 if attributes["align_corners"] else 1)
    check_dimensions("input", theta, (theta.dimensions[0], axes, axes + 1))
    return (OperandType(theta.dtype, (theta.dimensions[0], *shape, axes)),)


def _region_output(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    first, regions = present(types, 0), present(types, 1)
    check_onnx_order(first)
    check_at_least("output_shape", integers(attributes, "output_shape"), 1)
    shape = (regions.dimensions[0], first.dimensions[1], *integers(attributes, "output_shape"))
    return (OperandType(first.dtype, shape),)


def _check_regions(regions: OperandType, columns: int) -> None:
    if regions.rank != 2 or regions.dimensions[1] != columns:
        raise InvalidModelError(f"regions has dimensions {list(regions.dimensions)}, expected [regions, {columns}]")


def _roi_align(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    regions = present(types, 1)
    _check_regions(regions, 4)
    check_vector("batch_indices", present(types, 2), regions.dimensions[0])
    check_at_least("sampling_ratio", (integer(attributes, "sampling_ratio"),), 0)
    return _region_output(types, attributes)


def _max_roi_pool(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    _check_regions(present(types, 1), 5)
    return _region_output(types, attributes)


def _deformable(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    first, weight, offset = (present(types, position) for position in range(3))
    check_onnx_order(first)
    bias, mask = (*types[3:], None, None)[:2]
    if weight.rank != 4 or 0 in weight.dimensions:
        raise InvalidModelError(f"filter has dimensions {list(weight.dimensions)}, expected four, none of them 0")
    batch, channels = first.dimensions[:2]
    outputs, per_group, *kernel = weight.dimensions
    _check_groups(attributes, channels, outputs, per_group)
    for name, smallest in (("strides", 1), ("dilations", 1), ("pads", 0)):
        check_at_least(name, integers(attributes, name), smallest)
    sizes = tuple(_windows(attributes, axis, first.dimensions[2 + axis], kernel[axis]) for axis in (0, 1))
    taps = integer(attributes, "offset_group") * prod(kernel)
    check_dimensions("offset", offset, (batch, 2 * taps, *sizes))
    if bias is not None:
        check_vector("bias", bias, outputs)
    if mask is not None:
        check_dimensions("mask", mask, (batch, taps, *sizes))
    return (OperandType(first.dtype, (batch, outputs, *sizes)),)


def _check_groups(attributes: Attributes, channels: int, outputs: int, per_group: int) -> None:
    group, offset_group = integer(attributes, "group"), integer(attributes, "offset_group")
    if group < 1 or outputs % group or channels != per_group * group:
        raise InvalidModelError(
            f"group is {group} for {channels} channels, {outputs} outputs and a filter of {per_group} channels, "
            "expected it to divide the outputs, and the channels to be the filter's times group"
        )
    if offset_group < 1 or channels % offset_group:
        raise InvalidModelError(f"offset_group is {offset_group}, expected a divisor of {channels} channels")


def _windows(attributes: Attributes, axis: int, size: int, kernel: int) -> int:
    pads = integers(attributes, "pads")
    stride, dilation = integers(attributes, "strides")[axis], integers(attributes, "dilations")[axis]
    return window_count(("height", "width")[axis], size + pads[axis] + pads[axis + 2], kernel, stride, dilation)


_STEPS_PER_NEIGHBOR = 2
_NEIGHBORS = {"nearest": 1, "linear": 2, "cubic": 4}


def _sampling_flops(types: Types, outputs: Sequence[OperandType], attributes: Attributes) -> int:
    """A multiply-add for every neighbor that is weighed."""
    neighbors = prod([_NEIGHBORS[str(attributes["mode"])]] * (outputs[0].rank - 2))
    return _STEPS_PER_NEIGHBOR * neighbors * outputs[0].size


def _affine_flops(types: Types, outputs: Sequence[OperandType], attributes: Attributes) -> int:
    return 2 * outputs[0].size * present(types, 0).dimensions[2]


def _deformable_flops(types: Types, outputs: Sequence[OperandType], attributes: Attributes) -> int:
    """The convolution, and four neighbors weighed for every element of every window."""
    positions = outputs[0].dimensions[0] * prod(outputs[0].dimensions[2:])
    weight = present(types, 1)
    sampled = positions * present(types, 0).dimensions[1] * prod(weight.dimensions[2:])
    bias = outputs[0].size if len(types) > 3 and types[3] is not None else 0
    return 2 * outputs[0].size * prod(weight.dimensions[1:]) + 4 * _STEPS_PER_NEIGHBOR * sampled + bias


ROWS: tuple[OperationSchema, ...] = (
    row(
        "GRID_SAMPLE",
        (_INPUT, Role("grid", FLOATING, same_dtype_as="input")),
        _grid_sample,
        _sampling_flops,
        "NNADAPTER_GRID_SAMPLE; ONNX GridSample-22; grid [N, …, axes], the last axis' place first, -1 to 1",
        attributes=(
            Attribute("mode", AttributeKind.STRING, "linear", ("linear", "nearest", "cubic")),
            Attribute("padding_mode", AttributeKind.STRING, "zeros", ("zeros", "border", "reflection")),
            _ALIGN_CORNERS,
        ),
        ranks=(4, 5),
    ),
    row(
        "AFFINE_GRID",
        (_INPUT,),
        _affine_grid,
        _affine_flops,
        "ONNX AffineGrid-20; input [N, axes, axes + 1]; output_shape has spatial sizes, above 1 if corners align",
        attributes=(Attribute("output_shape", AttributeKind.INTS), _ALIGN_CORNERS),
        ranks=(3, 3),
    ),
    row(
        "ROI_ALIGN",
        (
            _INPUT,
            Role("regions", FLOATING, same_dtype_as="input"),
            Role("batch_indices", frozenset({DataType.INT32, DataType.INT64})),
        ),
        _roi_align,
        per_output(8),
        "NNAPI ROI_ALIGN; NNADAPTER_ROI_ALIGN; ONNX RoiAlign-22; regions [R, 4] as (left, top, right, bottom)",
        attributes=(
            _OUTPUT_SHAPE,
            _SCALE,
            Attribute("sampling_ratio", AttributeKind.INT, 0),
            Attribute("mode", AttributeKind.STRING, "avg", ("avg", "max")),
            Attribute("half_pixel", AttributeKind.BOOL, True),
        ),
        ranks=(4, 4),
    ),
    row(
        "MAX_ROI_POOL",
        (_INPUT, Role("regions", FLOATING, same_dtype_as="input")),
        _max_roi_pool,
        per_output(1),
        "NNAPI ROI_POOLING; ONNX MaxRoiPool-22; regions [R, 5] as (batch, left, top, right, bottom)",
        attributes=(_OUTPUT_SHAPE, _SCALE),
        ranks=(4, 4),
    ),
    row(
        "DEFORMABLE_CONV_2D",
        (
            _INPUT,
            Role("filter", FLOATING, same_dtype_as="input"),
            Role("offset", FLOATING, same_dtype_as="input"),
            Role("bias", FLOATING, optional=True, same_dtype_as="input"),
            Role("mask", FLOATING, optional=True, same_dtype_as="input"),
        ),
        _deformable,
        _deformable_flops,
        "NNADAPTER_DEFORMABLE_CONV_2D; ONNX DeformConv-22 of rank 4; offset [N, offset_group * kH * kW * 2, H, W]",
        attributes=(
            Attribute("strides", AttributeKind.INTS, (1, 1), length=2),
            # pads = (top, left, bottom, right)
            Attribute("pads", AttributeKind.INTS, (0, 0, 0, 0), length=4),
            Attribute("dilations", AttributeKind.INTS, (1, 1), length=2),
            Attribute("group", AttributeKind.INT, 1),
            Attribute("offset_group", AttributeKind.INT, 1),
        ),
        ranks=(4, 4),
    ),
)
"""The rows of this family."""
