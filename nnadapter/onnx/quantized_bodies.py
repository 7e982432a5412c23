"""ONNX's own QLinearConv and QLinearMatMul, written down as products of dequantized values, quantized.

ONNX Runtime multiplies integers, and sums by a quotient of scales; that is one step away at most, where a real lies in
the middle between two integers.
"""

from __future__ import annotations

from collections.abc import Sequence

from nnadapter.onnx.body import BodyBuilder


def qlinear_conv_body(body: BodyBuilder) -> Sequence[str]:
    """Filters may have a scale for each channel. Source: ONNX QLinearConv-10."""
    x, filters = _dequantized(body, 0), _dequantized(body, 3, axis=0)
    bias = body.input(8)
    if bias:
        scale = body.add("Mul", _number(body, 1), _scale(body, 4))
        bias = body.add("DequantizeLinear", bias, scale, axis=0)
    return [_quantized(body, body.add("Conv", x, filters, bias, **body.node.attributes), 6)]


def qlinear_mat_mul_body(body: BodyBuilder) -> Sequence[str]:
    """Both may have a scale for each row or column that the product keeps. Source: ONNX QLinearMatMul-21."""
    first = _dequantized(body, 0, axis=body.inputs.rank(0) - 2)
    second = _dequantized(body, 3, axis=body.inputs.rank(3) - 1)
    return [_quantized(body, body.add("MatMul", first, second), 6)]


def _dequantized(body: BodyBuilder, position: int, axis: int | None = None) -> str:
    """The reals of an input, whose scale and zero point follow it."""
    if axis is None:
        return body.add("DequantizeLinear", body.input(position), *_numbers(body, position + 1))
    steps = (_scale(body, position + 1), _scale(body, position + 2))
    return body.add("DequantizeLinear", body.input(position), *steps, axis=axis)


def _quantized(body: BodyBuilder, real: str, position: int) -> str:
    return body.add("QuantizeLinear", real, *_numbers(body, position))


def _numbers(body: BodyBuilder, position: int) -> tuple[str, str]:
    return _number(body, position), _number(body, position + 1)


def _number(body: BodyBuilder, position: int) -> str:
    """A scale or zero point of all elements, without dimensions."""
    if body.inputs.rank(position) == 0:
        return body.input(position)
    if body.inputs.rank(position) > 1 or body.inputs.width(position) != 1:
        raise body.invalid(f"has an input {position} of several numbers; expected one")
    return body.add("Squeeze", body.input(position))


def _scale(body: BodyBuilder, position: int) -> str:
    """A scale or zero point of all elements, or one for each index of a dimension."""
    if body.inputs.rank(position) > 1:
        raise body.invalid(f"has an input {position} of rank {body.inputs.rank(position)}; expected 0 or 1")
    is_one = body.inputs.rank(position) == 0 or body.inputs.width(position) == 1
    return _number(body, position) if is_one else body.input(position)
