"""Converters of pooling, MaxUnpool and Col2Im."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import nnadapter.converters.convolution as convolution
from nnadapter.converters.context import ConversionContext, invalid
from nnadapter.converters.registry import NodeWriter, OnnxNode, Reason, Refusal, converter, exporter
from nnadapter.ir.schema import AttributeValue


@converter("MaxPool", 1, 8, 10, 11, 12, 22)
def convert_max_pool(context: ConversionContext, node: OnnxNode) -> None:
    """Convert MaxPool to MAX_POOL_2D or MAX_POOL_3D, or their variants with indices."""
    if not node.output(1):
        _add_pool(context, node, "MAX_POOL")
        return
    order = "column_major" if node.integer("storage_order", 0) else "row_major"
    _add_pool(context, node, "MAX_POOL", "_WITH_INDICES", storage_order=order)


@converter("AveragePool", 7, 10, 11, 19, 22)
def convert_average_pool(context: ConversionContext, node: OnnxNode) -> None:
    """Convert AveragePool to AVERAGE_POOL_2D or AVERAGE_POOL_3D."""
    _add_pool(context, node, "AVERAGE_POOL", count_include_pad=bool(node.integer("count_include_pad", 0)))


@converter("LpPool", 2, 11, 18, 22)
def convert_lp_pool(context: ConversionContext, node: OnnxNode) -> None:
    """Convert LpPool to LP_POOL_2D or LP_POOL_3D."""
    _add_pool(context, node, "LP_POOL", p=node.integer("p", 2))


def _add_pool(
    context: ConversionContext, node: OnnxNode, family: str, suffix: str = "", **attributes: AttributeValue
) -> None:
    sizes = convolution.spatial_sizes(context, node)
    kernel = convolution.stated_kernel(node, len(sizes))
    windows = convolution.read_windows(node, kernel)
    _refuse_disputed_pads(node, windows)
    attributes |= windows.attributes(convolution.resolve_pads(windows, sizes))
    attributes |= {"kernel_shape": convolution.as_picture(kernel, 1), "ceil_mode": _rounds_up(node, windows)}
    type_ = convolution.operation_type(family, sizes, suffix)
    convolution.add_on_picture(context, node, type_, context.operands(node, 1), attributes)


def _refuse_disputed_pads(node: OnnxNode, windows: convolution.Windows) -> None:
    pairs = zip(windows.strides, windows.extents, strict=True)
    has_gaps = windows.auto_pad == "SAME_UPPER" and any(stride > extent for stride, extent in pairs)
    dilated = any(dilation != 1 for dilation in windows.dilations)
    if windows.auto_pad.startswith("SAME") and (dilated or (has_gaps and node.op_type == "AveragePool")):
        raise Refusal(
            Reason.UNSUPPORTED_ATTRIBUTE,
            f"attribute 'auto_pad' of {node.op_type} is {windows.auto_pad!r} with strides {windows.strides}, dilations "
            f"{windows.dilations} and kernel_shape {windows.kernel}; expected explicit pads",
        )


def _rounds_up(node: OnnxNode, windows: convolution.Windows) -> bool:
    return windows.auto_pad == "NOTSET" and bool(node.integer("ceil_mode", 0))


@converter("GlobalAveragePool", 1, 22)
@converter("GlobalMaxPool", 1, 22)
def convert_global_pool(context: ConversionContext, node: OnnxNode) -> None:
    """Convert GlobalAveragePool to REDUCE_MEAN and GlobalMaxPool to REDUCE_MAX."""
    rank = _rank_of_images(context, node)
    type_ = "REDUCE_MEAN" if node.op_type == "GlobalAveragePool" else "REDUCE_MAX"
    context.add_for(node, type_, {"axes": tuple(range(2, rank)), "keepdims": True})


def _rank_of_images(context: ConversionContext, node: OnnxNode) -> int:
    rank = context.rank(node)
    if rank < 3:
        raise Refusal(Reason.UNSUPPORTED_RANK, f"input of {node.op_type} has rank {rank}; expected 3 or more")
    return rank


@converter("GlobalLpPool", 2, 22)
def convert_global_lp_pool(context: ConversionContext, node: OnnxNode) -> None:
    """Convert GlobalLpPool to LP_POOL_2D on an image of height 1."""
    dimensions, rank = context.dimensions(node.input(0)), _rank_of_images(context, node)
    positions = prod(dimensions[2:])
    shape = (*dimensions[:2], 1, positions)
    picture = context.apply("RESHAPE", context.operand(node.input(0)), shape=shape)
    pooled = context.apply("LP_POOL_2D", picture, kernel_shape=(1, positions), p=node.integer("p", 2))
    context.apply("RESHAPE", pooled, outputs=node.outputs, shape=(*dimensions[:2], *[1] * (rank - 2)))


@converter("MaxUnpool", 9, 11, 22)
def convert_max_unpool(context: ConversionContext, node: OnnxNode) -> None:
    """Convert MaxUnpool to MAX_UNPOOL_2D. Sequences and volumes become images, since indices are linear.

    Refused: an `output_shape` other than the windows yield, because ONNX and ONNX Runtime disagree on its indices.
    """
    sizes = convolution.spatial_sizes(context, node)
    kernel = convolution.stated_kernel(node, len(sizes))
    windows, rank = convolution.read_windows(node, kernel), len(sizes)
    shape = tuple(
        (size - 1) * windows.strides[axis] + kernel[axis] - windows.pads[axis] - windows.pads[axis + rank]
        for axis, size in enumerate(sizes)
    )
    stated_shape = context.constant_integers(node, 2)
    if stated_shape is not None and stated_shape[2:] != shape:
        raise Refusal(
            Reason.UNSUPPORTED_ATTRIBUTE,
            f"input 'output_shape' of MaxUnpool is {list(stated_shape)}; expected spatial sizes {list(shape)}, "
            "computed from its input and attributes, because ONNX and ONNX Runtime disagree on the indices for others",
        )
    batch, channels = context.dimensions(node.input(0))[:2]
    inputs = [_as_picture(context, node.input(position), sizes) for position in (0, 1)]
    outputs, output_shape = node.outputs if rank == 2 else (), (prod(shape[:-1]), shape[-1])
    unpooled = context.apply("MAX_UNPOOL_2D", *inputs, outputs=outputs, output_shape=output_shape)
    if rank != 2:
        context.apply("RESHAPE", unpooled, outputs=node.outputs, shape=(batch, channels, *shape))


def _as_picture(context: ConversionContext, name: str, sizes: tuple[int, ...]) -> int:
    dimensions = context.dimensions(name)
    if len(sizes) == 2:
        return context.operand(name)
    shape = (*dimensions[:2], prod(dimensions[2:-1]), dimensions[-1])
    return context.apply("RESHAPE", context.operand(name), shape=shape)


@converter("Col2Im", 18)
def convert_col_to_im(context: ConversionContext, node: OnnxNode) -> None:
    """Convert Col2Im, with constant shapes, to COL_TO_IM."""
    image, block = context.required_integers(node, 1), context.required_integers(node, 2)
    if len(image) != len(block) or not image:
        raise invalid(f"Col2Im has image_shape {list(image)} and block_shape {list(block)}; expected equal lengths")
    windows = convolution.read_windows(node, block)
    attributes: dict[str, AttributeValue] = {"image_shape": image, "kernel_shape": block}
    attributes |= {name: getattr(windows, name) for name in _MOVES}
    context.add_for(node, "COL_TO_IM", attributes)


_MOVES = ("strides", "pads", "dilations")


@exporter("MAX_POOL_2D_WITH_INDICES", "MAX_POOL_3D_WITH_INDICES")
def export_max_pool_with_indices(write: NodeWriter) -> Sequence[str]:
    """Export MAX_POOL_2D_WITH_INDICES and MAX_POOL_3D_WITH_INDICES as MaxPool."""
    attributes = {name: write.operation.attributes[name] for name in ("kernel_shape", *_MOVES, "ceil_mode")}
    column_major = write.operation.storage_order == "column_major"
    return write.nodes("MaxPool", write.inputs[:1], 2, storage_order=column_major, **attributes)  # type: ignore[arg-type]


@exporter("MAX_UNPOOL_2D")
def export_max_unpool(write: NodeWriter) -> str:
    """Export MAX_UNPOOL_2D as MaxUnpool, with windows that yield `output_shape`."""
    sizes, target_sizes = write.type.dimensions[2:], write.operation.output_shape
    grown = [wide - size for size, wide in zip(sizes, target_sizes, strict=True)]
    kernel = [max(0, more) + 1 for more in grown]
    pads = [*(max(0, -more) for more in grown), 0, 0]
    return write.node("MaxUnpool", *write.inputs, kernel_shape=kernel, strides=[1, 1], pads=pads)
