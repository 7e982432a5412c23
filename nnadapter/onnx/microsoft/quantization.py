"""Bodies of quantized ops: dequantize, compute in reals, quantize.

ONNX Runtime uses quotients of scales or lookup tables, so results may differ by one step where a real is halfway
between integers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from nnadapter.ir.derived import derived
from nnadapter.ir.operand import Array
from nnadapter.onnx.body import BodyBuilder, channels_first, channels_last, function_op
from nnadapter.onnx.microsoft.attention import attended
from nnadapter.onnx.microsoft.normalization import first_rows, layer_normalization, lengths, mean_of

_SOFTMAX_ALONG_AXIS = 13
"""First opset with Softmax along a single axis."""
_ONE_INPUT = "X X_scale X_zero_point? Y_scale Y_zero_point?"
_TWO_INPUTS = "A A_scale A_zero_point? B B_scale B_zero_point? C_scale C_zero_point?"


def dequantized(body: BodyBuilder, position: int, x: str = "", *, axis: int | None = None) -> str:
    """Dequantize `x`, by default input `position`, by the scale and zero point in the two inputs after `position`."""
    inputs = (x or body.input(position), body.input(position + 1), body.input(position + 2))
    return body.DequantizeLinear(*inputs, axis=axis)


def quantized(body: BodyBuilder, real: str, position: int, like: int = 0) -> str:
    """Quantize by the scale at `position` and the zero point after it, which defaults to 0 of input `like`'s type."""
    zero_point = body.input(position + 1) or body.constant(0, body.dtype(like))
    return body.QuantizeLinear(real, body.input(position), zero_point)


@function_op("QuantizeLinear", "x y_scale y_zero_point?", "y", {"axis": int})
def quantize_linear(body: BodyBuilder) -> Sequence[str]:
    """Expand com.microsoft QuantizeLinear-1, also to 16 bits."""
    return [body.QuantizeLinear(*map(body.input, range(3)), axis=body.node.integer("axis", 1))]


@function_op("DequantizeLinear", "x x_scale x_zero_point?", "y", {"axis": int})
def dequantize_linear(body: BodyBuilder) -> Sequence[str]:
    """Expand com.microsoft DequantizeLinear-1, also from 16 bits."""
    return [body.DequantizeLinear(*map(body.input, range(3)), axis=body.node.integer("axis", 1))]


@function_op("QLinearAdd", _TWO_INPUTS, "C")
def qlinear_add(body: BodyBuilder) -> Sequence[str]:
    """Expand com.microsoft QLinearAdd-1."""
    return [quantized(body, body.Add(dequantized(body, 0), dequantized(body, 3)), 6)]


@function_op("QLinearMul", _TWO_INPUTS, "C")
def qlinear_mul(body: BodyBuilder) -> Sequence[str]:
    """Expand com.microsoft QLinearMul-1."""
    return [quantized(body, body.Mul(dequantized(body, 0), dequantized(body, 3)), 6)]


@function_op("QLinearSigmoid", _ONE_INPUT, "Y")
def qlinear_sigmoid(body: BodyBuilder) -> Sequence[str]:
    """Expand com.microsoft QLinearSigmoid-1."""
    return [quantized(body, body.Sigmoid(dequantized(body, 0)), 3)]


@function_op("QLinearLeakyRelu", _ONE_INPUT, "Y", {"alpha": 0.01})
def qlinear_leaky_relu(body: BodyBuilder) -> Sequence[str]:
    """Expand com.microsoft QLinearLeakyRelu-1."""
    alpha = body.node.number("alpha")
    return [quantized(body, body.LeakyRelu(dequantized(body, 0), alpha=alpha), 3)]


@function_op("QLinearSoftmax", _ONE_INPUT.removesuffix("?"), "Y", {"axis": -1, "opset": int}, required=["opset"])
def qlinear_softmax(body: BodyBuilder) -> Sequence[str]:
    """Expand com.microsoft QLinearSoftmax-1, with the meaning of Softmax in the opset of attribute `opset`.

    Before opset 13, Softmax is over all axes from `axis` on together.
    """
    rank, along_axis = body.rank(0), body.node.integer("opset") >= _SOFTMAX_ALONG_AXIS
    axis = body.node.integer("axis")
    if along_axis or axis in (-1, rank - 1):
        return [quantized(body, body.Softmax(dequantized(body, 0), axis=axis), 3)]
    matrix = body.Flatten(body.input(0), axis=axis)
    result = quantized(body, body.Softmax(dequantized(body, 0, matrix), axis=-1), 3)
    sizes = [-1 if size is None else size for size in body.shape(0)]
    full_shape = body.Shape(body.input(0)) if sizes.count(-1) > 1 else body.constant(sizes)
    return [body.Reshape(result, full_shape)]


