"""Recurrent layers, attention, losses and transforms whose input sizes change between runs."""

import numpy as np
import onnx
import onnxruntime
import pytest

import nnadapter as nna
from nnadapter.candidates import Conversions, converted, prepare
from nnadapter.ir import to_text
from nnadapter.onnx.preparation import specialize

LSTM = """
<ir_version: 8, opset_import: ["": 22]>
layer (float[t, b, 4] x, float[2, 12, 4] w, float[2, 12, 3] r, float[2, 24] bias, int32[b] lengths)
    => (float[t, 2, b, 3] y, float[2, b, 3] h) {
    y, h = LSTM <hidden_size = 3, direction = "bidirectional"> (x, w, r, bias, lengths)
}
"""
ATTENTION = """
<ir_version: 10, opset_import: ["": 23]>
step (float[b, s, 8] q, float[b, t, 4] k, float[b, t, 4] v, float[b, 2, p, 2] pk, float[b, 2, p, 2] pv)
    => (float[b, s, 8] y, float[b, 2, all, 2] nk, float[b, 2, all, 2] nv) {
    y, nk, nv = Attention <q_num_heads = 4, kv_num_heads = 2, is_causal = 1> (q, k, v, , pk, pv)
}
"""
NORMS = """
<ir_version: 10, opset_import: ["": 23]>
norms (float[b, c, n] x, float[n] scale) => (float[b, c, n] y) {
    a = RMSNormalization (x, scale)
    y = LpNormalization <axis = 1> (a)
}
"""
LOSS = """
<ir_version: 8, opset_import: ["": 13]>
loss (float[b, c, n] x, int64[b, n] t) => (float y, float[b, c, n] p) {
    y, p = SoftmaxCrossEntropyLoss <reduction = "sum"> (x, t)
}
"""
SPECTRUM = """
<ir_version: 10, opset_import: ["": 20]>
spectrum (float[b, n, 1] x) => (float[b, f, 9, 2] y, float[b, m, 2] z) {
    step = Constant <value_int = 5> ()
    length = Constant <value_int = 16> ()
    y = STFT (x, step, , length)
    z = DFT <onesided = 1> (x)
}
"""


def _lstm(t, b):
    return {"x": (t, b, 4), "w": (2, 12, 4), "r": (2, 12, 3), "bias": (2, 24), "lengths": (b,)}


def _attention(b, s, t, p):
    return {"q": (b, s, 8), "k": (b, t, 4), "v": (b, t, 4), "pk": (b, 2, p, 2), "pv": (b, 2, p, 2)}


CASES = {
    "lstm": (LSTM, [_lstm(*sizes) for sizes in [(5, 2), (7, 3), (2, 4), (9, 2)]]),
    "attention": (
        ATTENTION,
        [_attention(*sizes) for sizes in [(2, 3, 5, 6), (4, 3, 7, 6), (2, 2, 4, 9), (3, 5, 6, 2)]],
    ),
    "norms": (NORMS, [{"x": (b, c, n), "scale": (n,)} for b, c, n in [(2, 3, 4), (5, 2, 7), (3, 6, 2)]]),
    "loss": (LOSS, [{"x": (b, c, n), "t": (b, n)} for b, c, n in [(2, 3, 4), (5, 2, 7), (3, 6, 2)]]),
    "spectrum": (SPECTRUM, [{"x": (b, n, 1)} for b, n in [(2, 40), (3, 33), (2, 51)]]),
}


def _feeds(model, shapes):
    generator = np.random.default_rng(0)
    found = {}
    for value in model.graph.input:
        kind, shape = value.type.tensor_type.elem_type, shapes[value.name]
        whole = generator.integers(0, 2, shape).astype(onnx.helper.tensor_dtype_to_np_dtype(kind))
        found[value.name] = generator.standard_normal(shape, np.float32) if kind == onnx.TensorProto.FLOAT else whole
    return found


@pytest.mark.parametrize("name", CASES)
def test_one_template_serves_every_size(name):
    text, shapes = CASES[name]
    prepared = prepare(onnx.parser.parse_model(text))
    conversions = Conversions(prepared)
    for each in shapes:
        _, conversion = conversions.of(each)
        assert to_text(conversion.model) == to_text(converted(specialize(prepared, each)).model)
    assert len(conversions.templates) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_results_equal_onnx_runtime(name):
    text, shapes = CASES[name]
    model = onnx.parser.parse_model(text)
    session = nna.InferenceSession(model, devices="fake_npu", options=nna.Options(fallback="forbid"))
    reference = onnxruntime.InferenceSession(model.SerializeToString())
    for each in shapes:
        feeds = _feeds(model, each)
        for got, want in zip(session.run(None, feeds), reference.run(None, feeds), strict=True):
            np.testing.assert_allclose(got, want, rtol=3e-4, atol=3e-4)
