from __future__ import annotations

import pytest

from nnadapter.costs import CLASS_OF_TYPE, OperationClass, channels_of, class_of
from nnadapter.ir import SCHEMAS
from tests.ir.passes.program import Program, random


def test_every_operation_has_a_class():
    assert CLASS_OF_TYPE.keys() == SCHEMAS.keys()


@pytest.mark.parametrize(
    ("group", "expected", "channels"),
    [(1, "convolution", (48, 48)), (2, "convolution", (24, 24)), (8, "narrow", (0, 6)), (48, "depthwise", (0, 48))],
)
def test_class_of_a_convolution_depends_on_input_channels(group, expected, channels):
    program = Program(x=(1, 48, 5, 5))
    model = program.finish(program("CONV_2D", program.x, random(1, 48, 48 // group, 3, 3), group=group))
    assert class_of(model, model.operations[0]) is OperationClass(expected)
    assert channels_of(model, model.operations[0]) == channels


def test_products_of_two_computed_tensors_have_a_class():
    program = Program(x=(4, 4))
    model = program.finish(program("MAT_MUL", program.x, program("MAT_MUL", program.x, random(1, 4, 4))))
    assert [class_of(model, operation) for operation in model.operations] == [
        OperationClass.MATRIX,
        OperationClass.PAIRED,
    ]


@pytest.mark.parametrize(
    ("dimensions", "other", "expected"),
    [
        ((2, 3, 4), None, "sum normalization"),  # two computed tensors
        ((2, 3, 4), (2, 3, 4), "normalization"),  # constants do not count
        ((3, 4), None, "normalization"),  # engines require a batch dimension
    ],
)
def test_normalizations_of_sums_have_a_class(dimensions, other, expected):
    program = Program(x=dimensions)
    made = program("TANH", program.x) if other is None else random(1, *other)
    scale = random(2, dimensions[-1])
    total = program("ADD", program.x, made)
    model = program.finish(program("LAYER_NORMALIZATION", total, scale, axis=len(dimensions) - 1))
    assert class_of(model, model.operations[-1]) is OperationClass(expected)


def test_piecewise_linear_functions_have_a_class():
    assert {CLASS_OF_TYPE[each] for each in ("HARD_SWISH", "HARD_SIGMOID")} == {OperationClass.PIECEWISE}
    assert CLASS_OF_TYPE["RELU"] is OperationClass.ELEMENTWISE
