"""Models marked as verified without a check."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nnadapter.errors import InvalidModelError
from nnadapter.ir import DataType, Layout, Model, ModelBuilder, OperandType, Quantization, submodel, verify
from tests.random_models.models import make_case


def chain(length: int = 4) -> Model:
    builder = ModelBuilder()
    values = [builder.add_input("x", OperandType(DataType.FLOAT32, (2,)))]
    for _ in range(length):
        values += builder.add_operation("RELU", (values[-1],))
    return builder.finish([values[-1]])


@given(st.integers(0, 10_000))
def test_built_models_are_valid(seed: int) -> None:
    model = make_case(Random(seed), 8).model
    assume(model.operations)
    assert model.is_verified
    verify(replace(model))
    operations = sorted({seed % len(model.operations), (seed // 7) % len(model.operations)})
    made = {operand for index in operations for operand in model.operations[index].outputs}
    read = {operand for index in operations for operand in model.operations[index].inputs if operand >= 0}
    inputs = sorted(index for index in read - made if model.operands[index].value is None)
    part = submodel(model, operations, inputs, sorted(made))
    assert part.is_verified
    verify(replace(part))


def test_submodel_of_all_operations_is_the_model() -> None:
    model = chain()
    assert submodel(model, range(4), model.inputs, model.outputs) is model
    assert submodel(model, range(4), model.inputs, (*model.outputs, 1)) is not model
    assert submodel(model, range(3), model.inputs, (3,)) is not model
    hinted = replace(model, covarying_number_groups=((0,),)).mark_verified()
    assert submodel(hinted, range(4), model.inputs, model.outputs).covarying_number_groups == ()
    unchecked = replace(model)
    assert submodel(unchecked, range(4), model.inputs, model.outputs) is not unchecked


@pytest.mark.parametrize(
    ("operations", "inputs", "outputs"),
    [
        ((1, 0), (0,), (2,)),
        ((1, 2), (), (3,)),
        ((0, 2), (0,), (3,)),
        ((-1, 0, 1), (0,), (2,)),
        ((0, 1), (0, 0), (2,)),
        ((0, 1), (0, 1), (2,)),
    ],
)
def test_incomplete_submodels_are_not_verified(operations, inputs, outputs) -> None:
    part = submodel(chain(), operations, inputs, outputs)
    assert not part.is_verified
    with pytest.raises(InvalidModelError):
        verify(part)


def test_changed_model_is_verified_again() -> None:
    model = chain()
    verify(model)
    changed = replace(model, inputs=(0, 0))
    assert not changed.is_verified
    with pytest.raises(InvalidModelError, match="no duplicates"):
        verify(changed)


@pytest.mark.parametrize(
    ("dtype", "quantization", "message"),
    [
        ("int8", {"scale": (1.0,) * 3, "zero_point": (0,) * 3, "axis": 5}, "along axis 5, expected one of 0 to 1"),
        ("int8", {"scale": (1.0, 2.0), "zero_point": (0, 0), "axis": 1}, "2 scales and 2 zero points, expected 3"),
        ("int8", {"scale": (-1.0,), "zero_point": (0,)}, "a scale that is not positive"),
        ("int8", {"scale": (float("nan"),), "zero_point": (0,)}, "a scale that is not positive"),
        ("int8", {"scale": (1.0,), "zero_point": (1000,)}, "a zero point outside its data type"),
        ("float32", {"scale": (1.0,), "zero_point": (0,)}, "expected an integer data type"),
    ],
)
def test_builder_refuses_invalid_quantization(dtype, quantization, message) -> None:
    given = Quantization(**quantization)
    with pytest.raises(InvalidModelError, match=message):
        ModelBuilder().add_input("x", OperandType(DataType(dtype), (2, 3), quantization=given))
    with pytest.raises(InvalidModelError, match=message):
        ModelBuilder().add_constant("c", np.zeros((2, 3), dtype), given)


def test_builder_refuses_images_of_another_rank() -> None:
    with pytest.raises(InvalidModelError, match="expected rank 4 for layout NHWC"):
        ModelBuilder().add_input("x", OperandType(DataType.FLOAT32, (2, 3), Layout.NHWC))
