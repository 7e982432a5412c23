"""Quantized operands: QuantizeLinear and DequantizeLinear, alone and around what computes with reals.

An operation whose operands and result are quantized computes with the reals that they stand for, so it goes out as
ONNX writes that: DequantizeLinear of each operand, the op on reals, QuantizeLinear of the result. A product whose
result is not quantized gives the integer sums.
"""

from __future__ import annotations

import numpy as np

from nnadapter.exporting.linear_algebra import swapped
from nnadapter.exporting.writer import NodeWriter, exporter
from nnadapter.ir.operand import DataType, OperandType, Quantization
from nnadapter.ir.operand_checks import integer_range
from nnadapter.ir.operations.quantization import MOVERS, PRODUCTS, REALS

_ZERO_ONLY = frozenset({DataType.INT32})
"""Of these, DequantizeLinear takes no zero point, and QuantizeLinear makes none."""
_LINEAR = frozenset(
    {
        DataType.INT4,
        DataType.INT8,
        DataType.INT16,
        DataType.UINT4,
        DataType.UINT8,
        DataType.UINT16,
    }
)
"""What QuantizeLinear makes and DequantizeLinear takes."""


def on_reals(write: NodeWriter) -> bool:
    """Whether the operation computes with the reals that its operands stand for."""
    result, first, kind = write.result.type, write.type, write.operation.type
    if first.quantization is None or result.quantization is None:
        return False
    if kind in PRODUCTS:
        return True
    moves = kind in MOVERS and all(type_ is None or type_.quantized == result.quantized for type_ in write.types)
    return kind in REALS and not moves


def sums(write: NodeWriter) -> bool:
    """Whether the operation gives integer sums of products of quantized operands."""
    quantized = write.type.quantization is not None and write.result.type.quantization is None
    return quantized and write.operation.type in PRODUCTS


def dequantized(write: NodeWriter, name: str, type_: OperandType) -> str:
    """A quantized value as reals in float32; another as it is."""
    quantization = type_.quantization
    if quantization is None or type_.dtype.is_floating:
        return name
    scale, zero_point = _scale(write, quantization), np.array(quantization.zero_point)
    if type_.dtype in _LINEAR or (type_.dtype in _ZERO_ONLY and not zero_point.any()):
        point = "" if type_.dtype in _ZERO_ONLY else _point(write, quantization, type_.dtype)
        reals = write.node("DequantizeLinear", name, scale, point, axis=quantization.axis)
        return write.declared(reals, DataType.FLOAT32)
    wide = write.node("Sub", write.cast(name, DataType.INT64), _spread(write, zero_point, quantization, type_.rank))
    scales = _spread(write, np.array(quantization.scale, np.float32), quantization, type_.rank)
    return write.node("Mul", write.cast(wide, DataType.FLOAT32), scales)


def quantized(write: NodeWriter, name: str, type_: OperandType) -> str:
    """Reals as the integers of a quantized type."""
    quantization = type_.quantization
    assert quantization is not None, "asked for quantized results alone"
    real = write.cast(name, DataType.FLOAT32)
    if type_.dtype in _LINEAR:
        point = _point(write, quantization, type_.dtype)
        return write.node("QuantizeLinear", real, _scale(write, quantization), point, axis=quantization.axis)
    scales = _spread(write, np.array(quantization.scale, np.float32), quantization, type_.rank)
    rounded = write.cast(write.node("Round", write.node("Div", real, scales)), DataType.FLOAT64)
    points = _spread(write, np.array(quantization.zero_point, np.float64), quantization, type_.rank)
    low, high = (write.number(limit, DataType.FLOAT64) for limit in integer_range(type_.dtype))
    return write.cast(write.node("Clip", write.node("Add", rounded, points), low, high), type_.dtype)


def _scale(write: NodeWriter, quantization: Quantization) -> str:
    return write.constant(_vector(quantization.scale, quantization, np.dtype(np.float32)))


def _point(write: NodeWriter, quantization: Quantization, dtype: DataType) -> str:
    return write.constant(_vector(quantization.zero_point, quantization, dtype.array_type))


def _vector(values: object, quantization: Quantization, dtype: np.dtype[np.generic]) -> np.ndarray:
    array = np.array(values, dtype)
    return array.reshape(()) if quantization.axis is None else array


def _spread(write: NodeWriter, values: np.ndarray, quantization: Quantization, rank: int) -> str:
    """Scales or zero points so that they broadcast along their axis."""
    axes = [] if quantization.axis is None else [-1 if dim == quantization.axis else 1 for dim in range(rank)]
    return write.constant(values.reshape(axes))


@exporter("QUANTIZE")
def export_quantize(write: NodeWriter) -> str:
    """QUANTIZE; to integers that QuantizeLinear does not make spelled out. Source: ONNX QuantizeLinear-24."""
    return quantized(write, write.inputs[0], write.result.type)


@exporter("DEQUANTIZE")
def export_dequantize(write: NodeWriter) -> str:
    """DEQUANTIZE: in float32, then in the data type that is asked for. Source: ONNX DequantizeLinear-24."""
    return write.cast(dequantized(write, write.inputs[0], write.type), DataType(write.operation.to))


def export_sums(write: NodeWriter) -> str:
    """A product of quantized operands whose result is int32: ConvInteger or MatMulInteger, and the bias.

    Source: ONNX ConvInteger-10, MatMulInteger-10.
    """
    of = write.operation
    x_type, y_type = write.types[:2]
    assert x_type is not None and y_type is not None, "both are required"
    x, y = write.inputs[:2]
    x_point, y_point = (_integer_point(write, type_) for type_ in (x_type, y_type))
    if of.type == "CONV_2D":
        window = {name: of.attributes[name] for name in ("strides", "pads", "dilations", "group")}
        total = write.node("ConvInteger", x, y, x_point, y_point, **window)  # type: ignore[arg-type]
        return _with_bias(write, total, [-1, 1, 1])
    if of.type == "FULLY_CONNECTED" or of.attributes.get("transpose_y"):
        y = swapped(write, y, y_type.rank)
    if of.attributes.get("transpose_x"):
        x = swapped(write, x, x_type.rank)
    return _with_bias(write, write.node("MatMulInteger", x, y, x_point, y_point), [-1])


def _integer_point(write: NodeWriter, type_: OperandType) -> str:
    assert type_.quantization is not None, "both inputs of a quantized product are quantized"
    points = set(type_.quantization.zero_point)
    if len(points) == 1:
        return write.number(points.pop(), type_.dtype)
    return _point(write, type_.quantization, type_.dtype)


def _with_bias(write: NodeWriter, total: str, shape: list[int]) -> str:
    bias = write.inputs[2] if len(write.inputs) > 2 else ""
    if not bias:
        return total
    spread = bias if len(shape) == 1 else write.node("Reshape", bias, write.integers(*shape))
    return write.node("Add", total, spread)
