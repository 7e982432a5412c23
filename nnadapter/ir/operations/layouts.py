"""Which axes a result has, and in which layout: pieces of shape rules."""

from __future__ import annotations

from collections.abc import Iterable

from nnadapter.ir.operand import DataType, Layout, OperandType

IMAGES = frozenset(
    {
        "CONV_2D",
        "CONV_2D_TRANSPOSE",
        "MAX_POOL_2D",
        "AVERAGE_POOL_2D",
        "BATCH_NORMALIZATION",
        "INSTANCE_NORMALIZATION",
        "LOCAL_RESPONSE_NORMALIZATION",
        "DEPTH_TO_SPACE",
        "SPACE_TO_DEPTH",
    }
)
"""Operations that read the layout of a picture."""


def like(type_: OperandType, dimensions: tuple[int, ...], dtype: DataType | None = None) -> OperandType:
    """The type of a result whose axes are those of `type_`: its layout is kept, its quantization is not."""
    dtype = dtype or type_.dtype
    if dimensions == type_.dimensions and dtype is type_.dtype and type_.quantization is None:
        return type_
    layout = type_.layout if len(dimensions) == 4 else Layout.NCHW
    return OperandType(dtype, dimensions, layout)


def layout_of(types: Iterable[OperandType], rank: int) -> Layout:
    """The layout of an elementwise result: NHWC if any operand of rank 4 is."""
    if rank != 4:
        return Layout.NCHW
    nhwc = any(type_.layout is Layout.NHWC and type_.rank == 4 for type_ in types)
    return Layout.NHWC if nhwc else Layout.NCHW


def channel_axis(type_: OperandType) -> int:
    """The axis of the channels: 1, or the last one where the layout is NHWC."""
    return type_.rank - 1 if type_.layout is Layout.NHWC else 1


def image_size(type_: OperandType) -> tuple[int, int, int, int]:
    """Batch, channels, height and width of an image of either layout."""
    if type_.layout is Layout.NHWC:
        batch, height, width, channels = type_.dimensions
    else:
        batch, channels, height, width = type_.dimensions
    return batch, channels, height, width


def image_like(type_: OperandType, channels: int, height: int, width: int) -> OperandType:
    """The type of an image of the batch, data type and layout of `type_`, and of that size."""
    batch = type_.dimensions[0]
    if type_.layout is Layout.NHWC:
        return like(type_, (batch, height, width, channels))
    return like(type_, (batch, channels, height, width))
