"""64-bit integers and floats: exact, with numpy's wraparound."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import nnadapter as nna
from tests.drivers.fake_npu.against_definition import agrees
from tests.drivers.fake_npu.harness import oracle, run
from tests.models import parse, run_whole

WIDE = st.sampled_from(["int64", "float64"])
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, max_side=4)
PAIRS = hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=3, min_side=1, max_side=3)
ELEMENTS = {
    "int64": st.integers(-(2**63), 2**63 - 1) | st.integers(-9, 9),
    "float64": st.floats(-1e9, 1e9) | st.sampled_from([np.nan, np.inf, -np.inf, -0.0, 2.0**53 + 2]),
}
BINARY = {
    "ADD": np.add,
    "SUB": np.subtract,
    "MUL": np.multiply,
    "MAX": np.maximum,
    "MIN": np.minimum,
    "EQUAL": np.equal,
    "NOT_EQUAL": np.not_equal,
    "LESS": np.less,
    "LESS_EQUAL": np.less_equal,
    "GREATER": np.greater,
    "GREATER_EQUAL": np.greater_equal,
}
ONNX = ("Add", "Sub", "Mul", "Div", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Max", "Min")


def arrays(dtype, shape):
    return hnp.arrays(dtype, shape, elements=ELEMENTS[dtype])


def nonzero(shape):
    return hnp.arrays("int64", shape, elements=ELEMENTS["int64"].filter(lambda number: number not in (0, -1)))


@pytest.mark.parametrize("type_", BINARY)
@given(st.data())
def test_two_operands(type_, data):
    dtype, shapes = data.draw(WIDE), data.draw(PAIRS).input_shapes
    x, y = (data.draw(arrays(dtype, shape)) for shape in shapes)
    with np.errstate(all="ignore"):
        expected = BINARY[type_](x, y)
    np.testing.assert_array_equal(run(type_, [x, y]), expected)


@given(st.data())
def test_division_of_integers_truncates_and_remainders_have_a_sign(data):
    first, second = data.draw(PAIRS).input_shapes
    x, y = data.draw(arrays("int64", first)), data.draw(nonzero(second))
    quotient = np.vectorize(lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1), otypes=["int64"])
    np.testing.assert_array_equal(run("DIV", [x, y]), quotient(x.astype(object), y.astype(object)))
    np.testing.assert_array_equal(run("MOD", [x, y]), np.mod(x, y))
    np.testing.assert_array_equal(run("MOD", [x, y], {"fmod": True}), np.fmod(x, y))
    np.testing.assert_array_equal(run("FLOOR_DIV", [x, y]), x // y)


@pytest.mark.parametrize("dtype", ["int64", "float64"])
@pytest.mark.parametrize("op_type", ONNX)
def test_two_operands_equal_onnxruntime(op_type, dtype):
    x = np.array([[2**62, -(2**62), -7, 7, 0, 2**53 + 1]], np.int64).astype(dtype)
    y = np.array([[2**62], [3], [-3]], np.int64).astype(dtype)
    names = {"LessOrEqual": "LESS_EQUAL", "GreaterOrEqual": "GREATER_EQUAL"}
    np.testing.assert_array_equal(run(names.get(op_type, op_type.upper()), [x, y]), oracle(op_type, [x, y]))


@pytest.mark.parametrize(("type_", "op_type"), [("REDUCE_SUM", "ReduceSum"), ("REDUCE_MAX", "ReduceMax")])
def test_reductions_equal_onnxruntime(type_, op_type):
    x = np.array([[2**50, 2**51, 5], [-(2**52), -1, 1]], np.int64)  # ONNX Runtime sums in float64
    expected = oracle(op_type, [x, np.array([1])], {"keepdims": 0}, constants=(1,))
    np.testing.assert_array_equal(run(type_, [x], {"axes": (1,), "keepdims": False}), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sum", "prod", "max", "min"])
@given(st.data())
def test_reductions(name, data):
    dtype = data.draw(WIDE)
    x = data.draw(arrays(dtype, data.draw(hnp.array_shapes(max_dims=3, max_side=4))))
    axes = tuple(sorted({axis % x.ndim for axis in data.draw(hnp.valid_tuple_axes(x.ndim, min_size=1))}))
    keepdims = data.draw(st.booleans())
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(x, axis=axes, keepdims=keepdims)
        got = run(f"REDUCE_{name.upper()}", [x], {"axes": axes, "keepdims": keepdims})
    exact = dtype == "int64" or name in ("max", "min")
    np.testing.assert_allclose(got, expected, rtol=0 if exact else 1e-9, atol=0 if exact else 1e-3)


@given(st.data())
def test_arg_max_cumulative_sum_and_top_k(data):
    x = data.draw(arrays("int64", data.draw(hnp.array_shapes(max_dims=3, max_side=4))))
    axis = data.draw(st.integers(0, x.ndim - 1))
    np.testing.assert_array_equal(run("ARG_MAX", [x], {"axis": axis, "keepdims": False}), x.argmax(axis))
    np.testing.assert_array_equal(run("CUM_SUM", [x], {"axis": axis}), x.cumsum(axis))
    values, _ = run("TOP_K", [x], {"axis": axis, "k": x.shape[axis]})
    np.testing.assert_array_equal(values, np.flip(np.sort(x, axis), axis))


@given(st.data())
def test_movement(data):
    x = data.draw(arrays(data.draw(WIDE), data.draw(SHAPES)))
    perm = tuple(data.draw(st.permutations(range(x.ndim))))
    np.testing.assert_array_equal(run("TRANSPOSE", [x], {"perm": perm}), x.transpose(perm))
    np.testing.assert_array_equal(run("RESHAPE", [x], {"shape": (x.size,)}), x.reshape(-1))
    if x.ndim:
        np.testing.assert_array_equal(run("CONCAT", [x, x], {"axis": 0}), np.concatenate([x, x]))
        indices = np.array([-1, 0], np.int64)
        np.testing.assert_array_equal(run("GATHER", [x, indices], {"axis": 0}), x[indices])


FUNCTIONS = ["ABS", "NEG", "SIGN", "FLOOR", "ROUND", "EXP", "SQRT", "ERF", "GELU", "SIGMOID", "TANH", "SOFTPLUS", "ELU"]
FUNCTIONS += ["LEAKY_RELU", "RELU", "MISH", "SWISH"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_have_float64_precision(name):
    agrees(name, [np.linspace(0 if name == "SQRT" else -6, 6, 4001)], tolerance=1e-13)


def test_float64_is_unchanged_in_half_precision():
    x = np.array([1 + 2.0**-40, 3.0])
    np.testing.assert_array_equal(run("ADD", [x, x], constants=(1,), precision="float16"), x + x)


def test_limits_of_float64_are_not_rounded():
    x = np.array([-1.0, 0.1, 0.3])
    np.testing.assert_array_equal(run("CLIP", [x], {"min": 0.1, "max": 0.2}), np.clip(x, 0.1, 0.2))


def test_representable_powers_of_int64_are_exact():
    base = np.array([3, -3, 10, 2], np.int64)
    exponent = np.array([39, 39, 18, 62], np.int64)
    np.testing.assert_array_equal(run("POW", [base, exponent]), base**exponent)
    np.testing.assert_array_equal(run("POW", [base, np.array(-1, np.int64)]), [0, 0, 0, 0])


def test_products_of_matrices():
    x, y = np.array([[2**31, 3], [-5, 2**40]], np.int64), np.array([[2**31, 1], [7, -9]], np.int64)
    np.testing.assert_array_equal(run("MAT_MUL", [x, y]), x @ y)
    z = np.linspace(-1, 1, 6).reshape(2, 3)
    np.testing.assert_allclose(run("MAT_MUL", [z, z.T.copy()], constants=(1,)), z @ z.T, rtol=1e-15)


def test_int64_model_runs_entirely_on_the_device():
    model = parse("""<ir_version: 10, opset_import: ["" : 17]>
    g (int64[2, 3] x, int64[3] y, int64[2, 3] w, int64[2] i) => (int64[2] s, bool[2, 3] b, int64[4, 3] c)
    <int64[1] axes = {1}> {
        a = Add(x, y)   m = Mul(a, y)   d = Div(m, y)   r = Sub(d, x)
        b = Less(r, a)  s = ReduceSum<keepdims = 0>(w, axes)
        g = Gather(m, i)   c = Concat<axis = 0>(g, a)
    }""")
    feed = {
        "x": np.array([[2**62, -5, 7], [1, 2, 2**40]]),
        "y": np.array([3, -2, 2**30]),
        "w": np.array([[1, 2**50, -3], [4, 5, -(2**49)]]),
        "i": np.array([1, -2]),
    }
    with nna.InferenceSession(model, devices="fake_npu", options=nna.Options(fallback="forbid")) as session:
        results = session.run(None, feed)
    for got, expected in zip(results, run_whole(model, feed), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_expanded_layer_normalization_and_gelu_in_float64():
    model = parse("""<ir_version: 10, opset_import: ["" : 17]>
    g (double[4, 8] x) => (double[4, 8] y, double[4, 8] z)
    <double e = {1e-12}, double two = {2}, double h = {0.5}, double o = {1}, double q = {1.4142135623730951}> {
        m = ReduceMean<axes = [1]>(x)   d = Sub(x, m)   p = Pow(d, two)   v = ReduceMean<axes = [1]>(p)
        w = Add(v, e)   s = Sqrt(w)   y = Div(d, s)
        a = Div(y, q)   b = Tanh(a)   c = Add(b, o)   f = Mul(y, c)   z = Mul(f, h)
    }""")
    feed = {"x": np.random.default_rng(0).standard_normal((4, 8))}
    with nna.InferenceSession(model, devices="fake_npu", options=nna.Options(fallback="forbid")) as session:
        results = session.run(None, feed)
    for got, expected in zip(results, run_whole(model, feed), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-13)