@function_op("QLinearConcat", "Y_scale Y_zero_point inputs...", "Y", {"axis": int}, required=["axis"])
def qlinear_concat(body: BodyBuilder) -> Sequence[str]:
    """Expand com.microsoft QLinearConcat-1."""
    count = len(body.node.inputs)
    if count % 3 != 2:
        raise body.invalid(f"has {count} inputs; expected Y_scale, Y_zero_point, and three inputs for each tensor")
    parts = [dequantized(body, position) for position in range(2, count, 3)]
    return [quantized(body, body.Concat(*parts, axis=body.node.integer("axis")), 0, like=2)]


@function_op("QLinearWhere", "condition X x_scale x_zero_point Y y_scale y_zero_point z_scale z_zero_point", "Z")
def qlinear_where(body: BodyBuilder) -> Sequence[str]:
    """Expand com.microsoft QLinearWhere-1."""
    chosen = body.Where(body.input(0), dequantized(body, 1), dequantized(body, 4))
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
    """Expand com.microsoft QLinearAveragePool-1.

    Refused: `count_include_pad` with `ceil_mode`. If the last window exceeds the padding, ONNX divides by the covered
    elements, ONNX Runtime by all.
    """
    node = body.node
    if node.integer("ceil_mode") and node.integer("count_include_pad"):
        raise body.unsupported("count_include_pad", "is 1 although ceil_mode is 1; expected at most one of the two")
    attributes = {name: value for name, value in node.attributes.items() if name != "channels_last"}
    if not node.integer("channels_last"):
        return [quantized(body, body.AveragePool(dequantized(body, 0), **attributes), 3)]
    first = dequantized(body, 0, channels_first(body))
    pooled = quantized(body, body.AveragePool(first, **attributes), 3)
    return [channels_last(body, pooled)]


@function_op("QLinearGlobalAveragePool", "X x_scale x_zero_point y_scale y_zero_point", "Y", {"channels_last": 0})
def qlinear_global_average_pool(body: BodyBuilder) -> Sequence[str]:
    """Expand com.microsoft QLinearGlobalAveragePool-1."""
    rank = body.rank(0)
    axes = range(1, rank - 1) if body.node.integer("channels_last") else range(2, rank)
    return [quantized(body, mean_of(body, dequantized(body, 0), axes), 3)]


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
    """Expand com.microsoft QLinearConv-1; filters are always channels-first."""
    attributes = {name: value for name, value in body.node.attributes.items() if name != "channels_last"}
    x, *other_inputs = map(body.input, range(9))
    if not body.node.integer("channels_last"):
        return [body.QLinearConv(x, *other_inputs, **attributes)]
    return [channels_last(body, body.QLinearConv(channels_first(body), *other_inputs, **attributes))]


@function_op("NhwcMaxPool", "x", "y", {**_WINDOW, "ceil_mode": 0}, required=["kernel_shape"])
def nhwc_max_pool(body: BodyBuilder) -> Sequence[str]:
    """Expand com.microsoft NhwcMaxPool-1."""
    return [channels_last(body, body.MaxPool(channels_first(body), **body.node.attributes))]


@function_op("MatMulIntegerToFloat", "A B a_scale b_scale a_zero_point? b_zero_point? bias?", "Y")
def mat_mul_integer_to_float(body: BodyBuilder) -> Sequence[str]:
    """Expand com.microsoft MatMulIntegerToFloat-1."""
    return [product_of_integers(body, *map(body.input, range(7)))]


def product_of_integers(
    body: BodyBuilder, a: str, b: str, a_scale: str, b_scale: str, a_zero_point: str, b_zero_point: str, bias: str
) -> str:
    """Add MatMulInteger, scale its sums to floats, and add the bias; zero points and bias may be empty."""
    return _scaled(body, body.MatMulInteger(a, b, a_zero_point, b_zero_point), (a_scale, b_scale), bias)


