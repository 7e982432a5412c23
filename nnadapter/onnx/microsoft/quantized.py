"""QLinear… ops: what ONNX's op on reals makes of dequantized values, quantized.

ONNX Runtime's kernels multiply by quotients of scales, or look results up in tables; they are one step away at most,
where a real lies in the middle between two integers.
"""

from __future__ import annotations

from collections.abc import Sequence

from nnadapter.onnx.body import BodyBuilder
from nnadapter.onnx.function_ops import function_op
from nnadapter.onnx.microsoft.axes import channels_first, channels_last
from nnadapter.onnx.microsoft.norms import reduced

_SOFTMAX_ALONG_AXIS = 13
"""The first opset in which Softmax is along one axis."""
_ONE_INPUT = "X X_scale X_zero_point? Y_scale Y_zero_point?"
_TWO_INPUTS = "A A_scale A_zero_point? B B_scale B_zero_point? C_scale C_zero_point?"


def dequantized(body: BodyBuilder, position: int, x: str = "", *, axis: int | None = None) -> str:
    """The reals of an input, whose scale and zero point follow it; or of `x`, which was made of that input."""
    inputs = (x or body.input(position), body.input(position + 1), body.input(position + 2))
    return body.add("DequantizeLinear", *inputs, axis=axis)


def quantized(body: BodyBuilder, real: str, position: int, like: int = 0) -> str:
    """Reals quantized by the scale at a position and the zero point behind it, 0 of the type of input `like`."""
    zero_point = body.input(position + 1) or body.constant(0, body.inputs.dtype(like))
    return body.add("QuantizeLinear", real, body.input(position), zero_point)


@function_op("QuantizeLinear", "x y_scale y_zero_point?", "y", {"axis": int})
def quantize_linear(body: BodyBuilder) -> Sequence[str]:
    """QuantizeLinear, to 16 bits too where the model's opset has no such. Source: com.microsoft QuantizeLinear-1."""
    return [body.add("QuantizeLinear", *map(body.input, range(3)), axis=body.node.integer("axis", 1))]


@function_op("DequantizeLinear", "x x_scale x_zero_point?", "y", {"axis": int})
def dequantize_linear(body: BodyBuilder) -> Sequence[str]:
    """DequantizeLinear, of 16 bits too. Source: com.microsoft DequantizeLinear-1."""
    return [body.add("DequantizeLinear", *map(body.input, range(3)), axis=body.node.integer("axis", 1))]


@function_op("QLinearAdd", _TWO_INPUTS, "C")
def qlinear_add(body: BodyBuilder) -> Sequence[str]:
    """QLinearAdd. Source: com.microsoft QLinearAdd-1."""
    return [quantized(body, body.add("Add", dequantized(body, 0), dequantized(body, 3)), 6)]


@function_op("QLinearMul", _TWO_INPUTS, "C")
def qlinear_mul(body: BodyBuilder) -> Sequence[str]:
    """QLinearMul. Source: com.microsoft QLinearMul-1."""
    return [quantized(body, body.add("Mul", dequantized(body, 0), dequantized(body, 3)), 6)]


@function_op("QLinearSigmoid", _ONE_INPUT, "Y")
def qlinear_sigmoid(body: BodyBuilder) -> Sequence[str]:
    """QLinearSigmoid. Source: com.microsoft QLinearSigmoid-1."""
    return [quantized(body, body.add("Sigmoid", dequantized(body, 0)), 3)]


@function_op("QLinearLeakyRelu", _ONE_INPUT, "Y", {"alpha": 0.01})
def qlinear_leaky_relu(body: BodyBuilder) -> Sequence[str]:
    """QLinearLeakyRelu. Source: com.microsoft QLinearLeakyRelu-1."""
    alpha = body.node.number("alpha", 0.01)
    return [quantized(body, body.add("LeakyRelu", dequantized(body, 0), alpha=alpha), 3)]


