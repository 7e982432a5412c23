"""Verdicts of the `cpu` device on operators, including nested ones."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnxruntime
import pytest

import nnadapter as nna
from nnadapter.drivers import SUPPORTED, Reason, Supported
from nnadapter.drivers.onnxruntime import CpuContext, builtin_operators

QUIET = nna.Options(fallback="allow")
HEAD = '<ir_version: 10, opset_import: ["" : 17, "ai.onnx.ml" : 3, "acme" : 1, "own" : 1]>'
FUNCTION = '<domain: "own", opset_import: ["" : 17]> Twice (x) => (y) { y = Add (x, x) }'


def verdict_of(op_types):
    """Return the verdict on the last of some nodes."""
    body = "".join(f" v{at} = {op_type} (x)" for at, op_type in enumerate(op_types))
    model = onnx.parser.parse_model(f"{HEAD} g (float[1] x) => (float[1] v0) {{ {body} }} {FUNCTION}")
    return CpuContext().supported(model)[-1]


def conditional(*inner):
    branches = (f"{name} = b () => (float[1] r) {{ r = {op_type} (x) }}" for name, op_type in inner)
    return f"If <{', '.join(branches)}>"


@pytest.mark.parametrize(
    ("op_types", "reason"),
    [
        (["Relu"], None),
        (["Nothing"], Reason.UNSUPPORTED_OPERATION),
        (["acme.Relu"], Reason.UNSUPPORTED_DOMAIN),
        (["own.Twice"], None),
        (["ai.onnx.ml.Binarizer"], None),
        (["Relu", "acme.Relu", "Relu"], None),
        (["acme.Nothing", "Nothing"], Reason.UNSUPPORTED_OPERATION),
        ([conditional(("then_branch", "Relu"), ("else_branch", "own.Twice"))], None),
        ([conditional(("then_branch", "Relu"), ("else_branch", "acme.Relu"))], Reason.UNSUPPORTED_DOMAIN),
        ([conditional(("then_branch", "Nothing"), ("else_branch", "acme.Relu"))], Reason.UNSUPPORTED_OPERATION),
        ([conditional(("then_branch", conditional(("then_branch", "Nothing"))))], Reason.UNSUPPORTED_OPERATION),
    ],
)
def test_first_refusal_is_reported(op_types, reason):
    verdict = verdict_of(op_types)
    assert verdict == SUPPORTED if reason is None else not isinstance(verdict, Supported) and verdict.reason is reason


OWN_OPERATORS = [
    (13, "LayerNormalization<axis = -1>(h, s)"),
    (16, "LayerNormalization<axis = -1>(h, s)"),
    (13, "SimplifiedLayerNormalization<axis = -1>(h, s)"),
    (18, "SimplifiedLayerNormalization<axis = -1>(h, s)"),
    (8, "MeanVarianceNormalization(h)"),
    (9, "ThresholdedRelu<alpha = 0.5>(h)"),
    (9, "Affine<alpha = 2.0, beta = 1.0>(h)"),
    (9, "ParametricSoftplus<alpha = 2.0, beta = 1.0>(h)"),
    (9, "ScaledTanh<alpha = 2.0, beta = 0.5>(h)"),
    (9, "Crop<border = [1, 1, 1, 1]>(h)"),
    (13, "com.microsoft.Gelu(h)"),
    (17, "com.microsoft.FusedMatMul<alpha = 2.0>(h, h)"),
]
"""Operators of ONNX Runtime that ONNX lacks at these opsets, some written only by its optimizer."""


@pytest.mark.slow
@pytest.mark.parametrize(("opset", "node"), OWN_OPERATORS)
def test_operators_beyond_onnx_run_next_to_another_device(opset, node):
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : {opset}, "com.microsoft" : 1]>
        g (float[1, 2, 4, 4] x) => (float[a, b, c, d] y) <float[4] s = {{1, 2, 3, 4}}> {{
            h = Relu(x)
            z = {node}
            y = Relu(z)
        }}"""
    )
    feed = {"x": np.random.default_rng(0).standard_normal((1, 2, 4, 4)).astype(np.float32)}
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)
    with nna.InferenceSession(model, devices=["fake_npu", "cpu"]) as session:
        np.testing.assert_allclose(session.run(None, feed)[0], expected[0], 1e-5, 1e-6)
        assert session.provenance.steps[0].device == "fake_npu"


