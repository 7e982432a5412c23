from __future__ import annotations

from functools import partial

import ml_dtypes
import numpy as np
import pytest

from nnadapter.errors import InvalidModelError
from nnadapter.ir import DataType, ModelBuilder, OperandType, check_attributes, check_inputs, schema_of, verify
from tests.work import growth

_FLOAT, _INT = DataType.FLOAT32, DataType.INT32
_IMAGE, _FILTER = OperandType(_FLOAT, (1, 3, 8, 8)), OperandType(_FLOAT, (4, 3, 3, 3))
_CONVOLUTION, _POOL = schema_of("CONV_2D"), schema_of("MAX_POOL_2D")


def test_defaults_are_filled_in_schema_order():
    complete = check_attributes(_CONVOLUTION, {"pads": (1, 1, 1, 1)})
    assert list(complete) == [attribute.name for attribute in _CONVOLUTION.attributes]
    assert complete["strides"] == (1, 1)
    assert complete["pads"] == (1, 1, 1, 1)


def test_defaults_are_not_shared():
    check_attributes(_CONVOLUTION, {})["group"] = 7
    assert check_attributes(_CONVOLUTION, {})["group"] == 1


@pytest.mark.parametrize("given", [[2, 1], np.array([2, 1]), (np.int64(2), np.int32(1))])
def test_lists_become_tuples_of_python_numbers(given: object):
    strides = check_attributes(_CONVOLUTION, {"strides": given})["strides"]
    assert strides == (2, 1)
    assert [type(value) for value in strides] == [int, int]


@pytest.mark.parametrize(("given", "expected"), [(1, 1.0), (np.float32(0.5), 0.5), (np.int64(2), 2.0)])
def test_numbers_become_floats(given: object, expected: float):
    alpha = check_attributes(schema_of("ELU"), {"alpha": given})["alpha"]
    assert (type(alpha), alpha) == (float, expected)


@pytest.mark.parametrize(
    ("type_", "given", "message"),
    [
        ("CONV_2D", {"stride": (1, 1)}, "unknown attribute 'stride'; did you mean 'strides'"),
        ("ABS", {"x": 1}, "unknown attribute 'x'; known: none"),
        ("CONV_2D", {"group": True}, "attribute 'group' is True, expected a value of kind int"),
        ("CONV_2D", {"group": 1.0}, "attribute 'group' is 1.0, expected a value of kind int"),
        ("CONV_2D", {"strides": (1, 1.5)}, "expected a value of kind ints"),
        ("CONV_2D", {"strides": 1}, "expected a value of kind ints"),
        ("CONV_2D", {"strides": (1,)}, r"attribute 'strides' is \(1,\), expected 2 values"),
        ("CONV_2D", {"fuse_code": "relu6"}, "attribute 'fuse_code' is 'relu6', expected one of"),
        ("CONV_2D", {"fuse_code": 0}, "expected a value of kind string"),
        ("CLIP", {"min": "0"}, "expected a value of kind float"),
        ("MAT_MUL", {"transpose_x": 1}, "expected a value of kind bool"),
        ("MAX_POOL_2D", {}, r"attributes \['kernel_shape'\] are missing"),
    ],
)
def test_invalid_attributes_are_refused(type_, given, message):
    with pytest.raises(InvalidModelError, match=f"^{type_}: .*{message}"):
        check_attributes(schema_of(type_), given)


@pytest.mark.parametrize("types", [(_IMAGE, _FILTER), (_IMAGE, _FILTER, None), (_IMAGE, _FILTER, _IMAGE)])
def test_optional_inputs_may_be_absent(types):
    check_inputs(_CONVOLUTION, types)


@pytest.mark.parametrize(
    ("type_", "types", "message"),
    [
        ("CONV_2D", (_IMAGE,), r"1 inputs, expected 2 to 3 \(input, filter, bias\?\)"),
        ("CONV_2D", (_IMAGE,) * 4, "4 inputs, expected 2 to 3"),
        ("CONCAT", (), r"0 inputs, expected 1 or more \(inputs…\)"),
        ("CONV_2D", (_IMAGE, None), "input 'filter' is absent"),
        ("CONV_2D", (OperandType(_INT, (1, 3, 8, 8)), _FILTER), "input 'input' is int32, expected one of bfloat16, "),
        (
            "CONV_2D",
            (_IMAGE, OperandType(DataType.FLOAT16, (4, 3, 3, 3))),
            "input 'filter' is float16, expected float32",
        ),
        ("CONV_2D", (OperandType(_FLOAT, (3, 8, 8)), _FILTER), r"float32\[3, 8, 8\] has rank 3, expected 4"),
        ("SOFTMAX", (OperandType(_FLOAT, ()),), "has rank 0, expected 1 or more"),
        ("SUM", (_IMAGE, OperandType(DataType.FLOAT64, ())), "input 'inputs' is float64, expected float32"),
        ("ADD", (_IMAGE, OperandType(_INT, ())), "input 'y' is int32, expected float32 as 'x'"),
    ],
)
def test_invalid_inputs_are_refused(type_, types, message):
    with pytest.raises(InvalidModelError, match=f"^{type_}: .*{message}"):
        check_inputs(schema_of(type_), types)


def test_bfloat16_is_a_floating_type():
    half = OperandType(DataType(np.dtype(ml_dtypes.bfloat16).name), (2,))
    check_inputs(schema_of("EXP"), (half,))


@pytest.mark.slow
def test_large_model_takes_linear_work():
    assert growth(lambda count: partial(_build, count), 1_000) < 10


def _build(count: int) -> None:
    builder = ModelBuilder()
    current = builder.add_input("x", _IMAGE)
    filter_ = builder.add_constant("w", np.zeros((3, 3, 3, 3), np.float32))
    for _ in range(count // 2):
        (current,) = builder.add_operation("CONV_2D", (current, filter_), {"pads": (1, 1, 1, 1)})
        (current,) = builder.add_operation("RELU", (current,))
    verify(builder.finish([current]))
