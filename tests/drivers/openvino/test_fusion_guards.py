"""Compositions that the engine fuses wrongly, or that crash the process."""

from __future__ import annotations

import warnings

import numpy as np
from onnx import helper
from onnx.reference import ReferenceEvaluator

import nnadapter as nna
from nnadapter import InferenceSession
from nnadapter.drivers.openvino import compiler, fusion_workarounds, workarounds
from nnadapter.errors import FallbackWarning
from tests.models import parse

ATTENTION = "t = Transpose<perm=[0,1,3,2]>(x) u = MatMul(x, t) p = Softmax<axis=-1>(u) w = MatMul(p, x)"
QUANTIZATION = "float k = {3}, float s = {0.03}, int8 o = {0}"
CASES = {
    "casts to the same type": """g (float[2,3,4,6] x, float[4,6] b) => (float[2,3,4,6] y, float[4,6] t) {
        t = Cast<to = 1>(b) a = Add(x, t) y = Softmax(a) }""",
    "casts to the same type: without dimensions": """g (float[2,3] x, float b) => (float[2,3] y, float t) {
        t = Cast<to = 1>(b) y = Add(x, t) }""",
    "constants that enlarge": """g (float[1,4] x) => (float[3,4] y) <float[3,1] k = {1.7, 1.7, 1.7}> {
        a = Mul(x, k) s = Sigmoid(a) y = Mul(x, s) }""",
    "constants that enlarge: more dimensions": """g (float[2,3] x) => (float[1,1,2,3] y) <float[1,1,1,1] zero = {0}> {
        y = Max(x, zero) }""",
    "constants that enlarge: LeakyRelu": """g (float[1,4] x) => (float[3,4] y) <float[3,1] k = {0.1, 0.1, 0.1}> {
        a = Mul(x, k) y = Max(x, a) }""",
    "constants that enlarge: HardSwish": """g (float[2,3] x) => (float[1,2,3] y)
        <float[1,1,1] three = {3}, float zero = {0}, float six = {6}> {
        a = Add(x, three) b = Max(a, zero) c = Min(b, six) d = Mul(x, c) y = Div(d, six) }""",
    "constants that enlarge: Gelu": """g (float[2,3] x) => (float[1,2,3] y)
        <float root = {1.4142135}, float[1,1,1] one = {1}, float half = {0.5}> {
        a = Div(x, root) b = Erf(a) c = Add(b, one) d = Mul(x, c) y = Mul(d, half) }""",
    "constants that enlarge: dynamic": """g (float[n,4] x) => (float[m,4] y) <float[3,1] k = {1.7, 1.7, 1.7}> {
        a = Mul(x, k) s = Sigmoid(a) y = Mul(x, s) }""",
    "reductions that drop dimensions": """g (float[3,3] x) => (float[3,3] y)
        <float two = {2}, float small = {0.00001}> {
        p = Pow(x, two) m = ReduceMean<axes=[-1], keepdims=0>(p) a = Add(m, small) s = Sqrt(a) y = Div(x, s) }""",
    "reductions that drop dimensions: changes of shape that cancel each other": """
        g (float[3,3,3] x) => (float[3,3,3] y) <float two = {2}, float small = {0.1}, int64[1] n = {0}> {
        m = ReduceMean<axes=[-1], keepdims=0>(x) u = Unsqueeze(m, n) q = Squeeze(u, n) d = Sub(x, q)
        p = Pow(d, two) v = ReduceMean<axes=[-1]>(p) a = Add(v, small) s = Sqrt(a) y = Div(d, s) }""",
    "reductions that drop dimensions: Softmax": """g (float[3,3] x) => (float[3,3] y) <int64[1] axes = {-1}> {
        e = Exp(x) s = ReduceSum<keepdims=0>(e, axes) y = Div(e, s) }""",
    "gates of attention": f"""g (float[2,1,8,16] x, float[2,1,8,1] m) => (float[2,1,8,16] w, float[2,1,8,16] y) {{
        {ATTENTION} s = Sigmoid(m) a = Mul(m, s) y = Mul(w, a) }}""",
    "gates of attention: the gated value is read twice": f"""
        g (float[2,1,8,16] x, float[2,1,8,1] m) => (float[2,1,8,16] y, float[2,1,8,16] z) {{
        {ATTENTION} a = Relu(m) y = Mul(w, a) z = Tanh(y) }}""",
    "gates of attention: the gated value is read twice after an operator that changes nothing": f"""
        g (float[2,1,8,16] x, float[2,1,8,1] m) => (float[2,1,8,16] z) {{
        {ATTENTION} s = Sigmoid(m) a = Mul(m, s) y = Mul(w, a) c = Concat<axis = 0>(y) r = ReduceMean<axes=[-1]>(c)
        z = Mul(r, c) }}""",
    "gates of attention: a division by an input": f"""
        g (float[2,1,8,16] x, float[16] m) => (float[2,1,8,16] w, float[2,1,8,16] y) {{ {ATTENTION} y = Div(w, m) }}""",
    "gates of attention: weights after an operator that changes nothing": """
        g (float[4,4,4,4] x) => (float[4,4,4,4] y, float[4,4,4,4] z) <int64[4] n = {4, 4, 4, 4}> {
        t = Transpose<perm=[0,1,3,2]>(x) u = MatMul(x, t) p = Softmax<axis=-1>(u) e = Expand(p, n) w = MatMul(e, x)
        a = Relu(x) y = Add(w, a) z = Tanh(y) }""",
    "gates of attention: a gate without dimensions": f"""
        g (float[2,1,8,16] x, float m) => (float[2,1,8,16] w, float[2,1,8,16] y) {{
        {ATTENTION} s = Sigmoid(m) y = Mul(w, s) }}""",
    "gates of attention: the input itself, in float16": f"""
        g (float16[2,1,8,16] x) => (float16[2,1,8,16] y, float16[2,1,8,16] z) {{
        {ATTENTION} y = Add(w, x) z = Tanh(y) }}""",
    "gates of attention: a gate of more dimensions": """g (float[2,8,16] x, float[3,2,8,16] m) => (float[3,2,8,16] y) {
        t = Transpose<perm=[0,2,1]>(x) u = MatMul(x, t) p = Softmax(u) w = MatMul(p, x)
        s = Sigmoid(m) a = Mul(m, s) y = Mul(a, w) }""",
    "slopes of one dimension": """g (float[2,4,3,4] x) => (float[2,4,3,4] y) <float[4] k = {0.1, 0.2, 0.3, 0.4}> {
        n = Neg(x) a = Relu(n) b = Relu(x) c = Mul(k, a) y = Sub(b, c) }""",
    "rotary embeddings of another form": """g (float[2,1,3,4] x) => (float[2,1,3,4] y)
        <float[4] c = {0.1, 0.2, 0.3, 0.4}, float[4] s = {0.5, 0.6, 0.7, 0.8}, int64[2] h = {2, 2}> {
        a, b = Split<axis = 3>(x, h) n = Neg(a) r = Concat<axis = -1>(n, b)
        l = Mul(x, c) q = Mul(r, s) y = Add(l, q) }""",
    "rotary embeddings of another form: one number for a table": """g (float[2,3,4] x) => (float[2,3,4] y)
        <float c = {0.7}, float[4] s = {0.5, 0.6, 0.7, 0.8}, int64[2] h = {2, 2}> {
        a, b = Split<axis = 2>(x, h) n = Neg(b) r = Concat<axis = -1>(n, a)
        l = Mul(x, c) q = Mul(r, s) y = Add(l, q) }""",
    "computed factors of Swish": """g (float[2,5] x, float[1] k) => (float[2,5] y) {
        r = Abs(k) a = Mul(x, r) s = Sigmoid(a) y = Mul(x, s) }""",
    "computed factors of Swish: an input": """g (float[2,5] x, float[1] k) => (float[2,5] y) {
        a = Mul(x, k) s = Sigmoid(a) y = Mul(x, s) }""",
    "weights of another rank": """g (float[3,3,3] x, float[2,3,3,3] v) => (float[2,3,3,3] y) {
        t = Transpose<perm=[0,2,1]>(x) u = MatMul(x, t) p = Softmax(u) y = MatMul(p, v) }""",
    "products with one number": """g (float[6,4] x) => (float[6,1] y)
        <float[4,1] c = {1, 2, 3, 4}, float[1,1] k = {2}> { a = MatMul(x, c) r = Relu(a) y = MatMul(r, k) }""",
    "scales": f"""g (float[2,3,4] x) => (float[2,3,4] y, float[2,3,4] z)
        <{QUANTIZATION}, float[3] g = {{1, 2, 3}}> {{
        a = Mul(x, k) y = InstanceNormalization<epsilon = 0.1>(a, g, g)
        q = QuantizeLinear(x, s, o) d = DequantizeLinear(q, s, o) z = Add(d, k) }}""",
    "scales: layer norm of a dequantized value": f"""g (float[2,3,4] x) => (float[2,3,4] y)
        <{QUANTIZATION}, float two = {{2}}, float small = {{0.1}}, int64[1] axes = {{-1}}> {{
        q = QuantizeLinear(x, s, o) a = DequantizeLinear(q, s, o)
        m = ReduceMean(a, axes) b = Sub(a, m) p = Pow(b, two) v = ReduceMean(p, axes)
        c = Add(v, small) r = Sqrt(c) y = Div(b, r) }}""",
    "scales: Gather": f"""g (float[4,2,3] x) => (float[4,2,2,2] y, float[4,2,3] z)
        <{QUANTIZATION}, float[1,2,1] w = {{-1.7, 0.8}}, int64[2,2] i = {{-1, 1, 0, -2}}> {{
        a = Mul(x, w) y = Gather<axis = 2>(a, i)
        q = QuantizeLinear(x, s, o) d = DequantizeLinear(q, s, o) z = Add(d, k) }}""",
    "scales: length": f"""g (float[2,3,4] x) => (float[2,3,4] y, float[2,3,4] z)
        <{QUANTIZATION}, float small = {{0.1}}, int64[1] axes = {{1}}> {{
        a = Mul(x, k) p = Mul(a, a) v = ReduceSum(p, axes) c = Add(v, small) r = Sqrt(c) y = Div(a, r)
        q = QuantizeLinear(x, s, o) d = DequantizeLinear(q, s, o) z = Add(d, k) }}""",
}
"""Each name begins with the guard that it needs."""
FUSED = {
    "layer norm": """g (float[2,3,8] x) => (float[2,3,8] y) <float two = {2}, float small = {0.00001}> {
        m = ReduceMean<axes=[-1]>(x) d = Sub(x, m) p = Pow(d, two) v = ReduceMean<axes=[-1]>(p)
        a = Add(v, small) s = Sqrt(a) y = Div(d, s) }""",
    "gelu": """g (float[2,3,8] x) => (float[2,3,8] y) <float root = {1.4142135}, float one = {1}, float half = {0.5}> {
        a = Div(x, root) b = Erf(a) c = Add(b, one) d = Mul(x, c) y = Mul(d, half) }""",
    "swish": "g (float[2,3,8] x) => (float[2,3,8] y) { s = Sigmoid(x) y = Mul(x, s) }",
    "attention": f"g (float[2,1,8,16] x, float[2,1,8,16] m) => (float[2,1,8,16] y) {{ {ATTENTION} y = Add(w, m) }}",
    "rotary embedding": """g (float[2,1,3,4] x, float[1,1,3,4] c, float[1,1,3,4] s) => (float[2,1,3,4] y)
        <int64[2] h = {2, 2}> {
        a, b = Split<axis = 3>(x, h) n = Neg(b) r = Concat<axis = -1>(n, a)
        l = Mul(x, c) q = Mul(r, s) y = Add(l, q) }""",
}


