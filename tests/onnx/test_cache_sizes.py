"""Typical sizes of models with a cache: one new token after the cached ones, under any dimension names."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnxruntime
import pytest

import nnadapter as nna
from nnadapter.candidates import random_feed

CACHED = 127
"""Tokens in the cache if no shape determines their number."""


def attention(ids="B,S", mask="B,T", past="B,4,P,4", names=("mask", "old_k", "old_v")):
    """Return one attention layer with a cache, with these dimensions and input names."""
    mask_name, key, value = names
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        g (int64[{ids}] tokens, int64[{mask}] {mask_name}, float[{past}] {key}, float[{past}] {value})
            => (float[B,4,S,4] y, float[B,4,K,4] new_key, float[B,4,K,4] new_value)
        <int64[4] split = {{0, 0, 4, 4}}, int64[2] axes = {{1, 2}}> {{
            rows = Gather (table, tokens)
            heads = Reshape (rows, split)
            new = Transpose <perm = [0, 2, 1, 3]> (heads)
            new_key = Concat <axis = -2> ({key}, new)
            new_value = Concat <axis = 2> ({value}, new)
            turned = Transpose <perm = [0, 1, 3, 2]> (new_key)
            scores = MatMul (new, turned)
            seen = Cast <to = 1> ({mask_name})
            seen4 = Unsqueeze (seen, axes)
            masked = Mul (scores, seen4)
            shares = Softmax (masked)
            y = MatMul (shares, new_value)
        }}""")
    for dimension in model.graph.input[1].type.tensor_type.shape.dim:
        dimension.dim_param = dimension.dim_param.replace("_plus_", " + ")  # text cannot express a sum
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((32, 16), np.float32), "table"))
    return model


@pytest.mark.parametrize(
    "model",
    [
        attention(),
        attention("batch,sequence", "batch,past_sequence_plus_1", "batch,4,past_sequence,4"),
        attention(mask="B,total", names=("seen_before", "past_key_0", "past_value_0")),
        attention("?,?", "?,?", "?,4,?,4", names=("attention_mask", "past_k", "past_v")),
    ],
    ids=["by structure", "by names of dimensions", "by names of inputs", "without names"],
)
def test_default_shapes_are_one_token_and_cache(model):
    report = nna.partition_report(model, "fake_npu")
    tokens, mask, key, value = report.input_shapes.values()
    assert (tokens, mask) == ((1, 1), (1, CACHED + 1))
    assert key == value == (1, 4, CACHED, 4)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert session.run(["y"], random_feed(model))[0].shape == (1, 4, 1, 4)


def test_given_shapes_determine_the_others():
    shapes = nna.partition_report(attention(), "fake_npu", {"tokens": (2, 5), "old_k": (2, 4, 9, 4)}).input_shapes
    assert shapes == {"tokens": (2, 5), "mask": (2, 14), "old_k": (2, 4, 9, 4), "old_v": (2, 4, 9, 4)}


def test_other_concat_is_no_cache():
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[N,3,H,W] left, float[N,3,H,W] right) => (float[N,3,H,V] y) {
            both = Concat <axis = 3> (left, right)
            y = Relu (both)
        }""")
    assert nna.partition_report(model, "fake_npu").input_shapes == {"left": (1, 3, 224, 224), "right": (1, 3, 224, 224)}


def test_report_names_assumed_sizes():
    report = nna.partition_report(attention(), "fake_npu", {"tokens": (1, 1)})
    assert report.notes == (
        "input 'mask' and 2 more of the model has dynamic dimensions: usual sizes are assumed; set others with --shape",
    )
    assert not nna.partition_report(attention(), "fake_npu", report.input_shapes).notes


def test_mask_has_a_row_per_new_token():
    """A four-dimensional mask has a row for each new token."""
    model = onnx.parser.parse_model("""
        <ir_version: 11, opset_import: ["" : 23]>
        g (float[B, S, 8] x, bool[B, 1, S, T] attention_mask, float[B, 2, P, 4] past_key, float[B, 2, P, 4] past_value)
            => (float[B, S, 8] y, float[B, 2, K, 4] key, float[B, 2, K, 4] value) {
            y, key, value = Attention <q_num_heads = 2, kv_num_heads = 2>
                (x, x, x, attention_mask, past_key, past_value)
        }""")
    report = nna.partition_report(model, "fake_npu")
    tokens, mask, *_ = report.input_shapes.values()
    assert (tokens, mask) == ((1, 1, 8), (1, 1, 1, CACHED + 1))


@pytest.mark.parametrize("mask", ["1, 1, S, T", "S, T"])
def test_attention_mask_covers_all_keys_under_any_name(mask):
    parts = ", ".join(f"float[1, 2, S, 4] {name}" for name in "qkv")
    model = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 24]>
        g ({parts}, bool[{mask}] seen, float[1, 2, P, 4] c, float[1, 2, P, 4] d)
            => (float[1, 2, S, 4] y, float[1, 2, K, 4] e, float[1, 2, K, 4] f) {{
            y, e, f = Attention (q, k, v, seen, c, d)
        }}""")
    shapes = nna.partition_report(model, "fake_npu").input_shapes
    assert shapes["c"] == (1, 2, CACHED, 4) and shapes["seen"][-1] == CACHED + 1
