"""What is computed along axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nnadapter.exporting.writer import NodeWriter, exporter
from nnadapter.ir.operand import DataType

_REDUCTIONS: Mapping[str, str] = {
    "REDUCE_MAX": "ReduceMax",
    "REDUCE_MEAN": "ReduceMean",
    "REDUCE_MIN": "ReduceMin",
    "REDUCE_PROD": "ReduceProd",
    "REDUCE_SUM": "ReduceSum",
}


@exporter(*_REDUCTIONS)
def export_reduction(write: NodeWriter) -> str:
    """Reductions; over no axes each is a copy. Source: ONNX ReduceSum-13 and its kin of version 18 and 20."""
    axes = write.operation.axes
    if not axes:
        return write.node("Identity", write.inputs[0])
    op_type = _REDUCTIONS[write.operation.type]
    return write.node(op_type, write.inputs[0], write.integers(*axes), keepdims=write.operation.keepdims)


_PLACES: Mapping[str, str] = {"ARG_MAX": "ArgMax", "ARG_MIN": "ArgMin"}


@exporter(*_PLACES)
def export_arg(write: NodeWriter) -> str:
    """ARG_MAX and ARG_MIN. Source: ONNX ArgMax-13, ArgMin-13."""
    of = write.operation
    return write.node(
        _PLACES[of.type], write.inputs[0], axis=of.axis, keepdims=of.keepdims, select_last_index=of.select_last_index
    )


_RUNNING: Mapping[str, str] = {"CUM_PROD": "CumProd", "CUM_SUM": "CumSum"}


@exporter(*_RUNNING)
def export_running(write: NodeWriter) -> str:
    """CUM_SUM and CUM_PROD. Source: ONNX CumSum-14, CumProd-26."""
    of = write.operation
    axis = write.number(of.axis, DataType.INT64)
    return write.node(_RUNNING[of.type], write.inputs[0], axis, exclusive=of.exclusive, reverse=of.reverse)


@exporter("TOP_K")
def export_top_k(write: NodeWriter) -> Sequence[str]:
    """TOP_K. Source: ONNX TopK-24."""
    of = write.operation
    inputs = (write.inputs[0], write.integers(of.k))
    return write.nodes("TopK", inputs, 2, axis=of.axis, largest=of.largest, sorted=of.sorted)