def model_of(text):
    opset = 17 if "axes=[" in text else 21
    return parse(f'<ir_version: 10, opset_import: ["": {opset}]> {text}')


def check(name):
    model, numbers = model_of(CASES[name]), np.random.default_rng(0)
    feed = {
        value.name: numbers.standard_normal([d.dim_value or 1 for d in kind.shape.dim]).astype(
            helper.tensor_dtype_to_np_dtype(kind.elem_type)
        )
        for value in model.graph.input
        for kind in [value.type.tensor_type]
    }
    with warnings.catch_warnings(), InferenceSession(model, devices="openvino") as session:
        warnings.simplefilter("error", FallbackWarning)
        results = session.run(None, feed)
    for result, expected in zip(results, ReferenceEvaluator(model).run(None, feed), strict=True):
        tolerance = 1e-2 if expected.dtype == np.float16 else 1e-3
        np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance / 10, err_msg=name)


def test_guarded_compositions_equal_the_reference_evaluator():
    for name in CASES:
        check(name)


def test_usual_compositions_need_no_guard(monkeypatch):
    guarded = {name: _kinds(text) for name, text in FUSED.items()}
    monkeypatch.setattr(workarounds, "WORKAROUNDS", ())
    assert guarded == {name: _kinds(text) for name, text in FUSED.items()}


