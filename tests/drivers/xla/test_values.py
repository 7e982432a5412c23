"""Values that random sweeps rarely reach."""

from __future__ import annotations

import numpy as np
import pytest

import nnadapter as nna
from benchmarks.models.networks import networks
from nnadapter.ir import DataType, ModelBuilder, OperandType, Quantization
from nnadapter.ir.definition import by_definition
from tests.drivers.xla.harness import DEVICE, computed, model_of, numbers
from tests.models import run_whole


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("int8", [0, -1, 127, -128, -128, 0]),
        ("int32", [-(2**31), -1, 127, 128, 2**31 - 128, -(2**31)]),
        ("int64", [-(2**63), -1, 127, 128, 2**31 - 128, -(2**63)]),
        ("uint8", [0, 255, 127, 128, 128, 0]),
    ],
)
def test_casts_of_floats_out_of_range_equal_the_processor(dtype, expected):
    array = np.array([np.nan, -1.5, 127.9, 128, 2**31 - 128, np.inf], np.float32)
    (result,) = computed(model_of("CAST", [("float32", (6,))], {"to": dtype}), array)
    assert result.tolist() == expected


def test_products_of_16_bits_add_up_in_32():
    x = np.full((1, 4096), 1 / 64, np.float16)
    weight = np.full((1, 4096), 1 / 64, np.float16)
    (result,) = computed(model_of("FULLY_CONNECTED", [("float16", (1, 4096))], constants=[weight]), x)
    assert result.dtype == np.float16 and result.item() == 1.0


def test_transposed_convolution_of_a_column_does_not_crash():
    attributes = {"strides": (2, 2), "pads": (1, 0, 1, 1), "dilations": (1, 1), "group": 1, "output_padding": (0, 0)}
    model = model_of("CONV_2D_TRANSPOSE", [("float32", (5, 13, 11, 1)), ("float32", (13, 1, 2, 2))], attributes)
    inputs = numbers(5, 13, 11, 1), numbers(13, 1, 2, 2)
    np.testing.assert_allclose(computed(model, *inputs)[0], by_definition(model, inputs)[0], 1e-4, 1e-4)


@pytest.mark.parametrize("depth", [8, 1024])
def test_sums_of_quantized_products_are_exact(depth):
    """8 products fit into float32 exactly, 1,024 do not."""
    random = np.random.default_rng(0)
    first_quantization, two = (Quantization(scale=(0.5,), zero_point=(point,)) for point in (3, -128))
    builder = ModelBuilder()
    x = builder.add_input("x", OperandType(DataType.UINT8, (2, depth), quantization=first_quantization))
    weight = random.integers(-128, 128, (3, depth)).astype(np.int8)
    y = builder.add_constant("w", weight, two)
    model = builder.finish(builder.add_operation("FULLY_CONNECTED", (x, y), {}))
    array = random.integers(0, 256, (2, depth)).astype(np.uint8)
    expected = (array.astype(np.int64) - 3) @ (weight.astype(np.int64) + 128).T
    (result,) = computed(model, array)
    assert result.dtype == np.int32 and result.tolist() == expected.tolist()


def test_lower_index_of_equal_values_comes_first():
    x = np.array([[1, 3, 3, 0, 3]], np.float32)
    model = model_of("TOP_K", [("float32", (1, 5))], {"k": 4, "axis": 1, "largest": True, "sorted": True})
    values, places = computed(model, x)
    assert values.tolist() == [[3, 3, 3, 1]] and places.tolist() == [[1, 2, 4, 0]]


def test_all_operations_of_fake_npu_have_a_row():
    import nnadapter.drivers.fake_npu.operations as fake_npu
    from nnadapter.drivers.registry import open_device

    rows = {row.type: row for row in open_device(DEVICE).capability.operations}
    assert fake_npu.OPERATIONS.keys() <= rows.keys()
    for type_, row in fake_npu.OPERATIONS.items():
        assert row.dtypes & rows[type_].dtypes


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "digits",
        "recurrent",
        *(pytest.param(network, marks=pytest.mark.sweep) for network in ("segmentation", "mobile")),
    ],
)
def test_networks_run_in_one_segment(name):
    model = networks()[name]()
    x = numbers(*(dimension.dim_value for dimension in model.graph.input[0].type.tensor_type.shape.dim))
    with nna.InferenceSession(model, devices=DEVICE, options=nna.Options(fallback="forbid")) as session:
        (result,) = session.run(None, {"x": x})
        assert len(session.report().segments) == 1
    (expected,) = run_whole(model, {"x": x})
    np.testing.assert_allclose(result, expected, 1e-4, 1e-5)
