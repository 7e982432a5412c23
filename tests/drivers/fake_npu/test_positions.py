"""Kernels that gather and scatter, compared with the definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnadapter.errors import InputValueError
from tests.drivers.fake_npu.against_definition import agrees
from tests.drivers.fake_npu.harness import floats, model_of, run, run_model

_DTYPES = ["float32", "float16", "int8", "uint8", "int32", "int64", "bool"]


def _numbers(shape, dtype="float32", seed=0):
    return np.random.default_rng(seed).integers(0, 5, shape).astype(dtype)


def _indices(shape, size, dtype="int64", seed=0):
    return np.random.default_rng(seed).integers(-size, size, shape).astype(dtype)


@pytest.mark.parametrize("dtype", _DTYPES)
def test_every_data_type_is_moved(dtype):
    x = _numbers((3, 4), dtype)
    agrees("GATHER_ND", [x, _indices((5, 2), 3)], {"batch_dims": 0})
    agrees("SCATTER_ELEMENTS", [x, np.array([[2], [-1]]), _numbers((2, 1), dtype, 1)], {"axis": 0})
    agrees("SCATTER_ND", [x, np.array([[2], [0]], np.int32), _numbers((2, 4), dtype, 1)])
    agrees("TENSOR_SCATTER", [x, _numbers((3, 2), dtype, 1), np.array([0, 2, 1])], {"axis": 1})
    agrees("ONE_HOT", [_indices((2, 3), 6), np.array([0, 1], dtype)], {"axis": 1, "depth": 4})
    agrees("REVERSE_SEQUENCE", [x, np.array([4, 0, 3], np.int32)], {"batch_axis": 0, "time_axis": 1})


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "int32"])
def test_scatter_reductions(dtype, reduction):
    x, updates = _numbers((4, 5), dtype), _numbers((3, 5), dtype, 1)
    agrees("SCATTER_ELEMENTS", [x, _indices((3, 5), 4), updates], {"axis": 0, "reduction": reduction})
    agrees("SCATTER_ND", [x, _indices((3, 1), 4, "int32"), updates], {"reduction": reduction})


@given(st.data())
def test_scatter_elements_of_any_shape(data):
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    axis = data.draw(st.integers(0, len(shape) - 1))
    smaller = [data.draw(st.integers(1, 6 if place == axis else size)) for place, size in enumerate(shape)]
    inputs = [_numbers(shape), _indices(smaller, shape[axis]), _numbers(smaller, seed=1)]
    agrees("SCATTER_ELEMENTS", inputs, {"axis": axis, "reduction": "add"})


@given(st.data())
def test_gather_inverts_scatter(data):
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    depth = data.draw(st.integers(1, len(shape)))
    places = np.argwhere(np.ones(shape[:depth]))
    rows = data.draw(st.permutations(range(len(places))))
    x, updates = _numbers(shape), _numbers((len(places), *shape[depth:]), seed=1)
    scattered = run("SCATTER_ND", [x, places[rows], updates])
    np.testing.assert_array_equal(run("GATHER_ND", [scattered, places[rows]]), updates)


@pytest.mark.parametrize("batch_dims", [0, 1, 2])
def test_gather_nd_by_batches(batch_dims):
    agrees("GATHER_ND", [floats(2, 2, 3, 4), _indices((2, 2, 5, 1), 2)], {"batch_dims": batch_dims})


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_one_hot_of_any_numbers(axis, dtype):
    agrees("ONE_HOT", [_numbers((3, 2), dtype), floats(2)], {"axis": axis, "depth": 3})


def test_one_hot_of_a_scalar():
    agrees("ONE_HOT", [np.array(2), floats(2)], {"axis": 0, "depth": 3})


@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_tensor_scatter(mode, axis):
    shape = [3, 4, 4, 2]
    shape[axis] = 2
    starts = np.array([0, 2, 1]) if mode == "linear" else np.array([3, 9, -2])
    agrees("TENSOR_SCATTER", [floats(3, 4, 4, 2), floats(*shape, seed=1), starts], {"axis": axis, "mode": mode})
    agrees("TENSOR_SCATTER", [floats(3, 4, 4, 2), floats(*shape, seed=1)], {"axis": axis, "mode": mode})


@pytest.mark.parametrize(
    ("type_", "arrays", "attributes", "message"),
    [
        ("GATHER_ND", [floats(3), np.array([[3]])], {}, "3 for an axis of 3"),
        ("SCATTER_ND", [floats(3), np.array([[-4]]), floats(1)], {}, "-4 for an axis of 3"),
        ("SCATTER_ELEMENTS", [floats(3), np.array([5]), floats(1)], {"axis": 0}, "5 for an axis of 3"),
        ("TENSOR_SCATTER", [floats(1, 3), floats(1, 2), np.array([2])], {"axis": 1}, "from 2 to 3"),
        ("REVERSE_SEQUENCE", [floats(2, 1), np.array([3])], {"batch_axis": 1, "time_axis": 0}, "3 for 2 time"),
    ],
)
def test_positions_outside_are_errors(type_, arrays, attributes, message):
    model, feeds = model_of(type_, arrays, attributes)
    with pytest.raises(InputValueError, match=message):
        run_model(model, feeds)
