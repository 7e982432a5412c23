"""Reading images between their pixels: grids, regions, and convolutions whose windows are bent."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from nnadapter.converters.axes import required_integers
from nnadapter.converters.context import ConversionContext
from nnadapter.converters.registry import converter
from nnadapter.converters.windows import read_windows
from nnadapter.ir.model import ABSENT
from nnadapter.ir.schema import AttributeValue
from nnadapter.onnx.node import OnnxNode
from nnadapter.onnx.refusal import Refusal
from partition.verdict import Reason

_MODES: Mapping[str, str] = MappingProxyType({"bilinear": "linear", "bicubic": "cubic", "nearest": "nearest"})
"""How version 16 of GridSample calls what later ones do."""


@converter("GridSample", 16)
def convert_grid_sample_of_images(context: ConversionContext, node: OnnxNode) -> None:
    """GridSample of images alone. Source: ONNX GridSample-16."""
    mode = node.text("mode", "bilinear")
    _grid_sample(context, node, _MODES.get(mode, mode))


@converter("GridSample", 20, 22)
def convert_grid_sample(context: ConversionContext, node: OnnxNode) -> None:
    """GridSample of images and volumes, cubic for images alone. Source: ONNX GridSample-22."""
    _grid_sample(context, node, node.text("mode", "linear"))


def _grid_sample(context: ConversionContext, node: OnnxNode, mode: str) -> None:
    attributes: dict[str, AttributeValue] = {
        "mode": mode,
        "padding_mode": node.text("padding_mode", "zeros"),
        "align_corners": bool(node.integer("align_corners", 0)),
    }
    rank = len(context.dimensions(node.input(0)))
    if rank not in (4, 5):
        raise Refusal(Reason.UNSUPPORTED_RANK, f"input of GridSample has rank {rank}; expected 4 or 5")
    inputs = (context.operand(node.input(0)), context.operand(node.input(1)))
    context.add("GRID_SAMPLE", inputs, attributes, node.outputs)


@converter("AffineGrid", 20)
def convert_affine_grid(context: ConversionContext, node: OnnxNode) -> None:
    """AffineGrid of a constant size [N, C, …]. Source: ONNX AffineGrid-20.

    One position between aligned corners is refused: PyTorch has it in the middle, ONNX Runtime at the end.
    """
    size = required_integers(context, node, 1)
    batch = context.dimensions(node.input(0))[:1]
    if len(size) not in (4, 5) or size[:1] != batch:
        raise Refusal(
            Reason.INVALID_NODE,
            f"input 'size' of AffineGrid is {list(size)}; expected [{', '.join(map(str, batch))}, C, H, W] "
            "or that with a depth",
        )
    corners = bool(node.integer("align_corners", 0))
    if corners and any(extent == 1 for extent in size[2:]):
        raise Refusal(
            Reason.UNSUPPORTED_ATTRIBUTE,
            f"attribute 'align_corners' of AffineGrid is set for size {list(size)}; expected 2 or more along each axis",
        )
    attributes: dict[str, AttributeValue] = {"output_shape": size[2:], "align_corners": corners}
    context.add("AFFINE_GRID", (context.operand(node.input(0)),), attributes, node.outputs)


@converter("RoiAlign", 10, 16, 22)
def convert_roi_align(context: ConversionContext, node: OnnxNode) -> None:
    """RoiAlign. Source: ONNX RoiAlign-16.

    Version 10 has no `coordinate_transformation_mode`, and is what later ones call `output_half_pixel`.
    """
    mode = node.text("coordinate_transformation_mode", "half_pixel" if node.since_version > 10 else "output_half_pixel")
    if mode not in ("half_pixel", "output_half_pixel"):
        raise Refusal(
            Reason.INVALID_NODE,
            f"attribute 'coordinate_transformation_mode' of RoiAlign is {mode!r}; "
            "expected half_pixel or output_half_pixel",
        )
    attributes: dict[str, AttributeValue] = {
        "output_shape": (node.integer("output_height", 1), node.integer("output_width", 1)),
        "spatial_scale": node.number("spatial_scale", 1.0),
        "sampling_ratio": node.integer("sampling_ratio", 0),
        "mode": node.text("mode", "avg"),
        "half_pixel": mode == "half_pixel",
    }
    inputs = tuple(context.operand(node.input(position)) for position in range(3))
    context.add("ROI_ALIGN", inputs, attributes, node.outputs)


@converter("MaxRoiPool", 1, 22)
def convert_max_roi_pool(context: ConversionContext, node: OnnxNode) -> None:
    """MaxRoiPool. Source: ONNX MaxRoiPool-1."""
    attributes: dict[str, AttributeValue] = {
        "output_shape": node.integers("pooled_shape") or (),
        "spatial_scale": node.number("spatial_scale", 1.0),
    }
    inputs = (context.operand(node.input(0)), context.operand(node.input(1)))
    context.add("MAX_ROI_POOL", inputs, attributes, node.outputs)


@converter("DeformConv", 19, 22)
def convert_deform_conv(context: ConversionContext, node: OnnxNode) -> None:
    """DeformConv of images. Source: ONNX DeformConv-19."""
    dimensions = context.dimensions(node.input(1))
    if len(dimensions) != 4:
        raise Refusal(
            Reason.UNSUPPORTED_RANK, f"filter of DeformConv has rank {len(dimensions)}; expected [O, C, kH, kW]"
        )
    named = node.integers("kernel_shape")
    if named and named != dimensions[2:]:
        raise Refusal(
            Reason.INVALID_NODE,
            f"kernel_shape of DeformConv is {list(named)}; expected the filter's, {list(dimensions[2:])}",
        )
    windows = read_windows(node, dimensions[2:])
    attributes = windows.attributes(windows.pads)
    attributes["group"] = node.integer("group", 1)
    attributes["offset_group"] = node.integer("offset_group", 1)
    required = [context.operand(node.input(position)) for position in range(3)]
    optional = [context.optional_operand(node.input(position)) for position in (3, 4)]
    while optional and optional[-1] == ABSENT:
        optional.pop()
    context.add("DEFORMABLE_CONV_2D", (*required, *optional), attributes, node.outputs)
