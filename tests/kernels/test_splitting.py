"""Segments split around kernels: same results, as few programs as possible."""

from __future__ import annotations

import functools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nnadapter.ir import DataType, ModelBuilder, OperandType, verify
from nnadapter.ir.definition import by_definition
from nnadapter.ir.operations import CUSTOM, CustomCall
from nnadapter.kernels import ir_segment, split, without_calls

TYPE = OperandType(DataType.FLOAT32, (2,))


def call():
    return CustomCall(domain="d", op_type="Add", since_version=1, present=(0, 1), outputs=(TYPE,)).to_attributes()


def segment_of(model):
    return ir_segment(model, lambda operation, types: True)


@st.composite
def models(draw):
    builder = ModelBuilder()
    values = [builder.add_input("x", TYPE), builder.add_constant("c", np.array([1, 2], np.float32))]
    for custom in draw(st.lists(st.booleans(), min_size=1, max_size=12)):
        pair = [draw(st.sampled_from(values)), draw(st.sampled_from(values))]
        values += builder.add_operation(CUSTOM if custom else "ADD", pair, call() if custom else None)
    outputs = draw(st.lists(st.sampled_from(values), min_size=1, max_size=4))
    return builder.finish(outputs)


@settings(deadline=None)
@given(models())
def test_pieces_in_order_equal_the_segment(model):
    names = [named_operand.name for named_operand in model.operands]
    values = {
        named_operand.name: named_operand.value for named_operand in model.operands if named_operand.value is not None
    }
    values[names[model.inputs[0]]] = np.array([3, 4], np.float32)
    expected = dict(values)
    for operation in model.operations:
        first, other = (expected[names[operand]] for operand in operation.inputs)
        expected[names[operation.outputs[0]]] = first + other
    for piece in split(segment_of(model)):
        piece_inputs = [values[operand] for operand in piece.inputs]
        if piece.model is None:
            results = [piece_inputs[0] + piece_inputs[1]]
        else:
            verify(piece.model)
            results = by_definition(piece.model, piece_inputs)
        values.update(zip(piece.outputs, results, strict=True))
    assert all(np.array_equal(values[names[operand]], expected[names[operand]]) for operand in model.outputs)


@given(models())
def test_every_operation_is_in_one_of_few_pieces(model):
    pieces = split(segment_of(model))
    assert sorted(at for piece in pieces for at in piece.operations) == list(range(len(model.operations)))

    @functools.cache
    def turns(operand):
        """Return the most times that a path to an operand enters the driver, and whether it ends in a call."""
        at = model.producer.get(operand)
        if at is None:
            return 0, False
        custom = model.operations[at].type == CUSTOM
        producers = [turns(source) for source in model.operations[at].inputs]
        if custom:
            return max(count for count, _ in producers), True
        return max(count + (after_call or count == 0) for count, after_call in producers), False

    # Lower bound only: a path may end in a call that waits for programs of another path.
    programs = sum(piece.model is not None for piece in pieces)
    most = max((turns(operand)[0] for operation in model.operations for operand in operation.outputs), default=0)
    assert programs >= most
    levels = 1 + sum(operation.type == CUSTOM for operation in model.operations)
    assert programs <= levels


@given(models())
def test_driver_gets_no_custom_operations(model):
    remaining, positions = without_calls(segment_of(model))
    assert [operation.type for operation in remaining.operations] == ["ADD"] * len(positions)
    if positions:
        verify(remaining)
