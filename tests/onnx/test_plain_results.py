"""Constant folding with numpy: ONNX Runtime's result, or none."""

from __future__ import annotations

import itertools

import numpy as np
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from nnadapter.candidates import OPERATORS
from nnadapter.onnx import read_model
from nnadapter.onnx.preparation import plain_result

A = np.arange(24).reshape(2, 3, 4)
ROW = np.array([[5, -1, 0, 7]])


def ints(*values):
    return np.array(values, np.int64)


CASES = [
    ("Identity", [A], {}, 17),
    *(
        ("Reshape", [A, ints(*sizes)], {}, 17)
        for sizes in ((6, 4), (0, -1), (-1,), (2, 0, 2, 2), (24, 1), (5, 5), (-1, -1))
    ),
    *(("Reshape", [A[:0], ints(*sizes)], {"allowzero": 1}, 17) for sizes in ((0, 4), (3, 0, 2))),
    ("Reshape", [A.reshape(24)[:1], np.zeros(0, np.int64)], {}, 17),
    *(("Squeeze", [ROW, ints(axis)], {}, 17) for axis in (0, -2, 1)),
    ("Squeeze", [ROW], {}, 17),
    ("Squeeze", [ROW], {"axes": [0]}, 11),
    *(("Unsqueeze", [A, ints(*axes)], {}, 17) for axes in ((0,), (-1,), (0, 3), (1, -1), (4, 0), (0, 0))),
    ("Unsqueeze", [A], {"axes": [1, 2]}, 11),
    *(("Concat", [A, A[:1]], {"axis": axis}, 17) for axis in (0, -3, 1)),
    *(("Transpose", [A], attributes, 17) for attributes in ({}, {"perm": [2, 0, 1]}, {"perm": [0, 1, 2]})),
    *(
        ("Gather", [A, index], {"axis": axis}, 17)
        for axis in (0, -1)
        for index in (ints(0, 1), ints(-1), np.array(1), ints(9))
    ),
    *(
        ("Slice", [A, ints(start), ints(end), ints(axis), ints(step)], {}, 17)
        for start, end, axis, step in itertools.product((0, -2, 9, -9), (2, -1, 99, -99), (1, -1), (1, 2, -1))
    ),
    ("Slice", [A, ints(1, 0), ints(2, 2)], {}, 17),
    ("Slice", [A], {"starts": [1], "ends": [2]}, 9),
    *(
        ("Cast", [array.astype(dtype)], {"to": to}, 17)
        for dtype in ("int32", "int64", "bool", "uint8")
        for to in (1, 6, 7, 9, 11)
        for array in (ints(0, 1, -1, 2**24 + 1, 2**31 + 3, -(2**40) - 1),)
    ),
    *(
        (op_type, [left.astype(dtype), right.astype(dtype)], {}, 17)
        for op_type in ("Add", "Sub", "Mul", "Div", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
        for dtype in ("int32", "int64", "uint8")
        for left, right in (
            (A, np.array(3)),
            (A[0], A[1]),
            (ints(2**31 - 1, 7), ints(2**31 - 1, 2)),
            (ints(-7), ints(2)),
        )
    ),
    *(("Expand", [ROW, ints(*sizes)], {}, 17) for sizes in ((4,), (3, 4), (2, 1, 1), (2, 3, 1, 4), (5, 5))),
    *(("Tile", [ROW, ints(*repeats)], {}, 17) for repeats in ((1, 1), (2, 3), (0, 1), (2,))),
    *(
        ("Range", [np.array(bound) for bound in bounds], {}, 17)
        for bounds in ((0, 5, 1), (3, 9, 4), (5, 0, -2), (0, 5, -1), (0, 0, 1))
    ),
    *(("Where", [mask, A, other], {}, 17) for mask in (A > 7, np.array(True)) for other in (np.array(-1), A[::-1])),
    ("Constant", [], {"value_ints": [1, 2]}, 17),
    ("Constant", [], {"value_int": 3}, 17),
    ("Constant", [], {"value_float": 0.1}, 17),
    ("Constant", [], {"value_floats": [0.1, 2.0]}, 17),
    ("Constant", [], {"value": numpy_helper.from_array(A.astype(np.float32))}, 17),
    ("Constant", [], {"value": numpy_helper.from_array(np.float16(1.5))}, 17),
    ("Constant", [], {"value_string": "x"}, 17),
]


def model_of_node(op_type, arrays, attributes, opset):
    names = [f"x{at}" for at in range(len(arrays))]
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(each.dtype), each.shape)
        for name, each in zip(names, arrays, strict=True)
    ]
    node = helper.make_node(op_type, names, ["y"], **attributes)
    outputs = [helper.make_empty_tensor_value_info("y")]
    graph = helper.make_graph([node], "g", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), dict(
        zip(names, arrays, strict=True)
    )


def by_onnxruntime(model, feed):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feed)[0]
    except Exception:  # noqa: BLE001  it does not run
        return None


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_results_equal_onnxruntime(case):
    model, feed = model_of_node(*case)
    (node,) = read_model(model, OPERATORS, ["node"], ()).nodes
    result, expected = plain_result(node, feed), by_onnxruntime(model, feed)
    if result is not None:
        np.testing.assert_array_equal(result, expected, strict=True)


def test_most_cases_have_a_result():
    made = 0
    for case in CASES:
        model, feed = model_of_node(*case)
        (node,) = read_model(model, OPERATORS, ["node"], ()).nodes
        made += plain_result(node, feed) is not None
    assert made > 0.7 * len(CASES)


def test_cases_reserved_for_onnxruntime_have_no_result():
    unlike = A.astype(np.int32)
    for case in [
        ("Concat", [A, unlike], {"axis": 0}, 17),
        ("Cast", [np.float32([1e20])], {"to": 6}, 17),
        ("Add", [A, unlike], {}, 17),
        ("Add", [np.float32([1]), np.float32([2])], {}, 17),
        ("Add", [A, A], {}, 6),
        ("Div", [A, ints(0)], {}, 17),
        ("Div", [A, ints(np.iinfo(np.int64).min)], {}, 17),
        ("Div", [np.uint8([5]), np.uint8([0])], {}, 17),
        ("Where", [A > 7, A, unlike], {}, 17),
        ("Range", [np.float32(each) for each in (0, 1, 0.1)], {}, 17),
    ]:
        model, feed = model_of_node(*case)
        (node,) = read_model(model, OPERATORS, ["node"], ()).nodes
        assert plain_result(node, feed) is None
