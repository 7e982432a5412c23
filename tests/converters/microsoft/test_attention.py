from __future__ import annotations

import numpy as np
import pytest

from nnadapter.drivers import Reason
from nnadapter.ir.definition import by_definition
from tests.converters.microsoft.function_node import (
    check,
    converted,
    feeds_of,
    model_of,
    onnxruntime_results,
    refusal,
    written_out,
)
from tests.converters.single_node import floats

OPSETS = (13, 21)
"""ONNX Runtime's Attention of opset 23 refuses a mask that is the same for all queries."""
MASKS = {
    "none": None,
    "lengths": np.array([3, 1], np.int32),
    "keys": np.array([[1, 1, 0], [1, 0, 0]], np.int32),
    "nothing": np.array([[1, 1, 0], [0, 0, 0]], np.int32),
    "queries": np.tril(np.ones((2, 3, 3), np.int32)),
    "one for all": np.zeros((1, 1), np.int32),
    "one a text": np.array([[0], [1]], np.int32),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("unidirectional", [0, 1])
def test_attention(mask, unidirectional):
    inputs = [floats(2, 3, 8), floats(8, 24, seed=1), floats(24, seed=2), MASKS[mask]]
    tolerance = 2e-3 if mask == "nothing" else 2e-5
    check(
        "Attention",
        inputs[: 3 if mask == "none" else 4],
        {"num_heads": 2, "unidirectional": unidirectional},
        tolerance=tolerance,
        constant=[1, 2],
        opsets=OPSETS,
    )


@pytest.mark.parametrize("past", [0, 2])
@pytest.mark.parametrize("mask", [[3, 2, 1, 0], [3, 1]])
def test_mask_of_end_and_start_positions(past, mask):
    texts = len(mask) // 2
    inputs = [floats(texts, 3, 8), floats(8, 24, seed=1), floats(24, seed=2), np.array(mask, np.int32)]
    inputs += [floats(2, texts, 2, past, 4, seed=4)] if past else []
    check("Attention", inputs, {"num_heads": 2}, constant=[1, 2], outputs=2 if past else 1, opsets=OPSETS)


@pytest.mark.parametrize("texts", [1, 2, 3])
@pytest.mark.parametrize("op_type", ["Attention", "MultiHeadAttention"])
def test_mask_of_packed_sequences_has_key_lengths(op_type, texts):
    places = [*np.arange(texts + 1) * 3, *np.arange(texts + 1) * 5]
    mask = np.array([*range(2, 2 + texts), *places], np.int32)
    if op_type == "Attention":
        inputs, constant = [floats(texts, 3, 8), floats(8, 24, seed=1), floats(24, seed=2), mask], [1, 2]
    else:
        keys = [floats(texts, 5, 8, seed=seed) for seed in (1, 2)]
        inputs, constant = [floats(texts, 3, 8), *keys, None, mask], []
    check(op_type, inputs, {"num_heads": 2}, constant=constant, opsets=OPSETS)


def test_mask_with_wrong_number_of_lengths_is_refused():
    inputs = [floats(2, 3, 8), floats(8, 24, seed=1), floats(24, seed=2), np.array([1, 2, 3], np.int32)]
    verdict = refusal("Attention", inputs, {"num_heads": 2}, constant=[1, 2])
    assert verdict.reason is Reason.INVALID_NODE and "3 numbers for 2 sequences; expected 2, 4 or 8" in verdict.detail


def test_attention_with_different_widths_and_a_score_bias():
    inputs = [floats(2, 3, 8), floats(8, 20, seed=1), floats(20, seed=2), None, None, floats(2, 2, 3, 3, seed=3)]
    attributes = {"num_heads": 2, "qkv_hidden_sizes": [8, 8, 4], "scale": 0.3}
    check("Attention", inputs, attributes, constant=[1, 2], opsets=OPSETS)


@pytest.mark.parametrize("mask", [[[1, 1, 1, 1, 0], [0, 1, 1, 1, 1]], [5, 4]], ids=["keys", "lengths"])
@pytest.mark.parametrize("unidirectional", [0, 1])
def test_attention_with_a_past(unidirectional, mask):
    mask = np.array(mask, np.int32)
    inputs = [floats(2, 3, 8), floats(8, 24, seed=1), floats(24, seed=2), mask, floats(2, 2, 2, 2, 4, seed=4)]
    attributes = {"num_heads": 2, "unidirectional": unidirectional}
    check("Attention", inputs, attributes, constant=[1, 2], outputs=2, opsets=OPSETS)


@pytest.mark.parametrize("unidirectional", [0, 1])
def test_attention_with_a_past_of_no_elements(unidirectional):
    inputs = [floats(2, 3, 8), floats(8, 24, seed=1), floats(24, seed=2), None, floats(2, 2, 2, 0, 4)]
    attributes = {"num_heads": 2, "unidirectional": unidirectional}
    result = check("Attention", inputs, attributes, constant=[1, 2], outputs=2, opsets=OPSETS)
    read = {index for operation in result.model.operations for index in operation.inputs if index >= 0}
    assert all(0 not in result.model.operands[index].type.dimensions for index in read)


def test_attention_refusals():
    inputs = [floats(2, 3, 8), floats(8, 24, seed=1), floats(24, seed=2)]
    assert refusal("Attention", inputs, {"num_heads": 2, "do_rotary": 1}).reason is Reason.UNSUPPORTED_ATTRIBUTE
    assert "3 heads" in refusal("Attention", inputs, {"num_heads": 3}, constant=[1, 2]).detail


@pytest.mark.parametrize("heads_first", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_forms_of_multi_head_attention(heads_first, bias):
    key, value = floats(2, 5, 8, seed=1), floats(2, 5, 8, seed=2)
    if heads_first:
        key, value = (each.reshape(2, 5, 2, 4).swapaxes(1, 2).copy() for each in (key, value))
    inputs = [floats(2, 3, 8), key, value, *([floats(24, seed=3)] if bias else [])]
    check("MultiHeadAttention", inputs, {"num_heads": 2}, constant=[3] if bias else [], opsets=(13, 21, 23))


@pytest.mark.parametrize("packed", ["keys", "all"])
def test_packed_inputs_of_multi_head_attention(packed):
    """The CPU has no kernel for packed inputs; the oracle is the same node with unpacked inputs."""
    query, key, value = (floats(2, 5, 2, 4, seed=seed) for seed in range(3))
    apart = [each.reshape(2, 5, 8) for each in (query, key, value)]
    inputs = [apart[0], np.stack([key, value], 3)] if packed == "keys" else [np.stack([query, key, value], 3)]
    expected = onnxruntime_results(model_of("MultiHeadAttention", apart, {"num_heads": 2}), feeds_of(apart))
    model = model_of("MultiHeadAttention", inputs, {"num_heads": 2})
    conversion = converted(model, feeds_of(inputs))[1]
    (got,) = by_definition(conversion.model, inputs)
    np.testing.assert_allclose(got, expected[0], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    "mask", [None, np.array([4, 2], np.int32), np.array([[1, 1, 1, 0, 1], [1, 0, 0, 0, 0]], np.int32)]
)
@pytest.mark.parametrize("added", [False, True])
def test_masks_of_multi_head_attention(mask, added):
    inputs = [floats(2, 3, 8), floats(2, 5, 8, seed=1), floats(2, 5, 6, seed=2), None, mask]
    inputs += [floats(1, 2, 3, 5, seed=3)] if added else []
    check("MultiHeadAttention", inputs, {"num_heads": 2, "scale": 0.4}, opsets=OPSETS)


@pytest.mark.parametrize("unidirectional", [0, 1])
def test_multi_head_attention_with_a_past(unidirectional):
    query, key, value = (floats(2, 3, 8, seed=seed) for seed in range(3))
    inputs = [query, key, value, None, None, None, floats(2, 2, 4, 4, seed=3), floats(2, 2, 4, 4, seed=4)]
    attributes = {"num_heads": 2, "unidirectional": unidirectional}
    check("MultiHeadAttention", inputs, attributes, outputs=3, opsets=OPSETS)


def test_mask_lengths_include_past_and_new_keys():
    inputs = [floats(2, count, 8, seed=seed) for seed, count in enumerate((3, 5, 5))]
    inputs += [None, np.array([6, 2], np.int32), None, *(floats(2, 2, 4, 4, seed=seed) for seed in (3, 4))]
    check("MultiHeadAttention", inputs, {"num_heads": 2}, outputs=3, opsets=OPSETS)


@pytest.mark.parametrize("past", [0, 4])
@pytest.mark.parametrize("keys", [2, 3, 5])
def test_the_last_query_sees_all_keys_in_onnxruntime(keys, past):
    """Therefore, with more new keys than queries, its result contradicts the specification."""
    inputs = [floats(2, count, 8, seed=seed) for seed, count in enumerate((3, keys, keys))]
    inputs += [None, None, None, *(floats(2, 2, past, 4, seed=seed) for seed in (3, 4))] if past else []
    attributes, outputs = {"num_heads": 2, "unidirectional": 1}, 3 if past else 1
    if keys <= 3:
        check("MultiHeadAttention", inputs, attributes, opsets=(13, 21), outputs=outputs)
    else:
        verdict = refusal("MultiHeadAttention", inputs, attributes, outputs=outputs)
        assert "more keys than queries" in verdict.detail
        model = model_of("MultiHeadAttention", inputs, attributes, outputs=outputs)
        feeds = feeds_of(inputs)
        expected = onnxruntime_results(model, feeds)
        for got, want in zip(onnxruntime_results(written_out(model, feeds), feeds), expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
