"""What is taken for sound without a look is sound."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnadapter.errors import InvalidModelError
from nnadapter.ir.builder import ModelBuilder
from nnadapter.ir.extract import submodel
from nnadapter.ir.model import Model
from nnadapter.ir.operand import DataType, OperandType
from nnadapter.ir.verify import verify
from tests.random_models.models import make_case


def chain(length: int = 4) -> Model:
    builder = ModelBuilder()
    values = [builder.add_input("x", OperandType(DataType.FLOAT32, (2,)))]
    for _ in range(length):
        values += builder.add_operation("RELU", (values[-1],))
    return builder.finish([values[-1]])


@given(st.integers(0, 10_000))
@settings(max_examples=150, deadline=None)
def test_what_a_builder_makes_is_sound(seed: int) -> None:
    model = make_case(Random(seed), 8).model
    assert model.is_sound
    verify(replace(model))
    operations = sorted({seed % len(model.operations), (seed // 7) % len(model.operations)})
    made = {operand for index in operations for operand in model.operations[index].outputs}
    read = {operand for index in operations for operand in model.operations[index].inputs if operand >= 0}
    inputs = sorted(index for index in read - made if model.operands[index].value is None)
    part = submodel(model, operations, inputs, sorted(made))
    assert part.is_sound
    verify(replace(part))


@pytest.mark.parametrize(
    ("operations", "inputs", "outputs"), [((1, 0), (0,), (2,)), ((1, 2), (), (3,)), ((0, 2), (0,), (3,))]
)
def test_parts_that_lack_something_are_not_taken_for_sound(operations, inputs, outputs) -> None:
    part = submodel(chain(), operations, inputs, outputs)
    assert not part.is_sound
    with pytest.raises(InvalidModelError):
        verify(part)


def test_a_changed_model_is_looked_at_again() -> None:
    model = chain()
    verify(model)
    changed = replace(model, inputs=(0, 0))
    assert not changed.is_sound
    with pytest.raises(InvalidModelError, match="none twice"):
        verify(changed)
