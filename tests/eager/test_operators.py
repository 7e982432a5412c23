"""Operators and `out` arguments of immutable tensors, with numpy as the oracle."""

from __future__ import annotations

import operator

import numpy as np
import pytest

import nnadapter as nna
from nnadapter.errors import InvalidInputError


def placed(array):
    return nna.tensor(array, device="fake_npu")


IN_PLACE = [
    "iadd",
    "isub",
    "imul",
    "itruediv",
    "ifloordiv",
    "imod",
    "ipow",
    "iand",
    "ior",
    "ixor",
    "ilshift",
    "irshift",
]


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_operators_make_a_new_tensor(name):
    nna.set_eager_fallback("allow")
    array = np.array([3, 5], np.int32)
    x = original = placed(array)
    x = getattr(operator, name)(x, 2)
    plain = getattr(operator, name[1:] if name not in ("iand", "ior") else f"{name[1:]}_")
    np.testing.assert_array_equal(x.numpy(), plain(array, 2))
    assert isinstance(x, nna.Tensor) and original.tolist() == [3, 5]


def test_in_place_matrix_products():
    x = placed(np.eye(2, dtype=np.float32))
    x @= x
    assert x.tolist() == [[1, 0], [0, 1]]


def test_tensor_is_added_to_an_array_in_place():
    array = original = np.ones(2, np.float32)
    array += placed(np.float32([1, 2]))
    assert array is original and type(array) is np.ndarray and array.tolist() == [2, 3]
    with pytest.raises(TypeError, match="same_kind"):
        np.add(array, placed(array), out=np.zeros(2, np.int32))


OUTS = {
    "call": (np.add, {}),
    "where": (np.add, {"where": np.array([True, False])}),
    "casting": (np.add, {"casting": "unsafe"}),
}


@pytest.mark.parametrize("name", OUTS)
def test_results_are_written_into_arrays(name):
    nna.set_eager_fallback("allow")
    function, details = OUTS[name]
    array = np.float32([1, 2])
    out, expected = np.zeros(2, np.float32), np.zeros(2, np.float32)
    assert function(array, placed(array), out=out, **details) is out
    np.testing.assert_array_equal(out, function(array, array, out=expected, **details))


def test_functions_write_into_arrays():
    nna.set_eager_fallback("allow")
    x, out = placed(np.float32([[1, 2], [3, 4]])), np.zeros(2, np.float32)
    assert np.add.reduce(x, axis=0, out=out) is out and out.tolist() == [4, 6]
    assert np.sum(x, axis=1, out=out) is out and out.tolist() == [3, 7]
    first, second = np.divmod(placed(np.float32([7])), 2, out=(None, out[:1]))
    assert isinstance(first, nna.Tensor) and second.tolist() == [1] == [out[0]]
    with pytest.raises(TypeError, match="immutable"):
        np.sum(x, axis=0, out=x)


LIMITS = [("uint8", 300), ("uint8", -3), ("int8", 128), ("int32", 2**40), ("int64", 2**70), ("bool", 2), ("float16", 1)]


@pytest.mark.parametrize("name", ["lt", "le", "gt", "ge", "eq", "ne"])
@pytest.mark.parametrize(("dtype", "number"), LIMITS)
def test_comparisons_with_numbers_out_of_range(name, dtype, number):
    nna.set_eager_fallback("allow")
    array = np.array([0, 1], dtype)
    function = getattr(operator, name)
    assert function(placed(array), number).tolist() == function(array, number).tolist()
    assert function(number, placed(array)).tolist() == function(number, array).tolist()


@pytest.mark.parametrize("other", [None, "a", object(), 1j])
def test_comparisons_with_other_objects_equal_numpy(other):
    array = np.float32([1, 2])
    assert (placed(array) == other).tolist() == (array == other).tolist()
    assert (placed(array) != other).tolist() == (array != other).tolist()
    with pytest.raises(InvalidInputError):
        operator.eq(placed(array), placed(array).to("cpu"))


@pytest.mark.parametrize("exponent", [-1, np.int32([1, -1])])
def test_integers_have_no_negative_powers(exponent):
    x = placed(np.int32([2, 3]))
    with pytest.raises(ValueError, match="negative integer powers"):
        x**exponent
    with pytest.raises(ValueError, match="negative integer powers"):
        x.to("cpu") ** exponent


@pytest.mark.parametrize("bounds", [(1.5, 2.5), (0, 2), (None, 1.5), (0.0, None), (float("nan"), 1), (-1, 2)])
@pytest.mark.parametrize("dtype", ["int32", "float32", "bool"])
def test_clip_has_the_type_of_its_bounds(dtype, bounds):
    nna.set_eager_fallback("allow")
    array = np.array([0, 1, 2, 3], dtype)
    got = np.clip(placed(array), *bounds)
    np.testing.assert_array_equal(got.numpy(), np.clip(array, *bounds))
    assert got.dtype == (placed(array) * 0 + sum(bound for bound in bounds if bound is not None)).dtype


@pytest.mark.parametrize(
    ("dtype", "number"), [("int4", 100), ("int4", -9), ("uint4", 16), ("uint4", -1), ("uint8", 256)]
)
def test_numbers_out_of_range_are_refused(dtype, number):
    with pytest.raises(InvalidInputError, match="a tensor needs numbers"):
        nna.tensor([number], dtype)
    assert nna.tensor([7], dtype).tolist() == [7]


@pytest.mark.parametrize("name", ["squeeze", "ravel", "flatten", "copy", "any", "all"])
@pytest.mark.parametrize("values", [[[0, 2]], [[1, 2]], [[0, 0]]])
def test_methods_equal_numpy(name, values):
    array = np.int32(values)
    np.testing.assert_array_equal(getattr(placed(array), name)().numpy(), getattr(array, name)())
    if name in ("any", "all", "squeeze"):
        np.testing.assert_array_equal(getattr(placed(array), name)(0).numpy(), getattr(array, name)(0))


def test_formats_and_empty_indices():
    x = placed(np.float32([1.256, 2]))
    assert f"{x[0]:.2f}" == "1.26" and round(x[0], 1) == 1.3 and round(x[0]) == 1 and f"{x}" == str(x)
    nna.set_eager_fallback("allow")
    assert x[[]].shape == (0,) and x[[]].dtype == np.float32
