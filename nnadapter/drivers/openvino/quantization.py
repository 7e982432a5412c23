"""What of quantized values the engine computes rightly, asked of the nodes around them.

The engine does not compute node by node: it moves DequantizeLinear behind what reads it, and computes that in integers.
So what is right hangs on who reads a value. The rows that ask these questions stand in `restrictions.py`; the sweep of
groups of nodes found them (`tests/drivers/openvino/sweep/test_groups.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import onnx
from onnx import numpy_helper

from nnadapter.drivers.openvino.forms import Form
from nnadapter.ir.operand import Array

QUANTIZING = frozenset(("QuantizeLinear", "DequantizeLinear"))
"""A model with one of these may be computed in integers anywhere."""
_WINDOWED = frozenset(("Conv", "ConvTranspose"))


def _of_product(node: onnx.NodeProto, position: int) -> int | None:
    return 1 if position == 1 else None


def _of_gemm(node: onnx.NodeProto, position: int) -> int | None:
    is_transposed = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
    return {1: 0 if is_transposed else 1, 2: 0}.get(position)


def _of_gather(node: onnx.NodeProto, position: int) -> int | None:
    is_inner = any(attribute.name == "axis" and attribute.i for attribute in node.attribute)
    return None if is_inner or position else 0


_SCALED_AXES: Mapping[str, Callable[[onnx.NodeProto, int], int | None]] = {
    "Conv": lambda node, position: 0 if position else None,
    "ConvTranspose": lambda node, position: {1: 1, 2: 0}.get(position),
    "MatMul": _of_product,
    "Gemm": _of_gemm,
    "Gather": _of_gather,
}
"""Along which axis of a constant, read by a node at a position, there may be a scale for each index."""
_ANY_AXIS = frozenset(("Add", "Sub", "Mul"))


def is_beside_quantized(form: Form) -> bool:
    """Whether the model of the node quantizes or dequantizes anything."""
    return not QUANTIZING.isdisjoint(form.parts.op_types)


def has_scales_elsewhere(form: Form) -> bool:
    """Whether a DequantizeLinear has several scales of a constant that are not one per index of what its readers keep.

    Weights of two dimensions may be transposed in between.
    """
    if not _is_weight(form) or math.prod(form.shape(1)) == 1:
        return False
    if len(form.shape(1)) != 1 or form.attribute("block_size", 0):
        return True
    rank = len(form.shape(0))
    return not _may_be_scaled(form, form.node.output[0], form.attribute("axis", 1) % rank, rank)


def _may_be_scaled(form: Form, name: str, axis: int, rank: int) -> bool:
    return all(
        _takes(form, reader, position, axis, rank)
        for reader in form.parts.readers.get(name, ())
        for position, read in enumerate(reader.input)
        if read == name
    )


def _takes(form: Form, reader: onnx.NodeProto, position: int, axis: int, rank: int) -> bool:
    if reader.op_type == "Transpose" and rank == 2:
        order = next((list(attribute.ints) for attribute in reader.attribute if attribute.name == "perm"), [1, 0])
        return _may_be_scaled(form, reader.output[0], order.index(axis), rank)
    if reader.op_type in _ANY_AXIS:
        return True
    is_many = reader.op_type == "MatMul" and rank != 2
    axis_lookup = _SCALED_AXES.get(reader.op_type)
    return axis_lookup is not None and not is_many and axis_lookup(reader, position) == axis


def has_unsigned_filter(form: Form) -> bool:
    """Whether a DequantizeLinear makes the filter of a convolution of uint8 whose zero point is 0."""
    if not _is_weight(form) or form.dtype(0) != "uint8":
        return False
    readers = form.parts.readers.get(form.node.output[0], ())
    is_filter = any(reader.op_type in _WINDOWED and form.node.output[0] in reader.input[1:2] for reader in readers)
    return is_filter and not (form.has(2) and _points(form).any())


def _is_weight(form: Form) -> bool:
    return form.node.input[0] in form.parts.weights


def _points(form: Form) -> Array:
    return numpy_helper.to_array(form.parts.constants[form.node.input[2]])
