"""Attention and RotaryEmbedding, expanded into supported ops: one plan for a growing cache."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnxruntime

from nnadapter import InferenceSession
from tests.every import for_every_value

HEADS = {"one for each": 2, "shared": 1}
SIZES = ((3, 0), (1, 3), (2, 4), (1, 6))
"""Numbers of new and cached keys."""
MASKS = {
    "none": ("", ""),
    "bool": (", bool[S, T] m", "m"),
    "bool of heads": (", bool[B, 2, S, T] m", "m"),
    "float": (", float[B, 1, S, T] m", "m"),
}
ATTRIBUTES = ("is_causal = 0", "is_causal = 1", "is_causal = 1, softcap = 2.0, scale = 0.3", "softmax_precision = 1")


def checked(text):
    model = onnx.parser.parse_model(text)
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    return onnx.shape_inference.infer_shapes(model)


def check(model, feeds):
    oracle = onnxruntime.InferenceSession(model.SerializeToString())
    with InferenceSession(model, devices="openvino") as session:
        for feed in feeds:
            for result, expected in zip(session.run(None, feed), oracle.run(None, feed), strict=True):
                np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
        assert "cpu" not in {node.device for node in session.report().nodes}
        return session.report()


def mask_of(kind, numbers, sizes):
    if kind == "float":
        return np.where(numbers.random(sizes) < 0.3, -np.inf, numbers.standard_normal(sizes)).astype(np.float32)
    visible = numbers.random(sizes) < 0.7
    visible[..., 0] = True
    return visible


@for_every_value(heads=HEADS, mask=MASKS, attributes=ATTRIBUTES, opset=(23, 24))
def test_attention_over_a_growing_cache(heads, mask, attributes, opset):
    groups, (declared, read) = HEADS[heads], MASKS[mask]
    model = checked(f"""<ir_version: 11, opset_import: ["": {opset}]>
    g (float[B, 2, S, 4] q, float[B, {groups}, S, 4] k, float[B, {groups}, S, 6] v{declared},
       float[B, {groups}, P, 4] pk, float[B, {groups}, P, 6] pv) => (float y, float nk, float nv)
    {{ y, nk, nv = Attention<{attributes}>(q, k, v, {read}, pk, pv) }}""")
    numbers, feeds = np.random.default_rng(0), []
    for added, past in SIZES:
        shapes = {"q": (2, added, 4), "k": (groups, added, 4), "v": (groups, added, 6)}
        shapes |= {"pk": (groups, past, 4), "pv": (groups, past, 6)}
        feed = {name: numbers.standard_normal((2, *shape)).astype(np.float32) for name, shape in shapes.items()}
        lead = {"bool": (), "bool of heads": (2, 2), "float": (2, 1)}.get(mask)
        if lead is not None:
            feed["m"] = mask_of(mask, numbers, (*lead, added, added + past))
            feed["m"][..., 0] = 1
        feeds.append(feed)
    assert check(model, feeds).plans.compiled <= 3


def test_fully_masked_queries_return_0():
    model = checked("""<ir_version: 11, opset_import: ["": 24]>
    g (float[1, 2, S, 4] q, float[1, 2, T, 4] k, float[1, 2, T, 4] v, bool[S, T] m) => (float y)
    { y = Attention(q, k, v, m) }""")
    with InferenceSession(model, devices="openvino") as session:
        for steps in (2, 3):
            feed = {name: np.ones((1, 2, steps, 4), np.float32) for name in "qkv"}
            feed["m"] = np.arange(steps)[:, None] > np.zeros(steps)
            (result,) = session.run(None, feed)
            assert (result[:, :, 0] == 0).all()
            np.testing.assert_allclose(result[:, :, 1:], 1)


def test_rank_3_attention_with_key_lengths():
    model = checked("""<ir_version: 11, opset_import: ["": 24]>
    g (float[B, S, 8] q, float[B, T, 4] k, float[B, T, 4] v, int64[B] n) => (float y)
    { y = Attention<q_num_heads = 4, kv_num_heads = 2, is_causal = 1>(q, k, v, , , , n) }""")
    numbers, feeds = np.random.default_rng(0), []
    for steps, keys in ((2, 5), (1, 7), (3, 4)):
        feed = {name: numbers.standard_normal((2, keys, 4)).astype(np.float32) for name in "kv"}
        feed |= {"q": numbers.standard_normal((2, steps, 8)).astype(np.float32), "n": np.array([steps, keys])}
        feeds.append(feed)
    check(model, feeds)


@for_every_value(
    attributes=("interleaved = 0", "interleaved = 1", "rotary_embedding_dim = 4"),
    inputs=("float[B, 3, S, 8] x", "float[B, S, 24] x"),
    positions=(True, False),
)
def test_rotary_embeddings(attributes, inputs, positions):
    pairs, packed = 2 if "dim" in attributes else 4, "24" in inputs
    table, read = (f"float[9, {pairs}]", "p") if positions else (f"float[B, S, {pairs}]", "")
    stated = attributes + (", num_heads = 3" if packed else "")
    model = checked(f"""<ir_version: 11, opset_import: ["": 23]>
    g ({inputs}, {table} c, {table} s{", int64[B, S] p" if positions else ""}) => (float y)
    {{ y = RotaryEmbedding<{stated}>(x, c, s{", p" if read else ""}) }}""")
    numbers, feeds = np.random.default_rng(0), []
    for steps in (4, 1, 5):
        size = (9, pairs) if positions else (2, steps, pairs)
        feed = {name: numbers.standard_normal(size).astype(np.float32) for name in "cs"}
        feed["x"] = numbers.standard_normal((2, steps, 24) if packed else (2, 3, steps, 8)).astype(np.float32)
        feeds.append(feed | ({"p": numbers.integers(0, 9, (2, steps))} if positions else {}))
    check(model, feeds)
