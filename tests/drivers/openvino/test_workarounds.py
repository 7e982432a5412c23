"""Workarounds: the engine alone still fails a minimal model of each.

A failing test means that its row can be deleted.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial

import numpy as np
import onnx.helper
import onnx.parser
import onnxruntime
import pytest

from nnadapter.drivers.openvino import WORKAROUNDS, compiler, engine, program, workarounds
from nnadapter.errors import NNAdapterError
from tests.drivers.openvino import test_fusion_guards
from tests.drivers.openvino.harness import context, read_only

QUANTIZED = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) f = DequantizeLinear(w, h)"
RANDOM = ", ".join(map(str, np.random.default_rng(1).integers(-40, 40, 64)))
ATTENTION = """(float[b, h, t, 32] q, float[b, h, n, 32] k, float[b, h, n, 32] v) => (float[b, h, t, 32] y) {
    r = Transpose<perm = [0, 1, 3, 2]>(k) u = MatMul(q, r) w = Softmax<axis = -1>(u) y = MatMul(w, v) }"""
INFINITE = {"x": np.full((2, 5, 3), -np.inf, np.float32)}
SPECIAL = np.array([0, np.nan, 1, -1], np.float32)
HALVES = (np.arange(-500, 500).astype(np.float32) + np.float32(0.5)) * np.float32(0.078431375)
BOXES = np.array([[[0, 0, 1, 1], [0, 0, 1, 0.5], [0, 5, 1, 6]]], np.float32)

CASES = {
    "joined values of 8 bits": """(float[2, 2, 4, 4] x) => (float[2, 4, 4, 4] y)
        <float s = {0.05}, int8 z = {-20}, float t = {0.04}> {
        c = Concat<axis = 1>(x, x) q = QuantizeLinear(c, s, z) d = DequantizeLinear(q, s, z)
        r = QuantizeLinear(d, t, z) y = DequantizeLinear(r, t, z) }""",
    "bounds of 16 bits": """(float[2, 3] x) => (float[2, 3] y) <float s = {0.00001}, uint16 z = {0}, float t = {0.5}> {
        b = Mul(x, t) q = QuantizeLinear(b, s, z) d = DequantizeLinear(q, s, z) y = Sigmoid(d) }""",
    "operators in integers": """(float[4, 3, 5] x) => (float[4, 3, 1] y)
        <float s = {0.0485}, float t = {0.02}, uint8 z = {128}, int64[1] axes = {2}> {
        q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) m = ReduceMean(d, axes)
        b = QuantizeLinear(m, t, z) y = DequantizeLinear(b, t, z) }""",
    "products with several readers": f"""(float[N, 8, H, W] x) => (float[N, 8, H, W] y)
        <int8[8, 8, 1, 1] w = {{{RANDOM}}}, float h = {{0.01}}, float s = {{0.05}}, int8 z = {{0}}> {{
        {QUANTIZED} c = Conv(d, f) r = Tanh(c) y = Add(c, r) }}""",
    "negative factors": """(float[N, 2, H, 5] x) => (float[N, 2, H, 5] y)
        <float s = {0.03}, uint8 z = {128}, float[2, 1, 1] k = {0.9, -2.1}> {
        m = Mul(x, k) q = QuantizeLinear(m, s, z) y = DequantizeLinear(q, s, z) }""",
    "rectified products": f"""(float[N, 2, 3, 2] x) => (float[N, 2, 3, 2] y) <int8[2, 2] w = {{100, -90, 70, 120}},
        float h = {{0.01}}, float s = {{0.03}}, uint8 z = {{128}}, float[2, 1, 1] k = {{-0.9, 2.1}}> {{
        {QUANTIZED} p = MatMul(d, f) r = Relu(p) y = Mul(r, k) }}""",
    "sums of 8-bit products": f"""(float[3, 8] x) => (float[3, 4] y) <float s = {{0.03}}, uint8 z = {{0}},
        float h = {{0.01}}, int8[8, 4] w = {{{", ".join(["127"] * 32)}}}> {{
        e = Abs(x) k = Mul(e, e) a = Mul(k, k) q = QuantizeLinear(a, s, z) d = DequantizeLinear(q, s, z)
        f = DequantizeLinear(w, h) y = MatMul(d, f) }}""",
    "overlap thresholds": """(float[1, 3, 4] boxes, float[1, 1, 3] scores) => (int64[n, 3] y)
        <int64 most = {3}, float overlap = {0.5}> { y = NonMaxSuppression(boxes, scores, most, overlap) }""",
    "large terms": """(float[N, 4] x) => (float[N, 4] y) <float one = {1}, float C = {-1e9}, float b = {0.1}> {
        g = Greater(x, b) m = Cast<to = 1>(g) a = Sub(one, m) c = Mul(a, C) y = Add(c, b) }""",
    "gathered channels": """(float[1, 3, 5, 5] x) => (float[1, 2, 5, 5] y)
        <int64[3] order = {1, 2, 0}, float[2, 3, 1, 1] w = {1, 2, 3, 4, 5, 6}> {
        p = Gather<axis = 1>(x, order) y = Conv(p, w) }""",
    "permuted parts": """(float[1, 6, 5, 5] x) => (float[1, 1, 5, 5] y) <float[1, 6, 1, 1] w = {1, 2, 3, 4, 5, 6}> {
        a, b, c = Split<axis = 1, num_outputs = 3>(x) p = Concat<axis = 1>(b, c, a) y = Conv(p, w) }""",
    "NaN in comparisons": "(float[4] x, float[4] z) => (bool[4] y) { y = Greater(x, z) }",
    "conversions to boolean": "(float[4] x) => (bool[4] y) { a = Identity(x) y = Cast<to = 9>(a) }",
    "rounded quotients": """(float[1000] x, float z) => (float[1000] y) { a = Div(x, z) y = Round(a) }""",
    "attention that begins with one key": ATTENTION,
    "transposes that undo each other": """(float[4, 2, 4] x) => (float[4, 4, 4] y)
        <float[4, 2, 1] w = {0.3, -1, 2, 0.5, 1, 1, -0.7, 0.1}> {
        c = Conv(x, w) a = Transpose<perm = [0, 2, 1]>(c) b = Relu(a) y = Transpose<perm = [0, 2, 1]>(b) }""",
    "transposed convolutions of pixels": """(float[N, 2, 4, 3] x) => (float[4, 4, 3, N] y)
        <int8[4, 2, 1, 1] w = {30, -100, 120, 50, 100, 100, -70, 10}, float s = {0.01}, int8 z = {0}> {
        d = DequantizeLinear(w, s, z) c = Conv(x, d) a = Transpose<perm = [1, 2, 3, 0]>(c) y = Relu(a) }""",
    "transposes that keep the shape": """(float[1, 4, 192] x) => (float[1, 4, 64] y)
        <int64[5] packed = {1, 4, 3, 4, 16}, int64[3] joined = {1, 4, 64}, int64[1] first = {0}> {
        p = Reshape(x, packed) t = Transpose<perm = [2, 0, 3, 1, 4]>(p) a, b, c = Split<axis = 0, num_outputs = 3>(t)
        q = Squeeze(a, first) k4 = Squeeze(b, first) v = Squeeze(c, first) k = Transpose<perm = [0, 1, 3, 2]>(k4)
        u = MatMul(q, k) w = Softmax<axis = -1>(u) m = MatMul(w, v) r = Transpose<perm = [0, 2, 1, 3]>(m)
        y = Reshape(r, joined) }""",
    "infinite extremes": """(float[n, m, 3] x) => (float[n, m] y) <int64[1] a = {2}> {
        y = ReduceMax<keepdims = 0>(x, a) }""",
    "inputs as outputs": "(float[4] x) => (float[4] x, float[4] y) { y = Neg(x) }",
    "axes as an attribute": """(float[2, 4, 3] x) => (float[2, 4, 1] y) { y = ReduceL1<axes = [2]>(x) }""",
    "recurrent programs read again": """(float[3, 2, 2] x) => (float[3, 1, 2, 2] y)
        <float[1, 2, 2] w = {0.5, -1, 2, 0.3}> { y = RNN<hidden_size = 2>(x, w, w) }""",
    "rotary embeddings read again": """(float[2, 1, 3, 4] x, float[1, 1, 3, 2] c, float[1, 1, 3, 2] s) =>
        (float[2, 1, 3, 4] y) <int64[2] h = {2, 2}> {
        a, b = Split<axis = 3>(x, h) i = Mul(a, c) j = Mul(b, s) k = Sub(i, j) l = Mul(b, c) m = Mul(a, s)
        n = Add(l, m) y = Concat<axis = -1>(k, n) }""",
    "reductions of three dimensions": """(float[N, 3, 4] x) => (float[N, 3, 1] y)
        <int64[1] a = {-1}, float[1, 3, 1] k = {-4.5, 2, 3}> { m = ReduceSum(x, a) y = Add(m, k) }""",
}
"""Model by name of the row; `test_fusion_guards.py` has the cases of fusions."""
FEEDS = {
    "NaN in comparisons": [{"x": SPECIAL, "z": SPECIAL[::-1]}],
    "conversions to boolean": [{"x": SPECIAL}],
    "rounded quotients": [{"x": HALVES, "z": np.array(0.078431375, np.float32)}],
    "infinite extremes": [INFINITE],
    "overlap thresholds": [{"boxes": BOXES, "scores": np.float32([[[0.9, 0.8, 0.7]]])}],
}
"""Inputs that random numbers would not find."""
SIZES = {
    "attention that begins with one key": [{"n": n, "t": 1, "b": 1, "h": 4} for n in (1, 5, 16, 17)],
    "": [{"N": 2, "H": 4, "W": 5}, {"N": 3, "H": 5, "W": 4}, {"N": 1, "H": 6, "W": 6}],
}
"""Dynamic dimensions in runs of one program."""
PROCESSORS = {"sums of 8-bit products": "AVX2"}
"""Rows needed only without newer processor instructions than these."""
ELSEWHERE = {
    "axes as an attribute": (compiler, "with_axes_as_input", lambda model: model),
    "recurrent programs read again": (compiler, "is_read_as_written", lambda model: True),
    "rotary embeddings read again": (program, "turns_by_narrow_tables", lambda compiled: False),
}
"""Replacements for functions of rows without `apply`."""
READ_AGAIN = {"recurrent programs read again", "rotary embeddings read again"}
IN_A_CHILD = {
    "joined values of 8 bits", "gates of attention", "operators in integers", "attention that begins with one key",
    "reductions of three dimensions", "rotary embeddings of another form", *PROCESSORS, *ELSEWHERE,
}  # fmt: skip
"""Rows without which the engine crashes or reads foreign memory, or that depend on its start-up."""
UNTESTED = {"long chains", "runs after a failed one", "stopped runs"}
"""Rows about compile time or chance effects; `test_dynamic_shapes.py` tests these."""
ROWS = [row for row in WORKAROUNDS if row.name not in UNTESTED]


def models(name):
    """Yield models for a row, and the feeds of one program of each."""
    if name in CASES:
        opset = 17 if "<axes" in CASES[name] else 21
        text = f'<ir_version: 10, opset_import: ["": {opset}]> g {CASES[name]}'
        yield onnx.parser.parse_model(text), FEEDS.get(name)
    else:
        for case, text in test_fusion_guards.CASES.items():
            if case.startswith(name):
                yield test_fusion_guards.model_of(text), None


def feeds_of(name, model):
    numbers = np.random.default_rng(1)
    for sizes in SIZES.get(name, SIZES[""]):
        kinds = {value.name: value.type.tensor_type for value in model.graph.input}
        shapes = {
            key: [d.dim_value or sizes.get(d.dim_param, 1) for d in kind.shape.dim] for key, kind in kinds.items()
        }
        yield {
            key: numbers.standard_normal(shape).astype(onnx.helper.tensor_dtype_to_np_dtype(kinds[key].elem_type))
            for key, shape in shapes.items()
        }


def is_right(name):
    """Return whether the engine, with the current table, computes the models as ONNX Runtime does."""
    return all(_agrees(name, model, feeds) for model, feeds in models(name))


def _agrees(name, model, feeds):
    plain = onnxruntime.SessionOptions()
    plain.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    oracle = onnxruntime.InferenceSession(model.SerializeToString(), plain)
    try:
        opened = context()
        compiled = opened.compile(onnx.shape_inference.infer_shapes(model))
        written = compiled.serialize() if name in READ_AGAIN else None
        execution = (compiled if written is None else opened.deserialize(written)).create_execution()
        for feed in feeds or feeds_of(name, model):
            every_expected = oracle.run(None, feed)
            arrays, outputs = (
                [read_only(array) for array in feed.values()],
                [np.empty_like(right) for right in every_expected],
            )
            compute = execution.compute_into if name == "inputs as outputs" else partial(_compute, execution)
            for result, expected in zip(compute(arrays, outputs), every_expected, strict=True):
                is_coarse = expected.dtype == np.float16 or any("Quantize" in node.op_type for node in model.graph.node)
                relative, absolute = (2e-2, 0.1) if is_coarse else (1e-3, 1e-4)
                np.testing.assert_allclose(result, expected, rtol=relative, atol=absolute)
    except (AssertionError, NNAdapterError):
        return False
    return True


def _compute(execution, arrays, _):
    return execution.compute(arrays)


def leave_out(name):
    if name in ELSEWHERE:
        setattr(*ELSEWHERE[name])
    workarounds.WORKAROUNDS = tuple(row for row in WORKAROUNDS if row.name != name)


def _is_right_in_a_child(name):
    """Return whether a child process computes the models correctly without the row."""
    code = f"""
import sys
from functools import partial
from tests.drivers.openvino import test_workarounds as checks
checks.leave_out({name!r})
sys.exit(0 if checks.is_right({name!r}) else 3)"""
    environment = os.environ | ({"ONEDNN_MAX_CPU_ISA": PROCESSORS[name]} if name in PROCESSORS else {})
    child = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert child.returncode in (0, 3) or child.returncode < 0, child.stderr
    return child.returncode == 0


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_every_workaround_is_needed(row, monkeypatch):
    monkeypatch.setattr(workarounds, "WORKAROUNDS", WORKAROUNDS)
    assert is_right(row.name), "the row does not help"
    if row.name in IN_A_CHILD:
        is_needless = _is_right_in_a_child(row.name)
    else:
        leave_out(row.name)
        is_needless = is_right(row.name)
    if is_needless and row.processors:
        pytest.skip(f"needed on {row.processors}")
    assert not is_needless, f"OpenVINO {engine.version()} is right about {row.name!r}, so the row can go"


def test_every_case_belongs_to_a_row():
    assert {*CASES, *IN_A_CHILD} <= {row.name for row in ROWS}
    assert all(any(True for _ in models(row.name)) for row in ROWS)
