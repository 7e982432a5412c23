from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnadapter.errors import InvalidModelError
from nnadapter.ir import DataType
from tests.ir.operations.shape_oracle import flops, infer, onnx_dimensions, operand


def _infer(type_, shapes, **attributes):
    """Infer with float inputs, except for the inputs that hold indices."""
    names = {"GATHER_ND": (1,), "SCATTER_ELEMENTS": (1,), "SCATTER_ND": (1,), "TENSOR_SCATTER": (2,)}
    integers = {**names, "REVERSE_SEQUENCE": (1,)}.get(type_, ())
    inputs = [operand(*shape, dtype="int64" if at in integers else "float32") for at, shape in enumerate(shapes)]
    return infer(type_, inputs, **attributes)


@given(st.data())
def test_gather_nd_agrees_with_onnx(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    batch = data.draw(st.integers(0, len(shape) - 1))
    depth = data.draw(st.integers(1, len(shape) - batch))
    indices = (*shape[:batch], *data.draw(st.lists(st.integers(1, 3), max_size=2)), depth)
    (result,) = _infer("GATHER_ND", [shape, indices], batch_dims=batch)
    array = np.zeros(indices, np.int64)
    assert [result.dimensions] == onnx_dimensions("GatherND", [shape, array], opset=13, batch_dims=batch)


def test_one_hot_has_the_type_of_its_values():
    (result,) = infer("ONE_HOT", [operand(2, 3, dtype="int64"), operand(2, dtype="int8")], axis=1, depth=5)
    assert (result.dimensions, result.dtype) == ((2, 5, 3), DataType.INT8)


_ERRORS = [
    ("GATHER_ND", [(2, 3), (4, 3)], {}, "the last dimension of indices is 3, expected at most 2"),
    ("GATHER_ND", [(2, 3), (3, 1)], {"batch_dims": 1}, "differ in their first 1 dimensions"),
    ("GATHER_ND", [(2, 3), (2, 1)], {"batch_dims": 2}, "batch_dims is 2"),
    ("GATHER_ND", [(2, 3), ()], {"batch_dims": 0}, "batch_dims is 0"),
    ("SCATTER_ELEMENTS", [(2, 3), (2,), (2,)], {"axis": 0}, "indices has rank 1, expected 2"),
    ("SCATTER_ELEMENTS", [(2, 3), (2, 4), (2, 4)], {"axis": 0}, "indices has 4 elements along axis 1"),
    ("SCATTER_ELEMENTS", [(2, 3), (2, 3), (2, 2)], {"axis": 0}, r"updates has dimensions \[2, 2\]"),
    ("SCATTER_ELEMENTS", [(2, 3), (2, 3), (2, 3)], {"axis": 2}, "axis is 2"),
    ("SCATTER_ND", [(2, 3), (4, 1), (4, 2)], {}, r"updates has dimensions \[4, 2\], expected \[4, 3\]"),
    ("SCATTER_ND", [(2, 3), (), ()], {}, "indices is a scalar"),
    ("TENSOR_SCATTER", [(2, 3), (2, 2)], {"axis": 0}, "axis is 0"),
    ("TENSOR_SCATTER", [(2, 3), (2, 4)], {"axis": 1}, "updates has 4 elements along axis 1, expected at most 3"),
    ("TENSOR_SCATTER", [(2, 3), (3, 2)], {"axis": 1}, r"updates has dimensions \[3, 2\], expected \[2, 2\]"),
    ("TENSOR_SCATTER", [(2, 3), (2, 2), (3,)], {"axis": 1}, r"indices has dimensions \[3\], expected \[2\]"),
    ("ONE_HOT", [(2,), (3,)], {"axis": 0, "depth": 4}, r"values has dimensions \[3\], expected \[2\]"),
    ("ONE_HOT", [(2,), (2,)], {"axis": 2, "depth": 4}, "axis is 2"),
    ("ONE_HOT", [(2,), (2,)], {"axis": 0, "depth": 0}, "depth is 0"),
    ("REVERSE_SEQUENCE", [(2, 3), (2,)], {"batch_axis": 1, "time_axis": 1}, "are both 1"),
    ("REVERSE_SEQUENCE", [(2, 3), (2,)], {"batch_axis": 1, "time_axis": 0}, r"lengths has dimensions \[2\]"),
]


@pytest.mark.parametrize(("type_", "shapes", "attributes", "message"), _ERRORS)
def test_ill_formed_is_refused(type_, shapes, attributes, message):
    with pytest.raises(InvalidModelError, match=f"^{type_}: .*{message}"):
        _infer(type_, shapes, **attributes)


def test_scatter_reduction_counts_one_flop_per_update():
    inputs = [operand(5, 3), operand(4, 1, dtype="int64"), operand(4, 3)]
    assert flops("SCATTER_ND", inputs, reduction="add") == 12
    assert flops("SCATTER_ND", inputs) == 0
