"""Transposes that keep the shape: the engine alone confuses the two layouts."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

import nnadapter as nna
from tests.models import numbers, parse, run_whole

pytest.importorskip("openvino")

PACKED = """<ir_version: 10, opset_import: ["" : 17]>
g (float[{batch}, {length}, {three}] x) => (float[{batch}, {length}, {width}] y)
<int64[5] packed = {{{batch}, {length}, 3, {heads}, {features}}}, int64[3] whole = {{{batch}, {length}, {width}}},
 int64[1] first = {{0}}> {{
    parted = Reshape (x, packed)
    turned = Transpose <perm = [2, 0, 3, 1, 4]> (parted)
    q5, k5, v5 = Split <axis = 0> (turned)
    q = Squeeze (q5, first)
    k4 = Squeeze (k5, first)
    v = Squeeze (v5, first)
    k = Transpose <perm = [0, 1, 3, 2]> (k4)
    product = MatMul (q, k)
    weights = Softmax <axis = -1> (product)
    mixed = MatMul (weights, v)
    back = Transpose <perm = [0, 2, 1, 3]> (mixed)
    y = Reshape (back, whole)
}}"""
SEPARATE = """<ir_version: 10, opset_import: ["" : 17]>
g (float[{batch}, {length}, {three}] x) => (float[{batch}, {length}, {width}] y)
<int64[4] parts = {{{batch}, {length}, {heads}, {features}}}, int64[3] whole = {{{batch}, {length}, {width}}}> {{
    a, b, c = Split <axis = -1> (x)
    qp = Reshape (a, parts)
    kp = Reshape (b, parts)
    vp = Reshape (c, parts)
    q = Transpose <perm = [0, 2, 1, 3]> (qp)
    k = Transpose <perm = [0, 2, 3, 1]> (kp)
    v = Transpose <perm = [0, 2, 1, 3]> (vp)
    product = MatMul (q, k)
    weights = Softmax <axis = -1> (product)
    mixed = MatMul (weights, v)
    some = Sigmoid (mixed)
    back = Transpose <perm = [0, 2, 1, 3]> (some)
    joined = Reshape (back, whole)
    y = Add (joined, a)
}}"""


@pytest.mark.parametrize("text", [PACKED, SEPARATE], ids=["packed", "separate"])
@pytest.mark.parametrize(("batch", "heads", "features"), [(1, 2, 4), (1, 4, 16), (3, 5, 5), (2, 8, 1), (4, 4, 4)])
def test_attention_with_as_many_heads_as_tokens(text, batch, heads, features):
    width = heads * features
    sizes = {"batch": batch, "length": heads, "heads": heads, "features": features, "width": width, "three": 3 * width}
    model, feed = parse(text.format(**sizes)), {"x": numbers(batch, heads, 3 * width)}
    (expected,) = run_whole(model, feed)
    with nna.InferenceSession(model, devices="openvino", options=nna.Options(fallback="forbid")) as session:
        for _ in range(2):
            np.testing.assert_allclose(session.run(None, feed)[0], expected, rtol=1e-4, atol=1e-5)


def test_shape_preserving_transpose_alone_is_refused():
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 17]> g (int32[1, 4, 4, 2] x) => (int32[1, 4, 4, 2] y) {
            t = Transpose <perm = [0, 2, 1, 3]> (x)
            y = Add (t, x)
        }"""
    )
    report = nna.partition_report(model, devices="openvino", options=nna.Options(fallback="allow"))
    refused = {node.op_type: node.refusals for node in report.nodes}
    assert "keeps the shape" in refused["Transpose"][0].detail
