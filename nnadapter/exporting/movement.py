"""What moves, repeats, makes and picks elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from nnadapter.exporting.writer import Exporter, NodeWriter, exporter, index_of
from nnadapter.ir.operand import DataType

_SHAPED: Mapping[str, tuple[str, str]] = {"EXPAND": ("Expand", "shape"), "TILE": ("Tile", "repeats")}
"""Operations that are an op with one list as its second input: the op, the attribute that is the list."""


def _shaped(op_type: str, attribute: str) -> Exporter:
    return lambda write: write.node(op_type, write.inputs[0], write.integers(*getattr(write.operation, attribute)))


for _type, (_op_type, _attribute) in _SHAPED.items():
    exporter(_type)(_shaped(_op_type, _attribute))


@exporter("RESHAPE")
def export_reshape(write: NodeWriter) -> str:
    """RESHAPE; a size of 0 is a size. Source: ONNX Reshape-21."""
    shape = write.operation.shape
    return write.node("Reshape", write.inputs[0], write.integers(*shape), allowzero=1 if 0 in shape else None)


@exporter("TRANSPOSE")
def export_transpose(write: NodeWriter) -> str:
    """TRANSPOSE; the layout of the result says how to read it, and moves nothing. Source: ONNX Transpose-21."""
    return write.node("Transpose", write.inputs[0], perm=write.operation.perm)


@exporter("CONCAT")
def export_concat(write: NodeWriter) -> str:
    """CONCAT. Source: ONNX Concat-13."""
    return write.node("Concat", *write.inputs, axis=write.operation.axis)


@exporter("SPLIT")
def export_split(write: NodeWriter) -> Sequence[str]:
    """SPLIT. Source: ONNX Split-18."""
    sizes = write.integers(*write.operation.split)
    return write.nodes("Split", (write.inputs[0], sizes), len(write.operation.outputs), axis=write.operation.axis)


@exporter("SLICE")
def export_slice(write: NodeWriter) -> str:
    """SLICE; Python's slices are ONNX's, and one of no axes is a copy. Source: ONNX Slice-13."""
    of = write.operation
    if not of.axes:
        return write.node("Identity", write.inputs[0])
    lists = (write.integers(*values) for values in (of.starts, of.ends, of.axes, of.steps))
    return write.node("Slice", write.inputs[0], *lists)


@exporter("PAD")
def export_pad(write: NodeWriter) -> str:
    """PAD. Source: ONNX Pad-24."""
    of = write.operation
    if not write.type.rank:
        return write.node("Identity", write.inputs[0])
    value = ""
    if of.mode == "constant":
        value = write.constant(np.array(of.value).astype(write.type.dtype.array_type))
    return write.node("Pad", write.inputs[0], write.integers(*of.pads), value, mode=of.mode)


@exporter("FILL")
def export_fill(write: NodeWriter) -> str:
    """FILL: the one element, which need not be known, spread. Source: ONNX Expand-13."""
    return write.node("Expand", write.inputs[0], write.integers(*write.operation.shape))


@exporter("EYE_LIKE")
def export_eye_like(write: NodeWriter) -> str:
    """EYE_LIKE. Source: ONNX EyeLike-22."""
    return write.node("EyeLike", write.inputs[0], dtype=DataType(write.operation.to), k=int(write.operation.k))


@exporter("TRILU")
def export_trilu(write: NodeWriter) -> str:
    """TRILU. Source: ONNX Trilu-14."""
    k = write.number(write.operation.k, DataType.INT64)
    return write.node("Trilu", write.inputs[0], k, upper=write.operation.upper)


@exporter("DEPTH_TO_SPACE")
def export_depth_to_space(write: NodeWriter) -> str:
    """DEPTH_TO_SPACE. Source: ONNX DepthToSpace-13."""
    of = write.operation
    return write.node("DepthToSpace", write.inputs[0], blocksize=of.block_size, mode=of.mode)


@exporter("SPACE_TO_DEPTH")
def export_space_to_depth(write: NodeWriter) -> str:
    """SPACE_TO_DEPTH. Source: ONNX SpaceToDepth-13."""
    return write.node("SpaceToDepth", write.inputs[0], blocksize=write.operation.block_size)


@exporter("GATHER", "GATHER_ELEMENTS")
def export_gather(write: NodeWriter) -> str:
    """GATHER and GATHER_ELEMENTS. Source: ONNX Gather-13, GatherElements-13."""
    op_type = "Gather" if write.operation.type == "GATHER" else "GatherElements"
    return write.node(op_type, write.inputs[0], index_of(write, write.inputs[1]), axis=write.operation.axis)


@exporter("GATHER_ND")
def export_gather_nd(write: NodeWriter) -> str:
    """GATHER_ND. Source: ONNX GatherND-13."""
    indices = write.cast(write.inputs[1], DataType.INT64)
    return write.node("GatherND", write.inputs[0], indices, batch_dims=write.operation.batch_dims)


@exporter("SCATTER_ELEMENTS")
def export_scatter_elements(write: NodeWriter) -> str:
    """SCATTER_ELEMENTS. Source: ONNX ScatterElements-18."""
    x, indices, updates = write.inputs
    of = write.operation
    return write.node("ScatterElements", x, index_of(write, indices), updates, axis=of.axis, reduction=of.reduction)


@exporter("SCATTER_ND")
def export_scatter_nd(write: NodeWriter) -> str:
    """SCATTER_ND. Source: ONNX ScatterND-18."""
    x, indices, updates = write.inputs
    indices = write.cast(indices, DataType.INT64)
    return write.node("ScatterND", x, indices, updates, reduction=write.operation.reduction)


@exporter("TENSOR_SCATTER")
def export_tensor_scatter(write: NodeWriter) -> str:
    """TENSOR_SCATTER. Source: ONNX TensorScatter-24."""
    x, updates, starts = write.inputs
    starts = write.cast(starts, DataType.INT64) if starts else ""
    return write.node("TensorScatter", x, updates, starts, axis=write.operation.axis, mode=write.operation.mode)


@exporter("ONE_HOT")
def export_one_hot(write: NodeWriter) -> str:
    """ONE_HOT. Source: ONNX OneHot-11."""
    indices, values = write.inputs
    depth = write.number(write.operation.depth, DataType.INT64)
    indices = write.cast(indices, DataType.INT64)
    return write.node("OneHot", indices, depth, values, axis=write.operation.axis)


@exporter("REVERSE_SEQUENCE")
def export_reverse_sequence(write: NodeWriter) -> str:
    """REVERSE_SEQUENCE. Source: ONNX ReverseSequence-10."""
    x, lengths = write.inputs
    of = write.operation
    lengths = write.cast(lengths, DataType.INT64)
    return write.node("ReverseSequence", x, lengths, batch_axis=of.batch_axis, time_axis=of.time_axis)
