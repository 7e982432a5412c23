"""Products of integers: convolutions with the channels last, QGemm, and products that give reals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from nnadapter.onnx.body import BodyBuilder
from nnadapter.onnx.function_ops import function_op
from nnadapter.onnx.microsoft.axes import channels_first, channels_last
from nnadapter.onnx.microsoft.quantized import dequantized, quantized

_WINDOW = {
    "auto_pad": "NOTSET",
    "dilations": list[int],
    "kernel_shape": list[int],
    "pads": list[int],
    "strides": list[int],
}


@function_op(
    "QLinearConv",
    "x x_scale x_zero_point w w_scale w_zero_point y_scale y_zero_point B?",
    "y",
    {**_WINDOW, "channels_last": 0, "group": 1},
)
def qlinear_conv(body: BodyBuilder) -> Sequence[str]:
    """QLinearConv of either order of axes; the filter has its channels second always.

    Source: com.microsoft QLinearConv-1.
    """
    attributes = {name: value for name, value in body.node.attributes.items() if name != "channels_last"}
    x, *others = (body.input(position) for position in range(9))
    if not body.node.integer("channels_last", 0):
        return [body.add("QLinearConv", x, *others, **attributes)]
    rank = body.inputs.rank(0)
    return [channels_last(body, body.add("QLinearConv", channels_first(body, x, rank), *others, **attributes), rank)]


@function_op("NhwcMaxPool", "x", "y", {**_WINDOW, "ceil_mode": 0}, required=["kernel_shape"])
def nhwc_max_pool(body: BodyBuilder) -> Sequence[str]:
    """NhwcMaxPool: MaxPool of integers whose channels are the last axis. Source: com.microsoft NhwcMaxPool-1."""
    rank = body.inputs.rank(0)
    first = channels_first(body, body.input(0), rank)
    return [channels_last(body, body.add("MaxPool", first, **body.node.attributes), rank)]


@function_op("MatMulIntegerToFloat", "A B a_scale b_scale a_zero_point? b_zero_point? bias?", "Y")
def mat_mul_integer_to_float(body: BodyBuilder) -> Sequence[str]:
    """MatMulIntegerToFloat: sums of products times both scales, and a bias.

    Source: com.microsoft MatMulIntegerToFloat-1.
    """
    return [product_of_integers(body, *(body.input(position) for position in range(7)))]


def product_of_integers(
    body: BodyBuilder, a: str, b: str, a_scale: str, b_scale: str, a_zero_point: str, b_zero_point: str, bias: str
) -> str:
    """A product of integers as reals; zero points and bias may be absent."""
    return _scaled(body, body.add("MatMulInteger", a, b, a_zero_point, b_zero_point), (a_scale, b_scale), bias)


@function_op("DynamicQuantizeMatMul", "A B b_scale b_zero_point? bias?", "Y")
def dynamic_quantize_mat_mul(body: BodyBuilder) -> Sequence[str]:
    """DynamicQuantizeMatMul: DynamicQuantizeLinear of A, and MatMulIntegerToFloat.

    Source: com.microsoft DynamicQuantizeMatMul-1.
    """
    a, b, b_scale, b_zero_point, bias = (body.input(position) for position in range(5))
    integers, scale, zero_point = body.add_several("DynamicQuantizeLinear", [a], 3)
    return [_scaled(body, body.add("MatMulInteger", integers, b, zero_point, b_zero_point), (scale, b_scale), bias)]


def _scaled(body: BodyBuilder, sums: str, scales: tuple[str, str], bias: str) -> str:
    """Sums of products in int32 as reals, in ONNX Runtime's order, and the bias if there is one."""
    factor = body.add("Mul", *scales)
    product = body.add("Mul", body.add("Cast", sums, to=onnx.TensorProto.FLOAT), factor)
    return body.add("Add", product, bias) if bias else product


@function_op(
    "QGemm",
    "A a_scale a_zero_point B b_scale b_zero_point C? y_scale? y_zero_point?",
    "Y",
    {"alpha": 1.0, "transA": 0, "transB": 0},
)
def qgemm(body: BodyBuilder) -> Sequence[str]:
    """QGemm: alpha * A' * B' + C of integers, quantized anew or as reals. Source: com.microsoft QGemm-1.

    C has the scale of the sums, so alpha is multiplied with both: as a part of the scale of A.
    """
    return [_quantized_gemm(body) if body.input(7) else _real_gemm(body)]


def _quantized_gemm(body: BodyBuilder) -> str:
    transposed = {name: body.node.integer(name, 0) for name in ("transA", "transB")}
    a_scale = _scaled_by(body, 1, body.constant(body.node.number("alpha", 1.0), "float32"))
    a = body.add("DequantizeLinear", body.input(0), a_scale, body.input(2))
    b = dequantized(body, 3, axis=0 if transposed["transB"] else 1)
    c = _addend(body, _scaled_by(body, 4, a_scale)) if body.input(6) else ""
    return quantized(body, body.add("Gemm", a, b, c, **transposed), 7)


def _real_gemm(body: BodyBuilder) -> str:
    a, b = (
        _transposed(body, position) if body.node.integer(name, 0) else body.input(position)
        for position, name in ((0, "transA"), (3, "transB"))
    )
    sums = body.add("MatMulInteger", a, b, body.input(2), body.input(5))
    if body.input(6):
        sums = body.add("Add", sums, body.input(6))
    scale = _scaled_by(body, 1, body.constant(body.node.number("alpha", 1.0), "float32"))
    return _scaled(body, sums, (scale, body.input(4)), "")


def _scaled_by(body: BodyBuilder, position: int, factor: str) -> str:
    """A scale times a factor; a constant if both are, as groups of quantized nodes need it."""
    known = body.constant_of(factor)
    if known is None or not body.inputs.knows(position):
        return body.add("Mul", factor, body.input(position))
    scale = known.reshape(-1) * body.inputs.contents(position).reshape(-1)
    return body.constant(scale.reshape(()) if scale.size == 1 else scale, "float32")


def _addend(body: BodyBuilder, scale: str) -> str:
    """C as reals; a constant row as a vector, which is what the bias of a quantized layer is."""
    if body.inputs.knows(3) and body.inputs.knows(6) and body.inputs.contents(6).shape[:-1] in ((), (1,)):
        units = body.inputs.width(3, 0 if body.node.integer("transB", 0) else 1) or 0
        if body.inputs.contents(6).size not in (1, units):
            raise body.invalid(
                f"has a C of {body.inputs.contents(6).size} elements; expected 1 or {units}, as many as B is wide"
            )
        return body.add(
            "DequantizeLinear",
            body.constant(np.broadcast_to(body.inputs.contents(6).reshape(-1), units), "int32"),
            scale,
            axis=0,
        )
    return body.add("Mul", body.add("Cast", body.input(6), to=onnx.TensorProto.FLOAT), scale)


def _transposed(body: BodyBuilder, position: int) -> str:
    if body.inputs.knows(position):
        return body.constant(body.inputs.contents(position).T, body.inputs.dtype(position))
    return body.add("Transpose", body.input(position), perm=(1, 0))
