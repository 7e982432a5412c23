"""Converters of integer convolutions and matrix products.

A run-time zero point of x is subtracted afterwards: sum((x - z) * w) = sum(x * w) - z * sum(w).
"""

from __future__ import annotations

import numpy as np

import nnadapter.converters.quantization as quantization
from nnadapter.converters.context import ConversionContext
from nnadapter.converters.convolution import convolution_attributes
from nnadapter.converters.registry import OnnxNode, Reason, Refusal, converter
from nnadapter.ir import Array, DataType, Quantization, QuantizedType

_UNIT_SCALE: Array = np.array(1, np.float32)


def _integers_of(context: ConversionContext, node: OnnxNode, name: str) -> DataType:
    return quantization.integer_type(node, context.type_of(name).dtype.value, f"values {name!r}")


def _quantized(context: ConversionContext, node: OnnxNode, names: tuple[str, str, str], axis: int | None = None) -> int:
    """Return a value as quantized integers; `names` are of value, scale (default 1) and zero point (default 0)."""
    value, scale, zero_point = names
    _integers_of(context, node, value)
    scales = context.constant(scale) if scale else _UNIT_SCALE
    zero_points = context.constant(zero_point) if zero_point else None
    return quantization.as_quantized(context, value, quantization.parameters(node, scales, zero_points, axis))


def _result(context: ConversionContext, node: OnnxNode, position: int) -> QuantizedType:
    scale, zero_point = context.constant(node.input(position)), context.optional_constant(node, position + 1)
    dtype_name = "uint8" if zero_point is None else zero_point.dtype.name
    integer_dtype = quantization.integer_type(node, dtype_name, "results")
    return QuantizedType(integer_dtype, quantization.parameters(node, scale, zero_point, None))


@converter("QLinearConv", 10)
def convert_qlinear_conv(context: ConversionContext, node: OnnxNode) -> None:
    """Convert QLinearConv, of rank 3 or 4, to CONV_2D."""
    attributes = convolution_attributes(context, node, 3)
    x_name, x_scale, x_zero, w_name, w_scale, w_zero = (node.input(position) for position in range(6))
    x = _quantized(context, node, (x_name, x_scale, x_zero))
    w = _quantized(context, node, (w_name, w_scale, w_zero), 0)
    bias = (context.operand(node.input(8)),) if node.input(8) else ()
    quantization.add_quantized_convolution(context, (x, w, *bias), attributes, _result(context, node, 6), node.outputs)


@converter("ConvInteger", 10)
def convert_conv_integer(context: ConversionContext, node: OnnxNode) -> None:
    """Convert ConvInteger, of rank 3 or 4, to CONV_2D. Refused: run-time zero point of the filter."""
    attributes = convolution_attributes(context, node)
    x_name, w_name, x_zero, w_zero = (node.input(position) for position in range(4))
    w = _quantized(context, node, (w_name, "", w_zero), 0)
    if not x_zero or context.is_constant(x_zero):
        x = _quantized(context, node, (x_name, "", x_zero))
        quantization.add_quantized_convolution(context, (x, w), attributes, None, node.outputs)
        return
    x = _quantized(context, node, (x_name, "", ""))
    sums = quantization.add_quantized_convolution(context, (x, w), attributes, None)
    # Padding contributes 0, so sums of filter elements depend on the position.
    ones = context.add_constant(
        np.ones((1,) * context.type_of(x).rank, np.uint8), Quantization(scale=(1.0,), zero_point=(0,))
    )
    shape = (1, *context.type_of(x).dimensions[1:])
    inside = context.apply("EXPAND", ones, shape=shape)
    weights = quantization.add_quantized_convolution(context, (inside, w), attributes, None)
    _add_difference(context, node, sums, x_zero, weights)


def _add_difference(context: ConversionContext, node: OnnxNode, sums: int, zero_point: str, weights: int) -> None:
    if any(size != 1 for size in context.dimensions(zero_point)):
        raise Refusal(
            Reason.NOT_CONSTANT,
            f"zero point {zero_point!r} of {node.op_type} has dimensions {list(context.dimensions(zero_point))} and is "
            "known only when the model runs; expected one number",
        )
    point = quantization.cast(context, quantization.reshaped(context, context.operand(zero_point), ()), DataType.INT32)
    product = context.apply("MUL", weights, point)
    context.apply("SUB", sums, product, outputs=node.outputs)


