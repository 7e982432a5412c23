"""Converters of resizing, sampling grids, regions and deformable convolutions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import floor, inf
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from nnadapter.converters.context import ConversionContext, invalid, normalize_axes
from nnadapter.converters.convolution import kernel_of, read_windows
from nnadapter.converters.registry import NodeWriter, OnnxNode, Reason, Refusal, converter, exporter
from nnadapter.ir import Array, AttributeValue, DataType
from nnadapter.ir.symbolic_numbers import apply_function, quotient_of_sizes, scaled_size

_Number = TypeVar("_Number", int, float)


_COORDINATES = ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel", "half_pixel_symmetric")


_NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


@converter("Upsample", 7, 9)
@converter("Resize", 10)
def convert_resize_by_scales(context: ConversionContext, node: OnnxNode) -> None:
    """Convert Upsample and Resize (10), with constant scales, to RESIZE_NEAREST or RESIZE_LINEAR."""
    scales = node.numbers("scales")
    _resize_by_old_rule(context, node, _numbers(context.constant(node.input(1))) if scales is None else scales)


def _resize_by_old_rule(context: ConversionContext, node: OnnxNode, scales: tuple[float, ...]) -> None:
    """Resize by the rule before version 11: nearest rounds down on growing axes, up on shrinking ones.

    The rounding matches ONNX's test data and ONNX Runtime; ONNX's text does not define it. If some axes grow and others
    shrink, two operations are needed.
    """
    dimensions = context.dimensions(node.input(0))
    _check_scales(node, scales, len(dimensions))
    sizes = _sizes(dimensions, scales)
    scales = _scales_of(dimensions, sizes, scales)
    if node.text("mode", "nearest") != "nearest":
        _add_resize(context, node, sizes, scales, {"coordinate_transformation_mode": "asymmetric"})
        return
    growing = tuple(max(scale, 1.0) for scale in scales)
    shrinking = tuple(min(scale, 1.0) for scale in scales)
    steps = [(part, mode) for part, mode in ((growing, "floor"), (shrinking, "ceil")) if set(part) != {1.0}]
    operand = context.operand(node.input(0))
    for position, (part, mode) in enumerate(steps or [(growing, "floor")], 1):
        attributes: dict[str, AttributeValue] = {
            "shape": _sizes(context.type_of(operand).dimensions, part),
            "scales": part,
            "coordinate_transformation_mode": "asymmetric",
            "nearest_mode": mode,
        }
        last = position >= len(steps)
        operand = context.apply("RESIZE_NEAREST", operand, outputs=node.outputs if last else (), **attributes)


@converter("Resize", 11, 13, 18, 19)
def convert_resize(context: ConversionContext, node: OnnxNode) -> None:
    """Convert Resize, with constant scales or sizes, to RESIZE_NEAREST or RESIZE_LINEAR.

    Refused: cubic interpolation, regions of interest, antialiasing when shrinking.
    """
    dimensions = context.dimensions(node.input(0))
    shape, scales = _resolve(context, node, dimensions)
    scales = _scales_of(dimensions, shape, scales)
    mode = node.text("coordinate_transformation_mode", "half_pixel")
    _check_choice(node, "coordinate_transformation_mode", mode, _COORDINATES)
    if node.integer("antialias", 0) and node.text("mode", "nearest") != "nearest" and min(scales, default=1.0) < 1:
        raise Refusal(Reason.UNSUPPORTED_ATTRIBUTE, "attribute 'antialias' of Resize is 1; expected 0 when shrinking")
    _add_resize(context, node, shape, scales, {"coordinate_transformation_mode": mode})


def resized(context: ConversionContext, node: OnnxNode) -> tuple[int, ...]:
    """Return the result shape of any Resize (11 or later), or raise Refusal."""
    return _resolve(context, node, context.dimensions(node.input(0)))[0]


def _add_resize(
    context: ConversionContext,
    node: OnnxNode,
    shape: tuple[int, ...],
    scales: tuple[float, ...],
    extra_attributes: Mapping[str, AttributeValue],
) -> None:
    mode = node.text("mode", "nearest")
    _check_choice(node, "mode", mode, ("nearest", "linear"))
    attributes: dict[str, AttributeValue] = {**extra_attributes, "shape": shape, "scales": scales}
    if mode == "nearest":
        attributes["nearest_mode"] = node.text("nearest_mode", "round_prefer_floor")
        _check_choice(node, "nearest_mode", str(attributes["nearest_mode"]), _NEAREST)
    type_ = "RESIZE_NEAREST" if mode == "nearest" else "RESIZE_LINEAR"
    context.add_for(node, type_, attributes)


def _resolve(
    context: ConversionContext, node: OnnxNode, dimensions: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    named = node.integers("axes")
    axes = normalize_axes(node, range(len(dimensions)) if named is None else named, len(dimensions))
    constant_scales = context.optional_constant(node, 2)
    if constant_scales is not None and constant_scales.size:
        _check_scales(node, _numbers(constant_scales), len(axes))
        scales = _spread(axes, _numbers(constant_scales), [1.0] * len(dimensions))
        return _sizes(dimensions, scales), scales
    sizes = context.constant_integers(node, 3)
    if not sizes:
        raise invalid("Resize has neither scales nor sizes; expected one of them")
    _check_lengths(node, "sizes", sizes, len(axes))
    return _resolve_sizes(node, dimensions, axes, sizes)


def _resolve_sizes(
    node: OnnxNode, dimensions: tuple[int, ...], axes: tuple[int, ...], sizes: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return the sizes and scales of all axes by `keep_aspect_ratio_policy`. Source: ONNX Resize-18."""
    policy = node.text("keep_aspect_ratio_policy", "stretch")
    ratios = tuple(_ratio(size, dimensions[axis]) for axis, size in zip(axes, sizes, strict=True))
    choose = {"not_larger": min, "not_smaller": max}.get(policy)
    if choose is not None:
        scale = choose(ratios)
        # ONNX's round_int rounds half up
        sizes = tuple(floor(scale * dimensions[axis] + 0.5) for axis in axes)
        ratios = (scale,) * len(axes)
    else:
        _check_choice(node, "keep_aspect_ratio_policy", policy, ("stretch",))
    return _spread(axes, sizes, list(dimensions)), _spread(axes, ratios, [1.0] * len(dimensions))