def _kinds(text):
    return [operator.get_type_name() for operator in compiler.read(model_of(text)).get_ordered_ops()]


def chain(count, *lines):
    """Build a chain of operators; `$` is the previous value."""
    values = ["x", *(f"v{at}" for at in range(count - 1)), "y"]
    nodes = " ".join(f"{values[at + 1]} = {lines[at % len(lines)].replace('$', values[at])}" for at in range(count))
    return model_of(f"g (float[4] x) => (float[4] y) {{ {nodes} }}")


def test_long_chain_is_divided():
    count = 4 * fusion_workarounds._LONGEST_CHAIN + 1
    model = compiler.read(chain(count, "Tanh($)", "Abs($)", "Sigmoid($)"))
    assert [operator.get_type_name() for operator in model.get_ordered_ops()].count("VariadicSplit") == 4


def test_long_chain_of_selections_is_divided():
    count = 2 * fusion_workarounds._LONGEST_CHAIN + 1
    nodes = " ".join(f"c{at} = Less(v{at}, w) v{at + 1} = Where(c{at}, v{at}, x)" for at in range(count))
    text = f"g (float[4] x, float[4] w) => (float[4] y) {{ v0 = Abs(x) {nodes} y = Abs(v{count}) }}"
    model = compiler.read(model_of(text))
    assert [operator.get_type_name() for operator in model.get_ordered_ops()].count("VariadicSplit") == 4


