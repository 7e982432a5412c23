"""Invalid nodes, and nodes that ONNX Runtime interprets in its own way: refused with a reason."""

from __future__ import annotations

import numpy as np
import pytest

from nnadapter.drivers import Reason
from tests.converters.microsoft.function_node import refusal
from tests.converters.microsoft.test_group_query import HEADS, inputs_of
from tests.converters.microsoft.test_quantized import integers
from tests.converters.single_node import floats

TABLE = [integers(6, 48), np.array([1]), floats(6, 3)]


@pytest.mark.parametrize("block_size", [-32, 0, 3, 8])
def test_invalid_block_sizes_are_refused(block_size):
    weights = [floats(2, 32), integers(3, 1, 16), floats(3, 1)]
    attributes = {"N": 3, "K": 32, "block_size": block_size}
    refusal("MatMulNBits", weights, attributes, constant=(1, 2))
    verdict = refusal("GatherBlockQuantized", TABLE, {"block_size": block_size}, constant=(0, 2))
    assert (
        verdict.reason is Reason.UNSUPPORTED_ATTRIBUTE and f"is {block_size}; expected a power of two" in verdict.detail
    )


@pytest.mark.parametrize("bits", [-4, 0, 3, 16])
def test_invalid_bit_widths_are_refused(bits):
    verdict = refusal("GatherBlockQuantized", TABLE, {"block_size": 32, "bits": bits}, constant=(0, 2))
    assert f"'bits' of GatherBlockQuantized is {bits}; expected 2, 4 or 8" in verdict.detail


@pytest.mark.parametrize(
    ("pairs", "positions", "attributes", "words"),
    [
        (0, [[0, 1]], {}, "0 columns in cos_cache"),
        (4, [[0, 1]], {"rotary_embedding_dim": 3, "num_heads": 1}, "'rotary_embedding_dim' 3"),
        (4, [[0, 1]], {"rotary_embedding_dim": 8}, "with 'rotary_embedding_dim' 8; expected 1 or more"),
        (4, [1, 2], {}, "expected one, the first token's"),
    ],
)
def test_rotary_embeddings(pairs, positions, attributes, words):
    inputs = [floats(1, 2, 8), np.array(positions), floats(4, pairs), floats(4, pairs)]
    assert words in refusal("RotaryEmbedding", inputs, attributes, constant=(2, 3)).detail


@pytest.mark.parametrize("total", [[], [-5], [0], [1], [9]])
def test_total_lengths_that_contradict_the_cache(total):
    inputs = inputs_of(1, 2, 3, rotary=False)
    inputs[6] = np.array(total, np.int32)
    verdict = refusal("GroupQueryAttention", inputs, HEADS, constant=(6,), outputs=3)
    assert verdict.reason is Reason.INVALID_NODE and "total_sequence_length" in verdict.detail


def test_a_window_without_keys():
    inputs = inputs_of(1, 2, 3, rotary=False)
    verdict = refusal("GroupQueryAttention", inputs, {**HEADS, "local_window_size": 0}, constant=(6,), outputs=3)
    assert "'local_window_size' of GroupQueryAttention is 0" in verdict.detail


@pytest.mark.parametrize("bias", [np.zeros(3, np.int32), np.zeros((1, 9), np.int32)])
def test_bias_of_wrong_width_is_refused(bias):
    scale, zero = np.float32(0.1), np.uint8(0)
    inputs = [integers(2, 8), scale, zero, integers(8, 4), scale, zero, bias, scale, zero]
    verdict = refusal("QGemm", inputs, {}, constant=range(1, 9))
    assert verdict.reason is Reason.INVALID_NODE and "expected 1 or 4" in verdict.detail


@pytest.mark.parametrize("mask", [[1, 2, 0, 0, 0], [1, 2, 3]])
def test_masks_without_one_length_per_text_are_refused(mask):
    inputs = [floats(2, 3, 8), floats(8, 24), floats(24), np.array(mask, np.int32)]
    verdict = refusal("Attention", inputs, {"num_heads": 2}, constant=(1, 2))
    assert verdict.reason is Reason.INVALID_NODE, "other reasons have its body tried, which is written with open sizes"
    assert f"{len(mask)} numbers for 2 sequences" in verdict.detail