def _scales_of(dimensions: tuple[int, ...], sizes: tuple[int, ...], scales: tuple[float, ...]) -> tuple[float, ...]:
    """Return `scales`, or ones if no size changes: ONNX Runtime then copies the input, unlike ONNX."""
    return (1.0,) * len(scales) if sizes == dimensions else scales


def _ratio(size: int, dimension: int) -> float:
    return apply_function(quotient_of_sizes, size, dimension) if dimension else 1.0


def _spread(axes: Sequence[int], values: Sequence[_Number], complete: list[_Number]) -> tuple[_Number, ...]:
    for axis, value in zip(axes, values, strict=True):
        complete[axis] = value
    return tuple(complete)


def _sizes(dimensions: Sequence[int], scales: Sequence[float]) -> tuple[int, ...]:
    """Scale sizes in float32. Source: ONNX Resize-11."""
    return tuple(apply_function(scaled_size, size, scale) for size, scale in zip(dimensions, scales, strict=True))


def _numbers(array: Array) -> tuple[float, ...]:
    return tuple(map(float, array.reshape(-1).tolist()))


def _check_lengths(node: OnnxNode, name: str, values: Sequence[object], expected: int) -> None:
    if len(values) != expected:
        raise invalid(f"{name} of {node.op_type} is {list(values)}; expected {expected} values")


def _check_scales(node: OnnxNode, scales: Sequence[float], expected: int) -> None:
    _check_lengths(node, "scales", scales, expected)
    if not all(0 < scale < inf for scale in scales):
        raise invalid(f"scales of {node.op_type} is {list(scales)}; expected positive, finite numbers")


