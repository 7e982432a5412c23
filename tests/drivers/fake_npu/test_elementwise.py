from __future__ import annotations

from math import erf

import numpy as np
import pytest

from tests.drivers.fake_npu.harness import close, floats, oracle, run

UNARY = {
    "ABS": "Abs",
    "CEIL": "Ceil",
    "COS": "Cos",
    "ELU": "Elu",
    "ERF": "Erf",
    "EXP": "Exp",
    "FLOOR": "Floor",
    "GELU": "Gelu",
    "HARD_SIGMOID": "HardSigmoid",
    "HARD_SWISH": "HardSwish",
    "LEAKY_RELU": "LeakyRelu",
    "MISH": "Mish",
    "NEG": "Neg",
    "RECIPROCAL": "Reciprocal",
    "RELU": "Relu",
    "ROUND": "Round",
    "SELU": "Selu",
    "SIGMOID": "Sigmoid",
    "SIGN": "Sign",
    "SIN": "Sin",
    "SOFTPLUS": "Softplus",
    "SOFTSIGN": "Softsign",
    "TANH": "Tanh",
}


@pytest.mark.parametrize(("type_", "op_type"), UNARY.items(), ids=UNARY)
def test_unary(type_, op_type):
    x = 4 * floats(3, 7, 1900)
    close(run(type_, [x]), oracle(op_type, [x]))


@pytest.mark.parametrize(("type_", "op_type"), [("LOG", "Log"), ("SQRT", "Sqrt")])
def test_unary_of_positive_numbers(type_, op_type):
    x = np.abs(floats(5, 9))
    close(run(type_, [x]), oracle(op_type, [x]))


def test_erf_is_right_to_six_digits():
    x = np.linspace(-12, 12, 30001, dtype=np.float32)
    expected = np.array([erf(value) for value in x.tolist()])
    assert np.abs(run("ERF", [x]) - expected).max() < 1e-6


@pytest.mark.parametrize(
    ("type_", "low", "high"), [("SIGMOID", 0, 1), ("SWISH", 0, np.inf), ("SOFTPLUS", 0, np.inf), ("GELU", 0, np.inf)]
)
def test_limits_without_overflow(type_, low, high):
    result = run(type_, [np.array([-3e38, -200, 200, 3e38], np.float32)])
    np.testing.assert_array_equal(result[:2], [low, low])
    assert result[3] == (1 if high == 1 else np.float32(3e38))


def test_unary_attributes():
    x = floats(50)
    close(run("GELU", [x], {"approximate": "tanh"}), oracle("Gelu", [x], {"approximate": "tanh"}))
    close(run("LEAKY_RELU", [x], {"alpha": 1.5}), oracle("LeakyRelu", [x], {"alpha": 1.5}))
    close(run("LEAKY_RELU", [x], {"alpha": -0.5}), oracle("LeakyRelu", [x], {"alpha": -0.5}))
    close(run("SWISH", [x], {"alpha": 1.7}), x / (1 + np.exp(-1.7 * x)))
    close(run("CLIP", [x], {"min": -0.5, "max": 0.25}), np.clip(x, np.float32(-0.5), np.float32(0.25)), 0)
    close(run("CLIP", [x], {"min": 0.0}), np.maximum(x, 0), 0)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32"])
def test_integer_clip(dtype):
    x = np.arange(0, 100, dtype=dtype)
    np.testing.assert_array_equal(run("CLIP", [x], {"min": -1e30, "max": 40.0}), np.minimum(x, 40))
    np.testing.assert_array_equal(run("CLIP", [x]), x)


BINARY = {"ADD": "Add", "SUB": "Sub", "MUL": "Mul", "DIV": "Div", "MAX": "Max", "MIN": "Min"}


@pytest.mark.parametrize(("type_", "op_type"), BINARY.items(), ids=BINARY)
@pytest.mark.parametrize("shapes", [((3, 4), (3, 4)), ((2, 1, 4), (3, 1)), ((), (5,))], ids=str)
def test_binary(type_, op_type, shapes):
    x, y = floats(*shapes[0]), floats(*shapes[1], seed=1)
    close(run(type_, [x, y]), oracle(op_type, [x, y]), 1e-6)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32"])
