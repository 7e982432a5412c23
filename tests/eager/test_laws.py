"""Tensor operations on fake_npu, with numpy as the oracle."""

from __future__ import annotations

import operator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import nnadapter as nna
from nnadapter.eager import UFUNCS

TYPES = st.sampled_from(["float32", "int32", "float16", "bool", "int8", "uint8"])
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=1, max_side=4)
PAIRS = hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=3, min_side=1, max_side=3)


def arrays(dtype, shape):
    low = 0 if dtype in ("bool", "uint8") else -6
    integers = st.integers(low, 1 if dtype == "bool" else 6)
    return hnp.arrays("int64", shape, elements=integers).map(lambda array: array.astype(dtype))


def same(got, expected, dtype=None):
    assert isinstance(got, nna.Tensor) and got.place.device == "fake_npu"
    expected = np.asarray(expected) if dtype is None else np.asarray(expected).astype(dtype)
    assert got.dtype == expected.dtype and got.shape == expected.shape
    np.testing.assert_allclose(got.numpy(), expected, rtol=2e-3 if expected.dtype == np.float16 else 2e-6)


def placed(array):
    return nna.tensor(array, device="fake_npu")


ARITHMETIC = ["add", "subtract", "multiply", "maximum", "minimum", "equal", "not_equal", "less", "greater_equal"]
NUMBERS = ["float32", "float16", "int32", "int8", "uint8"]


@pytest.mark.parametrize("name", ARITHMETIC)
@given(st.data())
def test_binary_functions_equal_numpy(name, data):
    dtype = data.draw(st.sampled_from(NUMBERS))
    shapes = data.draw(PAIRS).input_shapes
    x, y = (data.draw(arrays(dtype, shape)) for shape in shapes)
    function = getattr(np, name)
    same(function(placed(x), placed(y)), function(x, y))


@given(st.data())
def test_promotion_keeps_floating_types(data):
    number, other = data.draw(st.sampled_from(NUMBERS)), data.draw(st.sampled_from(["float32", "float16"]))
    x, y = data.draw(arrays(number, (3,))), data.draw(arrays(other, (2, 1)))
    floats = [dtype for dtype in (number, other) if dtype.startswith("float")]
    same(placed(x) + placed(y), x.astype(np.float32) + y, max(floats))


@given(st.data(), st.sampled_from([operator.add, operator.mul, operator.sub, operator.gt]), st.booleans())
def test_python_numbers_do_not_promote(data, function, reflected):
    dtype = data.draw(st.sampled_from(["float32", "float16", "int32", "int8"]))
    x = data.draw(arrays(dtype, (2, 3)))
    pair = (lambda tensor: (3, tensor)) if reflected else (lambda tensor: (tensor, 3))
    same(function(*pair(placed(x))), function(*pair(x)))


def test_a_float_with_integers_is_float32():
    same(placed(np.array([1, 2], np.int32)) * 0.5, [0.5, 1.0], np.float32)
    same(placed(np.array([1, 2], np.int32)) / placed(np.array([4, 8], np.int32)), [0.25, 0.25], np.float32)


@pytest.mark.parametrize("name", [name for name, row in UFUNCS.items() if getattr(np, name).nin == 1])
@given(st.data())
def test_unary_functions_equal_numpy(name, data):
    row, function = UFUNCS[name], getattr(np, name)
    dtype = {"boolean": "bool", "floating": "float32"}.get(row.rule, "int32")
    x = data.draw(arrays(dtype, data.draw(SHAPES)))
    with np.errstate(all="ignore"):
        expected = function(x)
    same(function(placed(x)), expected)


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "mean"])
@given(st.data())
def test_reductions(name, data):
    dtype = data.draw(st.sampled_from(["float32", "int32"]))
    x = data.draw(arrays(dtype, data.draw(hnp.array_shapes(max_dims=4, max_side=3))))
    axis = data.draw(st.none() | hnp.valid_tuple_axes(x.ndim, min_size=1) | st.integers(-x.ndim, x.ndim - 1))
    keepdims = data.draw(st.booleans())
    with np.errstate(over="ignore"):  # a long product overflows to inf on both sides
        expected = getattr(np, name)(x.astype(np.float64) if name == "mean" else x, axis=axis, keepdims=keepdims)
    kind = np.float32 if name == "mean" else x.dtype
    got = getattr(np, name)(placed(x), axis=axis, keepdims=keepdims)
    np.testing.assert_allclose(got.numpy(), np.asarray(expected).astype(kind), rtol=1e-5, atol=1e-6)
    assert got.dtype == kind and got.shape == np.asarray(expected).shape
    same(getattr(placed(x), name)(axis, keepdims), got.numpy())


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@given(st.data())
def test_arg_min_and_arg_max(name, data):
    x = data.draw(arrays("int32", data.draw(hnp.array_shapes(max_dims=3, max_side=3))))
    axis = data.draw(st.none() | st.integers(-x.ndim, x.ndim - 1))
    same(getattr(np, name)(placed(x), axis), getattr(np, name)(x, axis))


@given(st.data())
def test_matrix_products(data):
    rows, inner, columns = (data.draw(st.integers(1, 4)) for _ in range(3))
    x, y = (data.draw(arrays("float32", shape)) for shape in ((rows, inner), (inner, columns)))
    same(placed(x) @ placed(y), x @ y)
    same(placed(x) @ y[:, 0], x @ y[:, 0])


@given(st.data())
def test_moving_elements(data):
    x = data.draw(arrays(data.draw(TYPES), data.draw(hnp.array_shapes(max_dims=4, max_side=3))))
    order = data.draw(st.permutations(range(x.ndim)))
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    t = placed(x)
    same(t.transpose(order), x.transpose(order))
    same(t.T, x.T)
    same(t.reshape(-1), x.reshape(-1))
    same(np.ravel(t), np.ravel(x))
    same(np.expand_dims(t, axis), np.expand_dims(x, axis))
    same(np.concatenate([t, t, x], axis), np.concatenate([x, x, x], axis))
    same(np.stack([t, t], axis), np.stack([x, x], axis))
    same(np.broadcast_to(t, (2, *x.shape)), np.broadcast_to(x, (2, *x.shape)))
    same(np.moveaxis(t, axis, 0), np.moveaxis(x, axis, 0))
    same(np.squeeze(t), np.squeeze(x))
    same(np.where(t, t, np.zeros_like(x)), np.where(x, x, np.zeros_like(x)))


@given(st.data())
def test_indexing(data):
    x = data.draw(arrays("int32", data.draw(hnp.array_shapes(max_dims=4, max_side=4))))
    key = data.draw(hnp.basic_indices(x.shape, allow_newaxis=True).filter(lambda key: 0 not in x[key].shape))
    same(placed(x)[key], x[key])


@given(st.data())
def test_take(data):
    x = data.draw(arrays("float32", (4, 3)))
    numbers = data.draw(st.lists(st.integers(-4, 3), min_size=1, max_size=5))
    same(placed(x)[numbers], x[numbers])
    same(np.take(placed(x), numbers, axis=0), np.take(x, numbers, axis=0))