def _check_choice(node: OnnxNode, name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise Refusal(
            Reason.UNSUPPORTED_ATTRIBUTE,
            f"attribute {name!r} of {node.op_type} is {value!r}; expected one of {', '.join(choices)}",
        )


_OLD_MODES: Mapping[str, str] = MappingProxyType({"bilinear": "linear", "bicubic": "cubic"})


@converter("GridSample", 16, 20, 22)
def convert_grid_sample(context: ConversionContext, node: OnnxNode) -> None:
    """Convert GridSample, on images or (since version 20) volumes, to GRID_SAMPLE."""
    mode = node.text("mode", "linear")
    rank = context.rank(node)
    if rank not in (4, 5):
        raise Refusal(Reason.UNSUPPORTED_RANK, f"input of GridSample has rank {rank}; expected 4 or 5")
    context.add_for(
        node,
        "GRID_SAMPLE",
        {
            "mode": _OLD_MODES.get(mode, mode) if node.since_version < 20 else mode,
            "padding_mode": node.text("padding_mode", "zeros"),
            "align_corners": bool(node.integer("align_corners", 0)),
        },
        2,
    )


@converter("AffineGrid", 20)
def convert_affine_grid(context: ConversionContext, node: OnnxNode) -> None:
    """Convert AffineGrid, with a constant size, to AFFINE_GRID.

    Refused: size 1 with aligned corners. PyTorch samples its center, ONNX Runtime its end.
    """
    size = context.required_integers(node, 1)
    batch = context.dimensions(node.input(0))[:1]
    if len(size) not in (4, 5) or size[:1] != batch:
        raise invalid(
            f"input 'size' of AffineGrid is {list(size)}; expected [{', '.join(map(str, batch))}, C, H, W] "
            "or [N, C, D, H, W]"
        )
    corners = bool(node.integer("align_corners", 0))
    if corners and any(extent == 1 for extent in size[2:]):
        raise Refusal(
            Reason.UNSUPPORTED_ATTRIBUTE,
            f"attribute 'align_corners' of AffineGrid is set for size {list(size)}; expected 2 or more along each axis",
        )
    context.add_for(node, "AFFINE_GRID", {"output_shape": size[2:], "align_corners": corners})


@converter("RoiAlign", 10, 16, 22)
def convert_roi_align(context: ConversionContext, node: OnnxNode) -> None:
    """Convert RoiAlign to ROI_ALIGN; version 10 means `output_half_pixel`."""
    mode = node.text("coordinate_transformation_mode", "half_pixel" if node.since_version > 10 else "output_half_pixel")
    if mode not in ("half_pixel", "output_half_pixel"):
        raise invalid(
            f"attribute 'coordinate_transformation_mode' of RoiAlign is {mode!r}; "
            "expected half_pixel or output_half_pixel"
        )
    context.add_for(
        node,
        "ROI_ALIGN",
        {
            "output_shape": (node.integer("output_height", 1), node.integer("output_width", 1)),
            "spatial_scale": node.number("spatial_scale", 1.0),
            "sampling_ratio": node.integer("sampling_ratio", 0),
            "mode": node.text("mode", "avg"),
            "half_pixel": mode == "half_pixel",
        },
        3,
    )


@converter("DeformConv", 19, 22)
def convert_deform_conv(context: ConversionContext, node: OnnxNode) -> None:
    """Convert DeformConv, on images, to DEFORMABLE_CONV_2D."""
    dimensions = context.dimensions(node.input(1))
    if len(dimensions) != 4:
        raise Refusal(
            Reason.UNSUPPORTED_RANK, f"filter of DeformConv has rank {len(dimensions)}; expected [O, C, kH, kW]"
        )
    windows = read_windows(node, kernel_of(context, node, 2))
    attributes = windows.attributes(windows.pads)
    attributes["group"] = node.integer("group", 1)
    attributes["offset_group"] = node.integer("offset_group", 1)
    context.add_for(node, "DEFORMABLE_CONV_2D", attributes, 3, 2)


_RATIO_TOLERANCE = 1e-6


_PRECISIONS = (np.float32, np.float64)
"""Precisions in which ONNX engines multiply sizes by scales; rounded down, the products may differ."""


@exporter("RESIZE_NEAREST")
def export_resize_nearest(write: NodeWriter) -> str:
    """Export RESIZE_NEAREST as Resize."""
    return _resize(write, mode="nearest", nearest_mode=write.operation.nearest_mode)


@exporter("RESIZE_LINEAR")
def export_resize_linear(write: NodeWriter) -> str:
    """Export RESIZE_LINEAR as Resize."""
    return _resize(write, mode="linear")


def _resize(write: NodeWriter, **attributes: object) -> str:
    """Write Resize with scales if they yield the sizes, otherwise with sizes.

    Refused: sizes that do not yield the scales.
    """
    of, dimensions = write.operation, write.static_sizes(write.type.dimensions)
    scales = np.asarray(write.static_sizes(of.scales), np.float32)
    shape = write.static_sizes(of.shape)
    products = (np.asarray(dimensions, dtype) * scales.astype(dtype) for dtype in _PRECISIONS)
    mode = of.coordinate_transformation_mode
    if all(tuple(map(int, np.floor(product))) == tuple(map(int, shape)) for product in products):
        which = (write.constant(scales), "")
    else:
        stated = {} if mode == "align_corners" else _aspect_ratio(dimensions, shape, scales)
        which = ("", write.integers(*(shape[axis] for axis in stated.get("axes", range(len(shape))))))
        attributes |= stated
    return write.node("Resize", write.inputs[0], "", *which, coordinate_transformation_mode=mode, **attributes)  # type: ignore[arg-type]


def _aspect_ratio(dimensions: Sequence[int], shape: Sequence[int], scales: Array) -> dict[str, Any]:
    ratios = np.asarray(shape, np.float32) / np.maximum(np.asarray(dimensions, np.float32), 1)
    if np.allclose(ratios, scales, rtol=_RATIO_TOLERANCE):
        return {}
    changed = [axis for axis, scale in enumerate(scales) if scale != 1 or shape[axis] != dimensions[axis]]
    for policy, of_all in (("not_larger", min), ("not_smaller", max)):
        ratio = of_all(ratios[changed])
        rounded = np.floor(np.asarray(dimensions)[changed] * ratio + 0.5)
        if np.allclose(scales[changed], ratio, rtol=_RATIO_TOLERANCE) and (rounded == np.asarray(shape)[changed]).all():
            return {"axes": tuple(changed), "keep_aspect_ratio_policy": policy}
    raise Refusal(
        Reason.UNSUPPORTED_ATTRIBUTE,
        f"a resize has scales {scales.tolist()} and sizes {list(shape)}; expected scales that follow from the sizes, "
        "because ONNX computes them from sizes",
    )


@exporter("AFFINE_GRID")
def export_affine_grid(write: NodeWriter) -> str:
    """Export AFFINE_GRID as AffineGrid."""
    size = write.integers(write.type.dimensions[0], 1, *write.operation.output_shape)
    return write.node("AffineGrid", write.inputs[0], size, align_corners=write.operation.align_corners)


@exporter("ROI_ALIGN")
def export_roi_align(write: NodeWriter) -> str:
    """Export ROI_ALIGN as RoiAlign."""
    of = write.operation
    x, regions, numbers = write.inputs
    return write.node(
        "RoiAlign",
        x,
        regions,
        write.cast(numbers, DataType.INT64),
        output_height=of.output_shape[0],
        output_width=of.output_shape[1],
        spatial_scale=of.spatial_scale,
        sampling_ratio=of.sampling_ratio,
        mode=of.mode,
        coordinate_transformation_mode="half_pixel" if of.half_pixel else "output_half_pixel",
    )