def test_integer_division_truncates(dtype):
    x = np.array([7, -7, 7, -7, 100, 0], np.int32).astype(dtype)
    y = np.array([2, 2, -2, -2, 3, 5], np.int32).astype(dtype)
    np.testing.assert_array_equal(run("DIV", [x, y]), oracle("Div", [x, y]))


def test_integers_wrap_around():
    x = np.array([120, -120], np.int8)
    np.testing.assert_array_equal(run("ADD", [x, x]), x + x)
    np.testing.assert_array_equal(run("MUL", [x, x]), x * x)


COMPARISONS = {
    "EQUAL": "Equal",
    "GREATER": "Greater",
    "GREATER_EQUAL": "GreaterOrEqual",
    "LESS": "Less",
    "LESS_EQUAL": "LessOrEqual",
}


@pytest.mark.parametrize(("type_", "op_type"), COMPARISONS.items(), ids=COMPARISONS)
@pytest.mark.parametrize("dtype", ["float32", "int32", "int64"])
def test_comparison(type_, op_type, dtype):
    x, y = np.arange(6).astype(dtype).reshape(2, 3), np.array([1, 1, 4]).astype(dtype)
    np.testing.assert_array_equal(run(type_, [x, y]), oracle(op_type, [x, y]))


def test_logic():
    x, y = np.array([True, True, False, False]), np.array([True, False, True, False])
    for type_, op_type in {"AND": "And", "OR": "Or", "XOR": "Xor"}.items():
        np.testing.assert_array_equal(run(type_, [x, y]), oracle(op_type, [x, y]))
    np.testing.assert_array_equal(run("NOT", [x]), ~x)


@pytest.mark.parametrize(
    "shapes",
    [((3, 200, 300), (300,)), ((1, 1, 300), (3, 200, 300)), ((300,), (1, 300)), ((200, 300), (200, 1)), ((5,), ())],
)
def test_binary_with_activation_in_several_blocks(shapes):
    x, y = floats(*shapes[0]), floats(*shapes[1], seed=1)
    result = run("SUB", [x, y], {"fuse_code": "relu", "fuse_parameters": ()})
    np.testing.assert_array_equal(result, np.maximum(x - y, 0))


def test_where_broadcasts():
    condition, x, y = np.array([[True], [False]]), floats(3), floats(2, 3, seed=1)
    np.testing.assert_array_equal(run("WHERE", [condition, x, y]), np.where(condition, x, y))


def test_prelu_and_sum():
    x, slope = floats(2, 3, 4), floats(3, 1, seed=1)
    close(run("PRELU", [x, slope]), oracle("PRelu", [x, slope]), 1e-6)
    parts = [x, floats(4, seed=2), floats(3, 1, seed=3)]
    for count in (1, 2, 3):
        close(run("SUM", parts[:count]), oracle("Sum", parts[:count]), 1e-6)


@pytest.mark.parametrize("exponent", [2.0, 0.5, 3.0, -1.0])
def test_power_by_a_constant(exponent):
    x, power = np.abs(floats(3, 4)), np.array(exponent, np.float32)
    close(run("POW", [x, power], constants=(1,)), oracle("Pow", [x, power]), 1e-5)


def test_power_of_integers_and_by_integers():
    x = np.array([1, 2, -3, 4], np.int32)
    np.testing.assert_array_equal(run("POW", [x, x]), oracle("Pow", [x, x]))
    close(run("POW", [floats(4), x]), oracle("Pow", [floats(4), x]), 1e-5)


def test_modulo():
    x, y = np.array([7, -7, 7, -7], np.int32), np.array([3, 3, -3, -3], np.int32)
    np.testing.assert_array_equal(run("MOD", [x, y]), oracle("Mod", [x, y]))
    np.testing.assert_array_equal(run("MOD", [x, y], {"fmod": True}), oracle("Mod", [x, y], {"fmod": 1}))
    close(run("MOD", [floats(9), floats(9, seed=1)], {"fmod": True}), np.fmod(floats(9), floats(9, seed=1)), 0)


@pytest.mark.parametrize("source", ["float32", "float16", "int8", "uint8", "int32", "int64", "bool"])
@pytest.mark.parametrize("target", ["float32", "float16", "int8", "uint8", "int32", "int64", "bool"])
def test_cast(source, target):
    x = np.array([0, 1, 2.6, 100.9], np.float32).astype(source)
    np.testing.assert_array_equal(run("CAST", [x], {"to": target}), x.astype(target))