@function_op("QLinearSoftmax", _ONE_INPUT.removesuffix("?"), "Y", {"axis": -1, "opset": int}, required=["opset"])
def qlinear_softmax(body: BodyBuilder) -> Sequence[str]:
    """QLinearSoftmax, which means what Softmax means in the opset that it states.

    Before 13 that is over all axes from `axis` on together. Source: com.microsoft QLinearSoftmax-1.
    """
    rank, along_axis = body.inputs.rank(0), body.node.integer("opset") >= _SOFTMAX_ALONG_AXIS
    axis = body.node.integer("axis", -1)
    if along_axis or axis in (-1, rank - 1):
        return [quantized(body, body.add("Softmax", dequantized(body, 0), axis=axis), 3)]
    matrix = body.add("Flatten", body.input(0), axis=axis)
    made = quantized(body, body.add("Softmax", dequantized(body, 0, matrix), axis=-1), 3)
    sizes = [-1 if size is None else size for size in body.inputs.shape(0)]
    whole = body.add("Shape", body.input(0)) if sizes.count(-1) > 1 else body.constant(sizes)
    return [body.add("Reshape", made, whole)]


@function_op("QLinearConcat", "Y_scale Y_zero_point inputs...", "Y", {"axis": int}, required=["axis"])
def qlinear_concat(body: BodyBuilder) -> Sequence[str]:
    """QLinearConcat, whose scale and zero point stand before its inputs. Source: com.microsoft QLinearConcat-1."""
    count = len(body.node.inputs)
    if count % 3 != 2:
        raise body.invalid(f"has {count} inputs; expected two, and three for each tensor")
    parts = [dequantized(body, position) for position in range(2, count, 3)]
    return [quantized(body, body.add("Concat", *parts, axis=body.node.integer("axis")), 0, like=2)]


@function_op("QLinearWhere", "condition X x_scale x_zero_point Y y_scale y_zero_point z_scale z_zero_point", "Z")
def qlinear_where(body: BodyBuilder) -> Sequence[str]:
    """QLinearWhere, exact. Source: com.microsoft QLinearWhere-1."""
    chosen = body.add("Where", body.input(0), dequantized(body, 1), dequantized(body, 4))
    return [quantized(body, chosen, 7, like=1)]


_POOLING = {
    "auto_pad": "NOTSET",
    "ceil_mode": 0,
    "channels_last": 0,
    "count_include_pad": 0,
    "kernel_shape": list[int],
    "pads": list[int],
    "strides": list[int],
}


@function_op("QLinearAveragePool", _ONE_INPUT, "Y", _POOLING, required=["kernel_shape"])
def qlinear_average_pool(body: BodyBuilder) -> Sequence[str]:
    """QLinearAveragePool of either order of axes. Source: com.microsoft QLinearAveragePool-1.

    Refused: averages that count padding where the last window may reach beyond it. ONNX divides those by the places
    that are within, ONNX Runtime by all.
    """
    node = body.node
    if node.integer("ceil_mode", 0) and node.integer("count_include_pad", 0):
        raise body.unsupported("count_include_pad", "is 1 beside ceil_mode; expected one of both")
    attributes = {name: value for name, value in node.attributes.items() if name != "channels_last"}
    if not node.integer("channels_last", 0):
        return [quantized(body, body.add("AveragePool", dequantized(body, 0), **attributes), 3)]
    first = dequantized(body, 0, channels_first(body, body.input(0), body.inputs.rank(0)))
    made = quantized(body, body.add("AveragePool", first, **attributes), 3)
    return [channels_last(body, made, body.inputs.rank(0))]


@function_op("QLinearGlobalAveragePool", "X x_scale x_zero_point y_scale y_zero_point", "Y", {"channels_last": 0})
def qlinear_global_average_pool(body: BodyBuilder) -> Sequence[str]:
    """QLinearGlobalAveragePool of either order of axes. Source: com.microsoft QLinearGlobalAveragePool-1."""
    rank = body.inputs.rank(0)
    axes = range(1, rank - 1) if body.node.integer("channels_last", 0) else range(2, rank)
    return [quantized(body, reduced(body, "ReduceMean", dequantized(body, 0), axes), 3)]
