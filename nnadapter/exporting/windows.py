"""Convolutions, pools and what leads back from windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nnadapter.exporting.writer import NodeWriter, exporter


def _window(write: NodeWriter, *names: str) -> dict[str, object]:
    return {name: write.operation.attributes[name] for name in names}


_MOVES = ("strides", "pads", "dilations")


@exporter("CONV_2D", "CONV_3D")
def export_conv(write: NodeWriter) -> str:
    """CONV_2D and CONV_3D; filters are in ONNX's order. Source: ONNX Conv-22."""
    return write.node("Conv", *write.inputs, **_window(write, *_MOVES, "group"))  # type: ignore[arg-type]


@exporter("CONV_2D_TRANSPOSE", "CONV_3D_TRANSPOSE")
def export_conv_transpose(write: NodeWriter) -> str:
    """CONV_2D_TRANSPOSE and CONV_3D_TRANSPOSE. Source: ONNX ConvTranspose-22."""
    attributes = _window(write, *_MOVES, "group", "output_padding")
    return write.node("ConvTranspose", *write.inputs, **attributes)  # type: ignore[arg-type]


_POOLS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "AVERAGE_POOL": ("AveragePool", ("count_include_pad",)),
    "LP_POOL": ("LpPool", ("p",)),
    "MAX_POOL": ("MaxPool", ()),
}
"""By family: the op, and the attributes that it has beside those of every pool."""


@exporter(*(f"{family}_{rank}D" for family in _POOLS for rank in (2, 3)))
def export_pool(write: NodeWriter) -> str:
    """Pools over pictures and volumes. Source: ONNX AveragePool-22, LpPool-22, MaxPool-22."""
    op_type, more = _POOLS[write.operation.type[:-3]]
    attributes = _window(write, "kernel_shape", *_MOVES, "ceil_mode", *more)
    return write.node(op_type, write.inputs[0], **attributes)  # type: ignore[arg-type]


@exporter("MAX_POOL_2D_WITH_INDICES", "MAX_POOL_3D_WITH_INDICES")
def export_max_pool_with_indices(write: NodeWriter) -> Sequence[str]:
    """MAX_POOL_2D_WITH_INDICES and the one of volumes. Source: ONNX MaxPool-22."""
    attributes = _window(write, "kernel_shape", *_MOVES, "ceil_mode")
    column_major = write.operation.storage_order == "column_major"
    return write.nodes("MaxPool", write.inputs[:1], 2, storage_order=column_major, **attributes)  # type: ignore[arg-type]


@exporter("MAX_UNPOOL_2D")
def export_max_unpool(write: NodeWriter) -> str:
    """MAX_UNPOOL_2D by windows of stride 1 that give its output_shape: indices alone say what goes where.

    Source: ONNX MaxUnpool-22.
    """
    sizes, wanted = write.type.dimensions[2:], write.operation.output_shape
    grown = [wide - size for size, wide in zip(sizes, wanted, strict=True)]
    kernel = [max(0, more) + 1 for more in grown]
    pads = [*(max(0, -more) for more in grown), 0, 0]
    return write.node("MaxUnpool", *write.inputs, kernel_shape=kernel, strides=[1, 1], pads=pads)


@exporter("COL_TO_IM")
def export_col_to_im(write: NodeWriter) -> str:
    """COL_TO_IM. Source: ONNX Col2Im-18."""
    shapes = (write.integers(*shape) for shape in (write.operation.image_shape, write.operation.kernel_shape))
    return write.node("Col2Im", write.inputs[0], *shapes, **_window(write, *_MOVES))  # type: ignore[arg-type]


@exporter("DEFORMABLE_CONV_2D")
def export_deformable_conv(write: NodeWriter) -> str:
    """DEFORMABLE_CONV_2D. Source: ONNX DeformConv-22."""
    attributes = _window(write, *_MOVES, "group", "offset_group")
    return write.node("DeformConv", *write.inputs, **attributes)  # type: ignore[arg-type]
