from __future__ import annotations

import numpy as np
import pytest

from nnadapter.ir.definition import by_definition
from tests.drivers.xla.harness import computed, model_of, numbers


@pytest.mark.parametrize("dtype", ["int32", "uint8"])
@pytest.mark.parametrize("type_", ["DIV", "FLOOR_DIV", "MOD"])
def test_division_by_0_returns_0(type_, dtype):
    x, zeros = np.arange(4).astype(dtype), np.zeros(4, dtype)
    (result,) = computed(model_of(type_, [(dtype, (4,))] * 2), x, zeros)
    assert result.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("dtype", ["uint8", "uint64", "int64"])
def test_integer_powers_wrap_around(dtype):
    x = np.array([0, 1, 2, 3, 3], dtype)
    exponents = np.array([64, 64, 127, 100, 0], dtype)
    model = model_of("POW", [(dtype, (5,))] * 2)
    expected = [pow(int(base), int(exponent), 1 << 8 * x.itemsize) for base, exponent in zip(x, exponents, strict=True)]
    assert computed(model, x, exponents)[0].astype(f"u{x.itemsize}").tolist() == expected


def test_cast_of_floats_to_uint64():
    x = np.array([0, 255.9, 2.0**63, -1.5], np.float32)
    model = model_of("CAST", [("float32", (4,))], {"to": "uint64"})
    assert computed(model, x)[0].tolist() == by_definition(model, [x])[0].tolist() == [0, 255, 2**63, 2**64 - 1]


POSITIONS = np.array([-6, -(2**31), 5, 2**31 - 1, -5, -1], np.int32)
"""Two indices before the first of 5 elements, two after the last, the first, the last."""


@pytest.mark.parametrize("type_", ["GATHER", "GATHER_ELEMENTS", "GATHER_ND"])
def test_indices_out_of_bounds_read_the_nearest_element(type_):
    indices = POSITIONS[:, None] if type_ == "GATHER_ND" else POSITIONS
    attributes = {"batch_dims": 0} if type_ == "GATHER_ND" else {"axis": 0}
    model = model_of(type_, [("float32", (5,)), ("int32", indices.shape)], attributes)
    assert computed(model, np.arange(5, dtype=np.float32), indices)[0].tolist() == [0, 0, 4, 4, 0, 4]


@pytest.mark.parametrize("type_", ["SCATTER_ELEMENTS", "SCATTER_ND"])
def test_indices_out_of_bounds_write_nothing(type_):
    indices = POSITIONS[:, None] if type_ == "SCATTER_ND" else POSITIONS
    attributes = {"reduction": "none"} | ({"axis": 0} if type_ == "SCATTER_ELEMENTS" else {})
    model = model_of(type_, [("float32", (5,)), ("int32", indices.shape), ("float32", (6,))], attributes)
    result = computed(model, np.zeros(5, np.float32), indices, np.arange(1, 7, dtype=np.float32))[0]
    assert result.tolist() == [5, 0, 0, 0, 6]


@pytest.mark.parametrize("is_constant", [True, False])
@pytest.mark.parametrize(
    ("type_", "sizes", "kernel"),
    [("CONV_2D", (9, 7), (3, 2)), ("CONV_3D", (5, 6, 4), (2, 1, 3)), ("CONV_2D", (8, 8), (8, 7))],
)
def test_depthwise_convolutions(type_, sizes, kernel, is_constant):
    """Small kernels become sums of shifted images; XLA computes the 8 x 7 one."""
    x, weight, bias = numbers(2, 5, *sizes), numbers(5, 1, *kernel), numbers(5)
    rank = len(sizes)
    pads = tuple(range(1, rank + 1)) + (0,) * rank
    attributes = {"strides": (2,) + (1,) * (rank - 1), "pads": pads, "dilations": (1,) * (rank - 1) + (2,), "group": 5}
    attributes["dilations"] = (1,) * rank if kernel == (8, 7) else attributes["dilations"]
    constants = [weight, bias] if is_constant else []
    inputs = [x] if is_constant else [x, weight, bias]
    model = model_of(type_, [("float32", array.shape) for array in inputs], attributes, constants)
    np.testing.assert_allclose(computed(model, *inputs)[0], by_definition(model, inputs)[0], 1e-4, 1e-5)
