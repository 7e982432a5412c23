"""Integer nodes with random inputs, as arguments of `tests.converters.single_node`, and their runs on fake_npu."""

import numpy as np

import nnadapter as nna
from tests.converters.single_node import check, expected, make
from tests.models import largest_int8

SCALES = (1, 2, 4, 5, 6, 7)
"""Positions of the scales and zero points in QLinearConv and QLinearMatMul."""


def integers(generator, dtype, *shape, spread=1.0):
    limits = np.iinfo(dtype)
    middle, half = (limits.max + limits.min) // 2, spread * (limits.max - limits.min) / 2
    if limits.min == -128 and largest_int8() < limits.max:
        half = min(half, largest_int8() - 1)
    return generator.integers(int(middle - half), int(middle + half), shape, endpoint=True).astype(dtype)


def scale(value):
    return np.array(value, np.float32)


def check_on_device(op_type, opset, inputs, attributes=None, *, constant=(), outputs=1):
    """Check that the adapter IR of the node and fake_npu equal ONNX Runtime exactly."""
    inputs = [None if value is None else np.asarray(value) for value in inputs]
    conversion = check(op_type, opset, inputs, attributes, constant=constant, outputs=outputs, tolerance=0)
    model = make(op_type, opset, inputs, attributes, constant=constant, outputs=outputs)
    feeds = {f"x{index}": each for index, each in enumerate(inputs) if index not in constant and each is not None}
    session = nna.InferenceSession(
        model.SerializeToString(), devices="fake_npu", options=nna.Options(fallback="forbid")
    )
    for got, want in zip(session.run(None, feeds), expected(model, feeds), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)
    return conversion
