"""Attention and embeddings of integers, as the quantizer makes them of what the optimizer fused."""

from __future__ import annotations

from nnadapter.onnx.body import BodyBuilder
from nnadapter.onnx.function_ops import function_op
from nnadapter.onnx.microsoft.attention import attended
from nnadapter.onnx.microsoft.normalization import first_rows, lengths
from nnadapter.onnx.microsoft.norms import layer_normalization
from nnadapter.onnx.microsoft.quantized_products import product_of_integers

_ABSENT = 9
"""A position behind all inputs."""


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
    """Attention whose queries, keys and values are a product of integers. Source: com.microsoft QAttention-1."""
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
    """EmbedLayerNormalization of tables of integers: rows are made reals after they are looked up.

    Source: com.microsoft QEmbedLayerNormalization-1.
    """
    ids = body.input(0)
    words = _dequantized_table(body, 0, body.add("Gather", body.input(2), ids))
    total = body.add("Add", words, _dequantized_table(body, 1, first_rows(body, body.input(3))))
    if body.input(1):
        total = body.add("Add", total, _dequantized_table(body, 2, body.add("Gather", body.input(4), body.input(1))))
    scale, bias = (_dequantized_table(body, table, body.input(2 + table)) for table in (3, 4))
    (made,) = layer_normalization(body, total, scale, bias, [-1], body.inputs.dtype())
    return made, lengths(body, body.input(7), ids) if body.wants(1) else ""


def _dequantized_table(body: BodyBuilder, table: int, integers: str) -> str:
    """Integers of a table, by its number, as reals."""
    return body.add("DequantizeLinear", integers, body.input(8 + table), body.input(13 + table))