def test_long_chain_of_conditions_is_divided():
    count = 2 * fusion_workarounds._LONGEST_CHAIN + 1
    nodes = " ".join(f"v{at + 1} = Xor(v{at}, a)" for at in range(count))
    model = compiler.read(model_of(f"g (bool[4] a) => (bool[4] y) {{ v0 = Not(a) {nodes} y = Not(v{count}) }}"))
    assert [operator.get_type_name() for operator in model.get_ordered_ops()].count("VariadicSplit") == 2


def test_report_notes_divided_chains(tmp_path):
    model, feed = chain(2 * fusion_workarounds._LONGEST_CHAIN + 1, "Tanh($)"), {"x": np.ones(4, np.float32)}
    for _ in range(2):  # the second session reads the program from the cache
        with nna.InferenceSession(model, devices="openvino", options=nna.Options(cache_dir=tmp_path)) as session:
            session.run(None, feed)
            assert [
                note
                for note in session.report().notes
                if fusion_workarounds.DIVIDED_CHAINS in note and "2 steps" in note
            ]


def test_large_segment_is_cut_and_report_has_the_reason(monkeypatch):
    monkeypatch.setattr(compiler, "_MOST_NODES", 20)
    model, x = chain(50, "Tanh($)", "Abs($)"), np.float32([-1, 0, 1, 2])
    with nna.InferenceSession(model, devices="openvino", options=nna.Options(cache_dir=False)) as session:
        (result,) = session.run(None, {"x": x})
        report = session.report()
    assert [segment.device for segment in report.segments] == ["openvino"] * 4
    assert (
        report.search
        == "a segment was cut in two: a segment has 50 nodes, but OpenVINO compiles only up to 20 in linear time"
    )
    np.testing.assert_allclose(result, ReferenceEvaluator(model).run(None, {"x": x})[0], rtol=1e-4)