@function_op("DynamicQuantizeMatMul", "A B b_scale b_zero_point? bias?", "Y")
def dynamic_quantize_mat_mul(body: BodyBuilder) -> Sequence[str]:
    """Expand com.microsoft DynamicQuantizeMatMul-1."""
    a, b, b_scale, b_zero_point, bias = map(body.input, range(5))
    integers, scale, zero_point = body.add_several("DynamicQuantizeLinear", [a], 3)
    return [_scaled(body, body.MatMulInteger(integers, b, zero_point, b_zero_point), (scale, b_scale), bias)]


def _scaled(body: BodyBuilder, sums: str, scales: tuple[str, str], bias: str) -> str:
    factor = body.Mul(*scales)
    product = body.Mul(body.Cast(sums, to=onnx.TensorProto.FLOAT), factor)
    return body.plus(product, bias)


@function_op(
    "QGemm",
    "A a_scale a_zero_point B b_scale b_zero_point C? y_scale? y_zero_point?",
    "Y",
    {"alpha": 1.0, "transA": 0, "transB": 0},
)
def qgemm(body: BodyBuilder) -> Sequence[str]:
    """Expand com.microsoft QGemm-1.

    Unlike in Gemm, alpha also scales C, so it is multiplied into the scale of A.
    """
    return [_quantized_gemm(body) if body.input(7) else _real_gemm(body)]


def _quantized_gemm(body: BodyBuilder) -> str:
    transposed = {name: body.node.integer(name) for name in ("transA", "transB")}
    a_scale = _scaled_by(body, 1, body.constant(body.node.number("alpha"), "float32"))
    a = body.DequantizeLinear(body.input(0), a_scale, body.input(2))
    b = dequantized(body, 3, axis=0 if transposed["transB"] else 1)
    c = _addend(body, _scaled_by(body, 4, a_scale)) if body.input(6) else ""
    return quantized(body, body.Gemm(a, b, c, **transposed), 7)


def _real_gemm(body: BodyBuilder) -> str:
    a, b = (
        _transposed(body, position) if body.node.integer(name) else body.input(position)
        for position, name in ((0, "transA"), (3, "transB"))
    )
    sums = body.plus(body.MatMulInteger(a, b, body.input(2), body.input(5)), body.input(6))
    scale = _scaled_by(body, 1, body.constant(body.node.number("alpha"), "float32"))
    return _scaled(body, sums, (scale, body.input(4)), "")


def _scaled_by(body: BodyBuilder, position: int, factor: str) -> str:
    """Multiply the scale at `position` by `factor`; two constants yield a constant, which quantized fusion needs."""
    known_factor = body.constant_of(factor)
    if known_factor is None or not body.knows(position):
        return body.Mul(factor, body.input(position))
    scale = known_factor.reshape(-1) * body.contents(position).reshape(-1)
    return body.constant(scale.reshape(()) if scale.size == 1 else scale, "float32")


def _addend(body: BodyBuilder, scale: str) -> str:
    """Dequantize C by `scale`; a constant row or scalar becomes a vector, like a bias."""
    if body.knows(3) and body.knows(6) and body.contents(6).shape[:-1] in ((), (1,)):
        units = body.width(3, 0 if body.node.integer("transB") else 1) or 0
        if body.contents(6).size not in (1, units):
            raise body.invalid(
                f"has a C of {body.contents(6).size} elements; expected 1 or {units}, the width of the output"
            )
        return body.DequantizeLinear(
            body.constant(np.broadcast_to(body.contents(6).reshape(-1), units), "int32"),
            scale,
            axis=0,
        )
    return body.Mul(body.Cast(body.input(6), to=onnx.TensorProto.FLOAT), scale)


def _transposed(body: BodyBuilder, position: int) -> str:
    if body.knows(position):
        return body.constant(body.contents(position).T, body.dtype(position))
    return body.Transpose(body.input(position), perm=(1, 0))


_ABSENT = 9


