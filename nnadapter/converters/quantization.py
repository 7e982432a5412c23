"""Quantized operands: what converters of quantized ops and of groups of nodes share.

Each `add_quantized_…` takes operands whose types say how they are quantized, and the type of the result; `parameters`
and `as_quantized` make these of the inputs of a node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from nnadapter.converters.context import ConversionContext
from nnadapter.ir.operand import INTEGER, Array, DataType, Quantization, QuantizedType
from nnadapter.ir.schema import AttributeValue
from nnadapter.onnx.node import OnnxNode
from nnadapter.onnx.refusal import Refusal
from partition.verdict import Reason

_INTEGERS: Mapping[str, DataType] = {data_type.value: data_type for data_type in INTEGER}


def parameters(node: OnnxNode, scale: Array, zero_point: Array | None, axis: int | None) -> Quantization:
    """The quantization that constant scales and zero points give.

    Args:
        node: named in refusals.
        scale: of any number of elements and a floating-point type: one, or one per index of `axis`.
        zero_point: as many as scales, or one; None for 0.
        axis: 0 or more; only looked at where there is more than one scale; None if there must be one.

    Raises:
        Refusal: a scale is not positive and finite, or there is another number of zero points than of scales.
    """
    scales = scale.reshape(-1).astype(np.float32)
    points = np.zeros(scales.size, np.int64) if zero_point is None else zero_point.reshape(-1).astype(np.int64)
    along = axis if max(scale.ndim, 0 if zero_point is None else zero_point.ndim) else None
    if scales.size != points.size:
        if 1 not in (scales.size, points.size):
            raise Refusal(
                Reason.INVALID_NODE,
                f"{node.op_type} has {scales.size} scales and {points.size} zero points; expected equally many",
            )
        scales, points = np.broadcast_arrays(scales, points)
    if scales.size == 1:
        along = None
    elif along is None:
        raise Refusal(Reason.UNSUPPORTED_ATTRIBUTE, f"{node.op_type} has {scales.size} scales; expected one here")
    if not (np.isfinite(scales).all() and (scales > 0).all()):
        raise Refusal(
            Reason.UNSUPPORTED_ATTRIBUTE,
            f"{node.op_type} has a scale that is not positive and finite; expected only such",
        )
    return Quantization(scale=tuple(scales.tolist()), zero_point=tuple(points.tolist()), axis=along)


def integer_type(name: str) -> DataType | None:
    """The integer data type of that name; None for any other."""
    return _INTEGERS.get(name)


def as_quantized(context: ConversionContext, name: str, quantization: Quantization) -> int:
    """The operand of an ONNX value of integers, read as quantized so: a constant of that type, or a STORAGE_CAST.

    Raises:
        Refusal: the value is no tensor of integers, or there are more or fewer scales than indices of the axis.
    """
    type_ = context.type_of(name)
    if type_.dtype not in INTEGER:
        raise Refusal(Reason.UNSUPPORTED_DTYPE, f"{name!r} is {type_}; expected integers")
    _check_axis(name, quantization, type_.dimensions)
    if type_.quantization == quantization:
        return context.operand(name)
    if context.is_constant(name):
        return context.add_constant(context.constant(name), quantization)
    return add_storage_cast(context, context.operand(name), quantization)


def _check_axis(name: str, quantization: Quantization, dimensions: Sequence[int]) -> None:
    axis, count = quantization.axis, len(quantization.scale)
    if axis is not None and (axis >= len(dimensions) or dimensions[axis] != count):
        raise Refusal(
            Reason.INVALID_NODE,
            f"{name!r} of dimensions {list(dimensions)} has {count} scales along axis {axis}; expected one per index",
        )


def add_storage_cast(context: ConversionContext, operand: int, quantization: Quantization) -> int:
    """The same integers as `operand`, quantized so; itself if it is."""
    type_ = context.type_of(operand)
    if type_.quantization == quantization:
        return operand
    result = QuantizedType(type_.dtype, quantization)
    return context.add("STORAGE_CAST", (operand,), quantized=(result,))[0]


def bias_quantization(x: Quantization, filter_: Quantization) -> Quantization:
    """The quantization of an int32 bias that is added to sums of products of the two."""
    scales = tuple(x.scale[0] * scale for scale in filter_.scale)
    return Quantization(scale=scales, zero_point=(0,) * len(scales), axis=None if len(scales) == 1 else 0)


def add_quantized_product(
    context: ConversionContext,
    type_: str,
    operands: Sequence[int],
    attributes: Mapping[str, AttributeValue],
    result: QuantizedType | None,
    outputs: Sequence[str] = (),
) -> int:
    """CONV_2D, FULLY_CONNECTED or MAT_MUL of quantized operands.

    Args:
        context: what it is added to.
        type_: the operation.
        operands: quantized input, quantized filter, weight or second factor, and possibly an int32 bias, of any
            quantization or none: it is read as having the scale of the sums.
        attributes: as without quantization.
        result: data type and quantization of the result; None for the sums in int32.
        outputs: names of the ONNX values that the result is.

    Raises:
        Refusal: the operation does not take such operands.
    """
    x, filter_, *bias = operands
    if bias:
        scales = [context.type_of(operand).quantization for operand in (x, filter_)]
        assert scales[0] is not None and scales[1] is not None, "a bias goes with quantized operands"
        bias = [_as_bias(context, bias[0], bias_quantization(scales[0], scales[1]))]
    quantized = () if result is None else (result,)
    return context.add(type_, (x, filter_, *bias), attributes, outputs, quantized)[0]


def _as_bias(context: ConversionContext, operand: int, quantization: Quantization) -> int:
    value = context.value_of(operand)
    return (
        add_storage_cast(context, operand, quantization) if value is None else context.add_constant(value, quantization)
    )


def add_quantized_convolution(
    context: ConversionContext,
    operands: Sequence[int],
    attributes: Mapping[str, AttributeValue],
    result: QuantizedType | None,
    outputs: Sequence[str] = (),
) -> int:
    """CONV_2D of quantized operands, whose input and filter may be sequences [N, C, L], reshaped there and back.

    See `add_quantized_product`; `attributes` are those of pictures, as `converters.windows.Windows.attributes` gives
    them, and `group`.
    """
    x, filter_, *bias = operands
    dimensions = context.type_of(x).dimensions
    if len(dimensions) == 4:
        return add_quantized_product(context, "CONV_2D", operands, attributes, result, outputs)
    picture = _reshaped(context, x, (*dimensions[:2], 1, *dimensions[2:]))
    size = context.type_of(filter_).dimensions
    tall = _reshaped(context, filter_, (*size[:2], 1, *size[2:]))
    made = add_quantized_product(context, "CONV_2D", (picture, tall, *bias), attributes, result)
    batch, channels, _, length = context.type_of(made).dimensions
    return context.add("RESHAPE", (made,), {"shape": (batch, channels, length)}, outputs)[0]


def _reshaped(context: ConversionContext, operand: int, shape: tuple[int, ...]) -> int:
    """The operand in other dimensions, quantized as before: axis 0, if any, stays what it is."""
    type_, value = context.type_of(operand), context.value_of(operand)
    if value is not None:
        return context.add_constant(value.reshape(shape), type_.quantization)
    (made,) = context.add("RESHAPE", (operand,), {"shape": shape})
    return made if type_.quantization is None else add_storage_cast(context, made, type_.quantization)
