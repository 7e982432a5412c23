"""DynamicQuantizeLSTM: an LSTM whose weights are integers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnadapter.ir.derived import derived
from nnadapter.ir.operand import Array
from nnadapter.onnx.body import BodyBuilder
from nnadapter.onnx.function_ops import function_op

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
    """DynamicQuantizeLSTM: LSTM with its weights as reals, turned as ONNX has them.

    Inputs and states are not rounded to 8 bits before each product, as ONNX Runtime's kernel does to save time: the
    result is closer to that of the model before it was quantized. Source: com.microsoft DynamicQuantizeLSTM-1.
    """
    w, r = (body.constant(_weight(body, *positions), "float32") for positions in ((1, 8), (2, 10)))
    others = (body.input(position) for position in range(3, 8))
    return body.add_several("LSTM", [body.input(0), w, r, *others], 3, **body.node.attributes)


def _weight(body: BodyBuilder, position: int, scale_position: int) -> Array:
    weight, scale, zero_point = map(body.inputs.contents, (position, scale_position, scale_position + 1))
    sizes = (1, weight.shape[0], weight.shape[0] * weight.shape[-1]) if weight.ndim == 3 else ()
    if scale.size not in sizes or zero_point.size not in sizes:
        raise body.invalid(
            f"has {scale.size} scales and {zero_point.size} zero points for a weight of dimensions "
            f"{list(weight.shape)}; expected one for each direction, or for each column of it"
        )
    return derived(_dequantized_weight, weight, scale, zero_point)


def _dequantized_weight(weight: Array, scale: Array, zero_point: Array) -> Array:
    """[directions, K, 4 * units] of integers as [directions, 4 * units, K] of reals."""
    columns = (len(weight), 1, -1)
    scale, zero_point = (
        array.reshape(-1, 1, 1) if array.size <= len(weight) else array.reshape(columns)
        for array in (scale, zero_point)
    )
    reals = (weight.astype(np.float32) - zero_point.astype(np.float32)) * scale
    return np.ascontiguousarray(reals.transpose(0, 2, 1))
