"""Quantized models: at most one step from ONNX, or refused."""

from __future__ import annotations

import numpy as np
import pytest

import nnadapter as nna
from tests.drivers.openvino.harness import computed, context, model_of
from tests.drivers.openvino.sweep.running import run_plain
from tests.models import numbers, parse

NETWORK = """<ir_version: 10, opset_import: ["": 21]> g (float[n,3,h,h] x) => (float[n,2,1,1] y)
<float s = {0.02}, uint8 z = {117}, float t = {0.03}, int8 o = {-128}, float i = {0.0004},
 int8[2,3,1,1] w = {3, -100, 127, 9, 55, -128}, float[2] ws = {0.02, 0.01}, int8[2] wz = {0, 0}, int32[2] b = {900, -4}>
{
    q = QuantizeLinear (x, s, z)
    real = DequantizeLinear (q, s, z)
    weights = DequantizeLinear <axis = 0> (w, ws, wz)
    bias = DequantizeLinear (b, i)
    sums = Conv (real, weights, bias)
    positive = Relu (sums)
    r = QuantizeLinear (positive, t, o)
    again = DequantizeLinear (r, t, o)
    mean = GlobalAveragePool (again)
    m = QuantizeLinear (mean, t, o)
    y = DequantizeLinear (m, t, o)
}"""
STEP = 0.03
LATER = "one scale, or one per index"


def test_a_quantized_network_is_one_segment_at_any_size():
    model = parse(NETWORK)
    with nna.InferenceSession(model, devices="openvino") as session:
        for rows, size in ((1, 9), (2, 5), (3, 8), (1, 2)):
            x = numbers(rows, 3, size, size, seed=size)
            (y,) = session.run(None, {"x": x})
            (expected,) = run_plain(model, {"x": x})
            np.testing.assert_allclose(y, expected, atol=1.01 * STEP)
        report = session.report()
    assert [segment.device for segment in report.segments] == ["openvino"] and report.coverage.nodes == 1
    assert report.plans.compiled == 2


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ("w = DequantizeLinear <axis = §1|0§> (q, t, v) y = MatMul (x, w)", LATER),
        ("w = DequantizeLinear <axis = §1|0§> (q, t, v) y = Gemm (x, w)", LATER),
        ("w = DequantizeLinear <axis = §0|1§> (q, t, v) y = Gemm <transB = 1> (x, w)", LATER),
        ("w = DequantizeLinear <axis = §0|1§> (q, t, v) a = Transpose (w) y = MatMul (x, a)", LATER),
        ("w = DequantizeLinear <axis = §0|1§> (q, t, v) a = Gather (w, i) y = Add (a, x)", LATER),
        ("w = DequantizeLinear <axis = 0> (q, t, v) y = §Add|Max§ (x, w)", LATER),
        ("w = DequantizeLinear (q, s) y = §GlobalAveragePool|GlobalMaxPool§ (x)", "half of ONNX's result"),
        ("w = DequantizeLinear (u, s, §k|n§) y = Conv (x, w)", "zero point 0 is not compiled"),
    ],
)
def test_group_is_refused_and_similar_one_is_accepted(body, detail):
    shape = "2,2,3,3" if "Conv" in body or "Global" in body else "2,2"
    constants = """<int8[2,2] q = {3, -100, 127, 9}, float[2] t = {0.1, 0.02}, int8[2] v = {0, 0}, int64[2] i = {1, 0},
    float s = {0.1}, uint8[1,2,1,1] u = {200, 3}, uint8 k = {7}, uint8 n = {0}>"""
    opened = context()
    accepted, refused = (model_of(f"(float[{shape}] x) => (y) {constants} {{ {_of(body, at)} }}") for at in (0, 1))
    assert any(detail in verdict.detail for verdict in opened.supported(refused) if not verdict)
    assert all(opened.supported(accepted))
    x = numbers(*map(int, shape.split(",")))
    (expected,) = run_plain(accepted, {"x": x})
    np.testing.assert_allclose(computed(opened, accepted, [x])[0], expected, rtol=1e-4, atol=1e-4)


def _of(body: str, at: int) -> str:
    parts = body.split("§")
    return "".join(part.split("|")[at] if number % 2 else part for number, part in enumerate(parts))


@pytest.mark.parametrize(
    "node",
    [
        "y = Clip (real, low, high)",
        "y = AveragePool <kernel_shape = [2, 2], pads = [1, 1, 1, 1], count_include_pad = 1> (real)",
        "filter = DequantizeLinear <axis = 1> (w, ws, wz) y = ConvTranspose (real, filter)",
    ],
)
def test_wrong_integer_computations_use_floats(node):
    model = model_of(f"""(uint8[1,3,6,6] x) => (y) <float s = {{0.05}}, uint8 z = {{117}}, float low = {{-0.33}},
    float high = {{2.33}}, int8[3,2,1,1] w = {{3, -100, 127, 9, 55, -128}}, float[2] ws = {{0.02, 0.01}},
    int8[2] wz = {{64, 3}}> {{ real = DequantizeLinear (x, s, z) {node} }}""")
    x = np.random.default_rng(0).integers(0, 256, (1, 3, 6, 6), np.uint8)
    opened = context()
    assert all(opened.supported(model))
    np.testing.assert_allclose(computed(opened, model, [x])[0], run_plain(model, {"x": x})[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("sizes", "input_step", "output_step", "node"),
    [
        ("2,3,5", (0.1, -128), 0.017, "y = Min (real, bound)"),
        ("2,height,5", (0.1, -128), 0.017, "y = Min (real, bound)"),
        ("channels,height,5", (0.013, 0), 0.0091, "y = BatchNormalization (real, c, c, c, c)"),
    ],
    ids=["minimum", "minimum at open sizes", "normalization of open channels"],
)
def test_quantized_results_are_computed_in_floats(sizes, input_step, output_step, node):
    """The engine fused Min into a Clip with rounded bounds, and used a wrong zero point."""
    model = model_of(f"""(float[1,{sizes}] x) => (q) <float s = {{{input_step[0]}}}, int8 z = {{{input_step[1]}}},
    float bound = {{1.7}}, float[2] c = {{0.5, 1.5}},
    float t = {{{output_step}}}, uint8 n = {{0}}> {{
        bytes = QuantizeLinear (x, s, z) real = DequantizeLinear (bytes, s, z) {node}
        less = QuantizeLinear (y, t, n) q = DequantizeLinear (less, t, n)
    }}""")
    x = input_step[0] * np.linspace(-123, 123, 30, dtype=np.float32).reshape(1, 2, 3, 5)
    opened = context()
    assert opened.admit(model).verdict
    (expected,), (got,) = run_plain(model, {"x": x}), computed(opened, model, [x])
    np.testing.assert_allclose(got, expected, atol=1.01 * output_step)