def test_kernels_of_builds_with_provider_libraries_are_not_listed(monkeypatch):
    """onnxruntime-gpu 1.31 would crash the process."""
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    monkeypatch.setattr(builtin_operators.native, "get_all_opkernel_def", lambda: pytest.fail("it was asked"))
    answers = [
        builtin_operators.has_operator(*operator)
        for operator in (("Nothing", 17), ("LayerNormalization", 14), ("Upsample", 17))
    ]
    assert answers == [False, True, False]


PACKED = {
    "queries, keys and values": ("float[b, l, 2, 3, 4] q", "(q)"),
    "keys and values": ("float[b, l, 8] q, float[b, s, 2, 2, 4] k", "(q, k)"),
}


def packed_attention(kind):
    inputs, read = PACKED[kind]
    head = '<ir_version: 10, opset_import: ["" : 17, "com.microsoft" : 1]>'
    return onnx.parser.parse_model(
        f"""{head} g ({inputs}) => (float[b, l, 8] y) {{
            a = com.microsoft.MultiHeadAttention <num_heads = 2> {read}
            y = Tanh (a)
        }}"""
    )


def attended(queries, keys, values):
    """Return attention of [batch, length, heads, features] inputs."""
    scores = np.einsum("bqhf,bkhf->bhqk", queries, keys) / np.sqrt(queries.shape[-1])
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = np.einsum("bhqk,bkhf->bqhf", weights / weights.sum(-1, keepdims=True), values)
    return np.tanh(mixed.reshape(*mixed.shape[:2], -1))


@pytest.mark.parametrize("kind", PACKED)
def test_ops_that_onnxruntime_loads_but_cannot_run_are_refused(kind):
    answers = CpuContext().supported(packed_attention(kind))
    assert answers[0].reason is Reason.UNSUPPORTED_OPERATION and kind in answers[0].detail
    assert answers[1] == SUPPORTED
    plain = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[b, l, 8] q) => (float[b, l, 8] y) { y = com.microsoft.MultiHeadAttention <num_heads = 2> (q, q, q) }"""
    )
    assert CpuContext().supported(plain) == [SUPPORTED]


@pytest.mark.sweep
@pytest.mark.parametrize("device", [("trial", {"only": ["TANH"]}), "openvino", "fake_npu"], ids=str)
@pytest.mark.parametrize("kind", PACKED)
def test_function_body_runs_if_no_device_supports_the_op(kind, device):
    """The device may also support the entire body; some lengths equal the number of heads."""
    generator = np.random.default_rng(0)
    for order in ([(1, 2), (1, 1), (2, 2), (1, 3)], [(1, 1), (1, 2), (2, 3), (1, 7), (3, 5), (2, 2), (1, 2)]):
        with nna.InferenceSession(packed_attention(kind), devices=device, options=QUIET) as session:
            for batch, length in order:
                parts = generator.standard_normal((batch, length, 2, 3, 4), np.float32)
                packed, queries = generator.standard_normal((batch, length, 2, 2, 4), np.float32), parts[:, :, :, 0]
                if kind == "keys and values":
                    feed = {"q": queries.reshape(batch, length, 8), "k": packed}
                    keys, values = packed[:, :, :, 0], packed[:, :, :, 1]
                else:
                    feed, keys, values = {"q": parts}, parts[:, :, :, 1], parts[:, :, :, 2]
                expected = attended(queries, keys, values)
                np.testing.assert_allclose(session.run(None, feed)[0], expected, rtol=1e-4, atol=1e-5)
            assert device != "openvino" or session.report().plans.in_cache == 1
