"""The ways back from windows to images: MaxUnpool and Col2Im."""

from __future__ import annotations

from math import prod

from nnadapter.converters.axes import constant_integers, required_integers
from nnadapter.converters.context import ConversionContext
from nnadapter.converters.registry import converter
from nnadapter.converters.windows import read_windows, spatial_sizes
from nnadapter.ir.schema import AttributeValue
from nnadapter.onnx.node import OnnxNode
from nnadapter.onnx.refusal import Refusal
from partition.verdict import Reason


@converter("MaxUnpool", 9, 11, 22)
def convert_max_unpool(context: ConversionContext, node: OnnxNode) -> None:
    """MaxUnpool, its spatial axes but the last taken as one: indices count elements and know no axes.

    An `output_shape` other than the pool's own is refused: ONNX counts indices in the smaller image, ONNX Runtime in
    the larger one. Source: ONNX MaxUnpool-11.
    """
    sizes = spatial_sizes(context, node)
    kernel = node.integers("kernel_shape")
    if kernel is None or len(kernel) != len(sizes):
        raise Refusal(
            Reason.INVALID_NODE, f"attribute 'kernel_shape' of MaxUnpool is {kernel}; expected {len(sizes)} values"
        )
    windows, rank = read_windows(node, kernel), len(sizes)
    shape = tuple(
        (size - 1) * windows.strides[axis] + kernel[axis] - windows.pads[axis] - windows.pads[axis + rank]
        for axis, size in enumerate(sizes)
    )
    wanted = constant_integers(context, node, 2)
    if wanted is not None and wanted[2:] != shape:
        raise Refusal(
            Reason.UNSUPPORTED_ATTRIBUTE,
            f"input 'output_shape' of MaxUnpool is {list(wanted)}; expected spatial sizes {list(shape)}, those of the "
            "pool: ONNX and ONNX Runtime disagree on what indices mean in others",
        )
    batch, channels = context.dimensions(node.input(0))[:2]
    inputs = [_as_picture(context, node.input(position), sizes) for position in (0, 1)]
    attributes: dict[str, AttributeValue] = {"output_shape": (prod(shape[:-1]), shape[-1])}
    if rank == 2:
        context.add("MAX_UNPOOL_2D", inputs, attributes, node.outputs)
        return
    unpooled = context.add("MAX_UNPOOL_2D", inputs, attributes)
    context.add("RESHAPE", unpooled, {"shape": (batch, channels, *shape)}, node.outputs)


def _as_picture(context: ConversionContext, name: str, sizes: tuple[int, ...]) -> int:
    dimensions = context.dimensions(name)
    if len(sizes) == 2:
        return context.operand(name)
    shape = (*dimensions[:2], prod(dimensions[2:-1]), dimensions[-1])
    return context.add("RESHAPE", (context.operand(name),), {"shape": shape})[0]


@converter("Col2Im", 18)
def convert_col_to_im(context: ConversionContext, node: OnnxNode) -> None:
    """Col2Im with constant shapes, of any number of spatial axes. Source: ONNX Col2Im-18."""
    image, block = required_integers(context, node, 1), required_integers(context, node, 2)
    if len(image) != len(block) or not image:
        raise Refusal(
            Reason.INVALID_NODE,
            f"Col2Im has image_shape {list(image)} and block_shape {list(block)}; expected lists of one length",
        )
    windows = read_windows(node, block)
    attributes: dict[str, AttributeValue] = {
        "image_shape": image,
        "kernel_shape": block,
        "strides": windows.strides,
        "pads": windows.pads,
        "dilations": windows.dilations,
    }
    context.add("COL_TO_IM", (context.operand(node.input(0)),), attributes, node.outputs)