@function_op(
    "QAttention",
    "input weight bias input_scale weight_scale mask_index? input_zero_point? weight_zero_point? past?",
    "output present?",
    {
        "do_rotary": int,
        "mask_filter_value": float,
        "num_heads": int,
        "past_present_share_buffer": int,
        "scale": float,
        "unidirectional": 0,
    },
    required=("num_heads",),
)
def qattention_body(body: BodyBuilder) -> tuple[str, ...]:
    """Expand com.microsoft QAttention-1."""
    inputs = map(body.input, (0, 1, 3, 4, 6, 7, 2))
    return attended(body, product_of_integers(body, *inputs), mask=5, past=8, bias=_ABSENT)


@function_op(
    "QEmbedLayerNormalization",
    "input_ids segment_ids? word_embedding_quant position_embedding_quant segment_embedding? gamma_quant beta_quant "
    "mask? word_embedding_scale position_embedding_scale segment_embedding_scale? gamma_scale beta_scale "
    "word_embedding_zero_point position_embedding_zero_point segment_embedding_zero_point? gamma_zero_point "
    "beta_zero_point",
    "layernorm_out mask_index_out",
    {"epsilon": 1e-12},
)
def qembed_layer_normalization_body(body: BodyBuilder) -> tuple[str, ...]:
    """Expand com.microsoft QEmbedLayerNormalization-1; rows are dequantized after lookup."""
    ids = body.input(0)
    words = _dequantized_table(body, 0, body.Gather(body.input(2), ids))
    total = body.Add(words, _dequantized_table(body, 1, first_rows(body, body.input(3))))
    if body.input(1):
        total = body.Add(total, _dequantized_table(body, 2, body.Gather(body.input(4), body.input(1))))
    scale, bias = (_dequantized_table(body, table, body.input(2 + table)) for table in (3, 4))
    (normalized,) = layer_normalization(body, total, scale, bias, [-1], body.dtype())
    return normalized, lengths(body, body.input(7), ids) if body.wants(1) else ""


def _dequantized_table(body: BodyBuilder, table: int, integers: str) -> str:
    return body.DequantizeLinear(integers, body.input(8 + table), body.input(13 + table))


_ATTRIBUTES = {
    "activation_alpha": list[float],
    "activation_beta": list[float],
    "activations": list[str],
    "clip": float,
    "direction": "forward",
    "hidden_size": int,
    "input_forget": 0,
}
_INPUTS = "X W R B? sequence_lens? initial_h? initial_c? P? W_scale W_zero_point R_scale R_zero_point"


@function_op("DynamicQuantizeLSTM", _INPUTS, "Y? Y_h? Y_c?", _ATTRIBUTES)
def dynamic_quantize_lstm(body: BodyBuilder) -> Sequence[str]:
    """Expand com.microsoft DynamicQuantizeLSTM-1: LSTM with dequantized weights.

    ONNX Runtime also rounds inputs and states to 8 bits, so the body is closer to the original model.
    """
    w, r = (body.constant(_weight(body, *positions), "float32") for positions in ((1, 8), (2, 10)))
    other_inputs = map(body.input, range(3, 8))
    return body.add_several("LSTM", [body.input(0), w, r, *other_inputs], 3, **body.node.attributes)


def _weight(body: BodyBuilder, position: int, scale_position: int) -> Array:
    weight, scale, zero_point = map(body.contents, (position, scale_position, scale_position + 1))
    sizes = (1, weight.shape[0], weight.shape[0] * weight.shape[-1]) if weight.ndim == 3 else ()
    if scale.size not in sizes or zero_point.size not in sizes:
        raise body.invalid(
            f"has {scale.size} scales and {zero_point.size} zero points for a weight of dimensions "
            f"{list(weight.shape)}; expected one of each, or one per direction, or per column of it"
        )
    return derived(_dequantized_weight, weight, scale, zero_point)


def _dequantized_weight(weight: Array, scale: Array, zero_point: Array) -> Array:
    """Return real weights [directions, 4 * units, K] from integers [directions, K, 4 * units]."""
    columns = (len(weight), 1, -1)
    scale, zero_point = (
        array.reshape(-1, 1, 1) if array.size <= len(weight) else array.reshape(columns)
        for array in (scale, zero_point)
    )
    reals = (weight.astype(np.float32) - zero_point.astype(np.float32)) * scale
    return np.ascontiguousarray(reals.transpose(0, 2, 1))