@converter("MatMulInteger", 10)
def convert_mat_mul_integer(context: ConversionContext, node: OnnxNode) -> None:
    """Convert MatMulInteger to MAT_MUL on quantized operands or on int32 differences.

    A run-time zero point of A is corrected afterwards if B is constant.
    """
    a_name, b_name, a_zero, b_zero = (node.input(position) for position in range(4))
    points = {name: _is_known(context, name) for name in (a_zero, b_zero)}
    known_b = points[b_zero] and _runs_along_columns(context, b_name, b_zero)
    if points[a_zero] and known_b and _is_one(context, a_zero):
        _add_known(context, node, (a_name, "", a_zero), (b_name, "", b_zero), None)
    elif known_b and _is_one(context, a_zero) and _is_constant_matrix(context, b_name):
        sums = _add_known(context, node, (a_name, "", ""), (b_name, "", b_zero), None, named=False)
        _add_difference(context, node, sums, a_zero, context.add_constant(_column_sums(context, node)))
    else:
        _add_int32_product(context, a_name, a_zero, b_name, b_zero, node.outputs)


def _is_known(context: ConversionContext, name: str) -> bool:
    return not name or context.is_constant(name)


def _is_one(context: ConversionContext, name: str) -> bool:
    return not name or all(size == 1 for size in context.dimensions(name))


def _runs_along_columns(context: ConversionContext, b_name: str, name: str) -> bool:
    """Return whether zero point `name` is one number, or has one per column of matrix `b_name`."""
    if _is_one(context, name):
        return True
    return len(context.dimensions(name)) == 1 and len(context.dimensions(b_name)) > 1


def _is_constant_matrix(context: ConversionContext, name: str) -> bool:
    return context.is_constant(name) and len(context.dimensions(name)) > 1


def _column_sums(context: ConversionContext, node: OnnxNode) -> Array:
    b, zero_point = context.constant(node.input(1)), context.optional_constant(node, 3)
    centered = b.astype(np.int64) - (0 if zero_point is None else zero_point.astype(np.int64))
    keepdims = context.rank(node) > 1
    sums: Array = centered.sum(axis=-2, keepdims=keepdims).astype(np.int32)
    return sums


def _add_known(
    context: ConversionContext,
    node: OnnxNode,
    first: tuple[str, str, str],
    second: tuple[str, str, str],
    result: QuantizedType | None,
    *,
    named: bool = True,
) -> int:
    columns = len(context.dimensions(second[0])) - 1
    x = _quantized(context, node, first)
    y = _quantized(context, node, second, columns)
    return quantization.add_quantized_product(context, "MAT_MUL", (x, y), {}, result, node.outputs if named else ())


def _add_int32_product(
    context: ConversionContext, a_name: str, a_zero: str, b_name: str, b_zero: str, outputs: tuple[str, ...] = ()
) -> int:
    a = _difference(context, a_name, a_zero, per_row=True)
    b = _difference(context, b_name, b_zero, per_row=False)
    return context.apply("MAT_MUL", a, b, outputs=outputs)


def _difference(context: ConversionContext, name: str, zero_point: str, *, per_row: bool) -> int:
    value = quantization.cast(context, context.operand(name), DataType.INT32)
    if not zero_point:
        return value
    return context.apply("SUB", value, _spread(context, zero_point, DataType.INT32, per_row=per_row))


def _spread(context: ConversionContext, name: str, dtype: DataType, *, per_row: bool) -> int:
    operand = quantization.cast(context, context.operand(name), dtype)
    dimensions = context.type_of(operand).dimensions
    if all(size == 1 for size in dimensions):
        return quantization.reshaped(context, operand, ())
    return quantization.reshaped(context, operand, (*dimensions, 1)) if per_row and len(dimensions) == 1 else operand


@converter("QLinearMatMul", 10, 21)
def convert_qlinear_mat_mul(context: ConversionContext, node: OnnxNode) -> None:
    """Convert QLinearMatMul to MAT_MUL on quantized operands, or to int32 sums that are rescaled in float32."""
    names = [node.input(position) for position in range(8)]
    a_name, a_scale, a_zero, b_name, b_scale, b_zero, y_scale, y_zero = names
    dtype = _integers_of(context, node, y_zero) if y_zero else DataType.UINT8
    for name in (a_name, b_name):
        _integers_of(context, node, name)
    scales = (a_scale, a_zero, b_scale, b_zero, y_scale, y_zero)
    single = (a_scale, a_zero, y_scale, y_zero)
    is_constant = all(_is_known(context, name) for name in scales) and all(_is_one(context, name) for name in single)
    if is_constant and all(_runs_along_columns(context, b_name, name) for name in (b_scale, b_zero)):
        _add_known(context, node, (a_name, a_scale, a_zero), (b_name, b_scale, b_zero), _result(context, node, 6))
        return
    sums = quantization.cast(context, _add_int32_product(context, a_name, a_zero, b_name, b_zero), DataType.FLOAT32)
    a, b, y = (
        _spread(context, name, DataType.FLOAT32, per_row=name == a_scale) for name in (a_scale, b_scale, y_scale)
    )
    scale = context.apply("MUL", a, b)
    factor = context.apply("DIV", scale, y)
    scaled = context.apply("MUL", sums, factor)
    zero_point = _spread(context, y_zero, DataType.FLOAT32, per_row=True) if y_zero else None
    quantization.add_rounding(context, scaled, zero_point, dtype, node.outputs)
