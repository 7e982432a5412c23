"""Functions, bits, triangles, equations and generators."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnadapter.ir.definition import by_definition
from tests.drivers.fake_npu.harness import close, floats, model_of, oracle, run, run_model

_EVERYWHERE = {
    "ASINH": "Asinh",
    "ATAN": "Atan",
    "CELU": "Celu",
    "COSH": "Cosh",
    "SHRINK": "Shrink",
    "SINH": "Sinh",
    "TAN": "Tan",
    "THRESHOLDED_RELU": "ThresholdedRelu",
}


@pytest.mark.parametrize(("type_", "op_type"), _EVERYWHERE.items(), ids=_EVERYWHERE)
def test_function(type_, op_type):
    x = 3 * floats(3, 7, 1900)
    close(run(type_, [x]), oracle(op_type, [x]), 1e-4 if type_ == "TAN" else 2e-5)


@pytest.mark.parametrize(("type_", "op_type"), [("ACOS", "Acos"), ("ASIN", "Asin"), ("ATANH", "Atanh")])
def test_function_on_part_of_its_domain(type_, op_type):
    x = np.tanh(floats(5, 9))
    close(run(type_, [x]), oracle(op_type, [x]))


def test_acosh():
    x = 1 + np.abs(floats(5, 9))
    close(run("ACOSH", [x]), oracle("Acosh", [x]))


def test_squares_and_their_roots():
    x = np.abs(floats(5, 9)) + np.float32(0.1)
    close(run("RSQRT", [x]), 1 / np.sqrt(x), 1e-6)
    np.testing.assert_array_equal(run("SQUARE", [np.array([-12, 5], np.int8)]), np.array([144 - 256, 25], np.int8))
    close(run("SQUARE", [x]), x * x, 0)


@pytest.mark.parametrize("dtype", ["float32", "int8", "int32"])
def test_quotients_rounded_down_and_differences(dtype):
    x, y = np.array([7, -7, 7, -7, 0, 4], dtype), np.array([2, 2, -2, -2, 3, 4], dtype)
    np.testing.assert_array_equal(run("FLOOR_DIV", [x, y]), [3, -4, -4, 3, 0, 1])
    np.testing.assert_array_equal(run("NOT_EQUAL", [x, y]), x != y)


_PARAMETERS = [
    ("CELU", {"alpha": 0.4}),
    ("THRESHOLDED_RELU", {"alpha": -0.5}),
    ("SHRINK", {"lambd": -0.3, "bias": 0.2}),
]


@pytest.mark.parametrize(("type_", "attributes"), _PARAMETERS)
def test_parameters_and_special_values(type_, attributes):
    x = np.concatenate([floats(50), np.array([np.inf, -np.inf, 0, 3e38, -3e38, np.nan], np.float32)])
    model, feeds = model_of(type_, [x], attributes)
    close(run_model(model, feeds)[0], by_definition(model, feeds)[0])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32"])
def test_shrink_of_integers(dtype):
    x = np.arange(0, 100, 7).astype(dtype)
    model, feeds = model_of("SHRINK", [x], {"lambd": 20.0, "bias": 5.0})
    np.testing.assert_array_equal(run_model(model, feeds)[0], by_definition(model, feeds)[0])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("negative", [True, False])
@pytest.mark.parametrize("positive", [True, False])
def test_special_values_are_found(dtype, positive, negative):
    x = np.array([np.nan, np.inf, -np.inf, 0, 6e4], dtype)
    result = run("IS_INF", [x], {"detect_positive": positive, "detect_negative": negative})
    np.testing.assert_array_equal(result, [False, positive, negative, False, False])
    np.testing.assert_array_equal(run("IS_NAN", [x]), np.isnan(x))


@pytest.mark.parametrize("alpha", [1.0, 1.7])
def test_swiglu_in_several_blocks(alpha):
    gate, value = 4 * floats(3, 30000), floats(3, 30000, seed=1)
    close(run("SWIGLU", [gate, value], {"alpha": alpha}), gate / (1 + np.exp(-alpha * gate)) * value)


_INTEGERS = ["int8", "uint8", "int32", "int64"]


def _integers(dtype, *shape, seed=0):
    limits = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(limits.min, limits.max, shape, dtype, endpoint=True)


@pytest.mark.parametrize("dtype", _INTEGERS)
def test_bitwise(dtype):
    x, y = _integers(dtype, 3, 4), _integers(dtype, 4, seed=1)
    np.testing.assert_array_equal(run("BITWISE_AND", [x, y]), x & y)
    np.testing.assert_array_equal(run("BITWISE_OR", [x, y]), x | y)
    np.testing.assert_array_equal(run("BITWISE_XOR", [x, y]), x ^ y)
    np.testing.assert_array_equal(run("BITWISE_NOT", [x]), ~x)


@pytest.mark.parametrize("dtype", _INTEGERS)
@pytest.mark.parametrize("direction", ["left", "right"])
def test_shifts_within_and_beyond_the_bits(direction, dtype):
    counts = np.arange(-3 if dtype != "uint8" else 0, 70).astype(dtype)
    model, feeds = model_of("BIT_SHIFT", [_integers(dtype, 20, 1), counts], {"direction": direction})
    np.testing.assert_array_equal(run_model(model, feeds)[0], by_definition(model, feeds)[0])


@pytest.mark.parametrize(
    ("source", "target"),
    [("float32", "int32"), ("int32", "float32"), ("int8", "uint8"), ("bool", "int8"), ("float16", "float16")],
)
def test_bit_cast(source, target):
    x = np.array([0, 1, 100.5], np.float32).astype(source)
    np.testing.assert_array_equal(run("BIT_CAST", [x], {"to": target}), x.view(target))


def test_bytes_become_true():
    assert run("BIT_CAST", [np.array([0, 1, 2, 255], np.uint8)], {"to": "bool"}).tolist() == [False, True, True, True]


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "int64"])
@pytest.mark.parametrize("exclusive", [True, False])
@pytest.mark.parametrize("reverse", [True, False])
def test_running_product(exclusive, reverse, dtype):
    x = np.random.default_rng(0).integers(-3, 4, (3, 6, 2)).astype(dtype)
    model, feeds = model_of("CUM_PROD", [x], {"axis": 1, "exclusive": exclusive, "reverse": reverse})
    np.testing.assert_array_equal(run_model(model, feeds)[0], by_definition(model, feeds)[0])


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_hardmax_selects_the_first_maximum(axis):
    x = np.random.default_rng(0).integers(0, 3, (3, 4, 5)).astype(np.float32)
    np.testing.assert_array_equal(run("HARDMAX", [x], {"axis": axis}), oracle("Hardmax", [x], {"axis": axis}))


@pytest.mark.parametrize("upper", [True, False])
@pytest.mark.parametrize("k", [0, 2, -1, 9, -9, 2**40])
@pytest.mark.parametrize("dtype", ["float32", "bool", "int64"])
def test_trilu(dtype, k, upper):
    x = np.arange(1, 25).reshape(2, 3, 4).astype(dtype)
    expected = oracle("Trilu", [x, np.array(k)], {"upper": int(upper)})
    np.testing.assert_array_equal(run("TRILU", [x], {"upper": upper, "k": k}), expected)


@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (2, 3, 5, 5)])
def test_determinant(shape):
    x = floats(*shape)
    close(run("DETERMINANT", [x]), np.linalg.det(x.astype(np.float64)))
    close(run("DETERMINANT", [x.astype(np.float16)]), np.linalg.det(x.astype(np.float16).astype(np.float64)), 5e-3)


_EQUATIONS = {
    "ij,jk->ik": [(6, 4), (4, 5)],
    "ij,kj->ik": [(6, 4), (5, 4)],
    "ji,jk->ik": [(4, 6), (4, 5)],
    "ij,jk->ki": [(6, 4), (4, 5)],
    "i,j": [(6,), (5,)],
    "i,i": [(6,), (6,)],
    "bi,bi->b": [(3, 6), (3, 6)],
    "bi,bi->bi": [(3, 6), (3, 6)],
    "bhqd,bhkd->bhqk": [(2, 3, 4, 5), (2, 3, 6, 5)],
    "bqhd,bkhd->bhqk": [(2, 4, 3, 5), (2, 6, 3, 5)],
    "bsd,dhk->bshk": [(2, 3, 4), (4, 5, 6)],
    "...ij,...jk": [(2, 3, 4, 5), (2, 3, 5, 6)],
    "ij,jk,kl->li": [(2, 3), (3, 4), (4, 5)],
    "ij,ij,ij,ij,ij->j": [(2, 3)] * 5,
    "ij,jk->i": [(2, 3), (3, 4)],
    "ii,ij->ij": [(3, 3), (3, 4)],
    "...ii->...i": [(2, 3, 3)],
    "ij->": [(2, 3)],
    "ij,jk->ik#": [(6, 1), (4, 5)],
}


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("equation", _EQUATIONS)
def test_einsum(equation, dtype):
    shapes = _EQUATIONS[equation]
    attributes = {"equation": equation.rstrip("#")}
    arrays = [(4 * floats(*shape, seed=seed)).astype(dtype) for seed, shape in enumerate(shapes)]
    close(run("EINSUM", arrays, attributes), np.einsum(attributes["equation"], *arrays), 1e-4)


_PAIRS = st.tuples(st.permutations("abcd"), st.permutations("abcd"), st.permutations("abcd"))


@given(_PAIRS, st.integers(0, 4), st.integers(0, 4), st.data())
def test_einsum_of_any_two_terms(labels, left, right, data):
    sizes = dict(zip("abcd", (2, 3, 4, 5), strict=True))
    x, y = labels[0][:left], labels[1][:right]
    result = [label for label in labels[2] if label in {*x, *y} and data.draw(st.booleans())]
    equation = f"{''.join(x)},{''.join(y)}->{''.join(result)}"
    arrays = [floats(*(sizes[label] for label in term), seed=seed) for seed, term in enumerate((x, y))]
    arrays = [np.asarray(array, np.float32) for array in arrays]
    close(run("EINSUM", arrays, {"equation": equation}), np.einsum(equation, *arrays), 1e-4)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "int64", "bool"])
def test_fill_and_eye(dtype):
    value = np.array(1, dtype)
    np.testing.assert_array_equal(run("FILL", [value], {"shape": (3, 4)}, constants=(0,)), np.ones((3, 4)))
    np.testing.assert_array_equal(run("FILL", [value], {"shape": ()}), value)
    for rows, columns, k in [(3, 5, 0), (5, 3, 1), (3, 5, -2), (3, 3, 3), (3, 3, -7), (1, 1, 0)]:
        result = run("EYE_LIKE", [floats(rows, columns)], {"to": dtype, "k": k})
        np.testing.assert_array_equal(result, np.eye(rows, columns, k))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "int32", "int64"])
def test_range(dtype):
    start, delta = np.array(5, dtype), np.array(-2, dtype)
    np.testing.assert_array_equal(run("RANGE", [start, delta], {"count": 9}), np.arange(5, -13, -2).astype(dtype))


def test_range_of_narrow_integers_wraps_around():
    result = run("RANGE", [np.array(100, np.int8), np.array(3, np.int8)], {"count": 300})
    np.testing.assert_array_equal(result, (100 + 3 * np.arange(300)).astype(np.int8))


def test_half_precision_rounds_inputs_and_results():
    x = np.array([0.1, 1.2345678, 3.3], np.float32)
    expected = np.sinh(x.astype(np.float16).astype(np.float32)).astype(np.float16)
    np.testing.assert_array_equal(run("SINH", [x], precision="float16"), expected)
