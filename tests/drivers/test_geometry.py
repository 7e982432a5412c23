from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

from nnadapter.drivers import geometry
from nnadapter.ir import DataType, ModelBuilder, NamedOperation, OperandType
from nnadapter.ir.definition import by_definition
from tests.models import numbers


def operation_and_result(type_, attributes, x, *constants):
    """Return a named operation, and its results by the definition."""
    builder = ModelBuilder()
    operand = builder.add_input("x", OperandType(DataType.FLOAT32, x.shape))
    more = [builder.add_constant(f"c{number}", constant) for number, constant in enumerate(constants)]
    model = builder.finish(builder.add_operation(type_, (operand, *more), attributes))
    return NamedOperation(model, model.operations[0]), by_definition(model, [x])[0]


def windows(operation, x, fill):
    """Return the windows of a pool as [N, C, rows, columns, taps]."""
    padded = np.pad(x, ((0, 0), (0, 0), *geometry.window_padding(operation)), constant_values=fill)
    (down, across), (apart_down, apart_across) = operation.strides, operation.dilations
    extent = [(k - 1) * d + 1 for k, d in zip(operation.kernel_shape, operation.dilations, strict=True)]
    result = sliding_window_view(padded, extent, axis=(2, 3))[:, :, ::down, ::across, ::apart_down, ::apart_across]
    return result.reshape(*operation.output.type.dimensions, -1)


POOLS = [
    {"kernel_shape": kernel, "strides": strides, "pads": pads, "dilations": dilations, "ceil_mode": ceil_mode}
    for kernel, strides, pads, dilations, ceil_mode in itertools.product(
        [(2, 3), (3, 2)], [(1, 1), (2, 3), (4, 2)], [(0, 0, 0, 0), (1, 0, 0, 1)], [(1, 1), (2, 1)], [False, True]
    )
]


@pytest.mark.parametrize("included", [False, True])
def test_pools(included):
    x = numbers(1, 2, 7, 6)
    for attributes in POOLS:
        operation, expected = operation_and_result("MAX_POOL_2D", attributes, x)
        np.testing.assert_array_equal(windows(operation, x, -np.inf).max(-1), expected, str(attributes))
        operation, expected = operation_and_result("AVERAGE_POOL_2D", {**attributes, "count_include_pad": included}, x)
        divisors = geometry.window_divisors(operation)
        assert divisors.dtype == np.float32
        computed = windows(operation, x, 0).sum(-1) / divisors
        np.testing.assert_allclose(computed, expected, rtol=1e-5, atol=1e-6, err_msg=str(attributes))


def test_volumes_and_convolutions():
    x = numbers(1, 2, 5, 4, 6)
    pool = {"kernel_shape": (2, 2, 3), "strides": (2, 3, 2), "pads": (0, 1, 0, 1, 0, 1), "ceil_mode": True}
    operation, expected = operation_and_result("AVERAGE_POOL_3D", pool, x)
    assert geometry.window_divisors(operation).shape == expected.shape[2:]
    assert geometry.window_padding(operation) == ((0, 1), (1, 0), (0, 1))
    operation, _ = operation_and_result("CONV_2D", {"pads": (1, 2, 0, 1)}, numbers(1, 2, 5, 4), numbers(3, 2, 2, 2))
    assert geometry.window_padding(operation) == ((1, 0), (2, 1))


@pytest.mark.parametrize("pads", [(0, 0, 0, 0), (1, 0, 2, 1), (0, 3, 1, 0)])
@pytest.mark.parametrize("output_padding", [(0, 0), (1, 0)])
def test_transposed_convolutions(pads, output_padding):
    x, filters = numbers(1, 2, 4, 3), numbers(2, 3, 3, 4, seed=1)
    attributes = {"strides": (2, 2), "output_padding": output_padding}
    _, complete = operation_and_result("CONV_2D_TRANSPOSE", attributes, x, filters)
    operation, expected = operation_and_result("CONV_2D_TRANSPOSE", {**attributes, "pads": pads}, x, filters)
    np.testing.assert_allclose(complete[(..., *geometry.transposed_crop(operation))], expected, rtol=1e-5)


MODES = ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel", "half_pixel_symmetric")
SIZES = [((5, 4), (8, 9)), ((7, 6), (3, 1)), ((3, 1), (3, 4)), ((5, 5), (5, 5))]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("nearest", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_indices_of_nearest_resize(mode, nearest):
    for source_shape, target_shape in SIZES:
        x = numbers(1, 2, *source_shape)
        scales = (1.0, 1.0, *(target / size for size, target in zip(source_shape, target_shape, strict=True)))
        attributes = {"shape": (1, 2, *target_shape), "scales": scales, "coordinate_transformation_mode": mode}
        operation, expected = operation_and_result("RESIZE_NEAREST", {**attributes, "nearest_mode": nearest}, x)
        for axis in geometry.resized_axes(operation):
            x = np.take(x, geometry.nearest_indices(operation, axis), axis)
        np.testing.assert_array_equal(x, expected)


@pytest.mark.parametrize("mode", MODES)
def test_indices_of_linear_resize(mode):
    for source_shape, target_shape in SIZES:
        x = numbers(1, 2, *source_shape)
        scales = (1.0, 1.0, *(target / size for size, target in zip(source_shape, target_shape, strict=True)))
        attributes = {"shape": (1, 2, *target_shape), "scales": scales, "coordinate_transformation_mode": mode}
        operation, expected = operation_and_result("RESIZE_LINEAR", attributes, x)
        for axis in geometry.resized_axes(operation):
            first, second, share = geometry.linear_indices(operation, axis)
            assert share.dtype == np.float32
            share = share.reshape(-1, *[1] * (x.ndim - 1 - axis))
            x = np.take(x, first, axis) * (1 - share) + np.take(x, second, axis) * share
        np.testing.assert_allclose(x, expected, rtol=1e-5, atol=1e-6)


def test_slices():
    x = numbers(7, 4)
    rising = [(start, end, step) for start in (0, 2, 7) for end in (0, 5, 7) for step in (1, 3)]
    falling = [(start, end, step) for start in (0, 4, 6, 7) for end in (-8, 0, 3, 6) for step in (-1, -2, -4)]
    for start, end, step in rising + falling:
        attributes = {"starts": (start, 1), "ends": (end, 4), "axes": (0, 1), "steps": (step, 2)}
        operation, expected = operation_and_result("SLICE", attributes, x)
        np.testing.assert_array_equal(x[geometry.slices(operation)], expected)
        where, turned = geometry.positive_slices(operation)
        assert all(part.step is None or part.step > 0 for part in where)
        np.testing.assert_array_equal(np.flip(x[where], turned), expected)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
@pytest.mark.parametrize("pads", [(0, 0, 0, 0), (2, -1, 1, 2), (-1, 2, -2, -1)])
def test_pads(mode, pads):
    x = numbers(5, 4)
    operation, expected = operation_and_result("PAD", {"pads": pads, "mode": mode, "value": 0.0}, x)
    crop, widths = geometry.crop_and_padding(operation)
    np.testing.assert_array_equal(np.pad(x[crop], widths, mode=mode), expected)
