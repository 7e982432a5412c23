from __future__ import annotations

import pytest

from nnadapter.costs.classes import CLASS_OF_TYPE, OperationClass, class_of
from nnadapter.ir.operations import SCHEMAS
from tests.ir.passes.program import Program, random


def test_every_operation_has_a_class():
    assert CLASS_OF_TYPE.keys() == SCHEMAS.keys()


@pytest.mark.parametrize(("group", "expected"), [(1, "convolution"), (2, "convolution"), (6, "depthwise")])
def test_a_convolution_of_each_channel_by_itself_is_depthwise(group, expected):
    program = Program(x=(1, 6, 5, 5))
    model = program.finish(program("CONV_2D", program.x, random(1, 6, 6 // group, 3, 3), group=group))
    assert class_of(model, model.operations[0]) is OperationClass(expected)
