import numpy as np
import pytest

from nnadapter.ir.passes import PASSES
from tests.ir.passes.program import Program, check, origins, random, types

CANCEL = PASSES["cancel_transposes"]
BACK, FORTH = (0, 2, 3, 1), (0, 3, 1, 2)


def between(middle):
    """Return a model with `middle` between two transposes, as converters from channels-last frameworks write it."""
    program = Program(x=(2, 3, 4, 5))
    y = middle(program, program("TRANSPOSE", program("TANH", program.x), perm=BACK))
    return program.finish(program("ABS", program("TRANSPOSE", y, perm=FORTH)))


MIDDLES = {
    "unary": lambda p, y: p("RELU", p("EXP", y)),
    "constants": lambda p, y: p("ADD", p("MUL", y, random(1, 3)), 2.0),
    "itself": lambda p, y: p("ADD", y, p("RELU", y)),
    "softmax": lambda p, y: p("SOFTMAX", y, axis=3),
    "pad": lambda p, y: p("PAD", y, pads=(0, 1, 2, 0, 0, 3, 4, 0)),
    "slice": lambda p, y: p("SLICE", y, axes=(3, 1), starts=(0, 1), ends=(2, 3), steps=(1, 1)),
    "concat": lambda p, y: p("CONCAT", y, p("NEG", y), axis=3),
    "mean": lambda p, y: p("REDUCE_MEAN", y, axes=(1, 2), keepdims=True),
    "tile": lambda p, y: p("TILE", y, repeats=(1, 2, 1, 3)),
}


@pytest.mark.parametrize("middle", MIDDLES)
def test_inverse_transposes_are_removed(middle):
    after = check(CANCEL, between(MIDDLES[middle]))
    assert "TRANSPOSE" not in types(after)


def test_reduction_without_keepdims_absorbs_the_transpose():
    program = Program(x=(2, 3, 4, 5))
    y = program("TRANSPOSE", program.x, perm=BACK)
    after = check(CANCEL, program.finish(program("REDUCE_MEAN", y, axes=(1, 2), keepdims=False)))
    assert types(after) == ["REDUCE_MEAN"]


def test_equal_transposes_of_branches_merge():
    program = Program(x=(2, 3, 4), y=(2, 3, 4))
    one, other = (program("TRANSPOSE", each, perm=(2, 0, 1)) for each in (program.x, program.y))
    after = check(CANCEL, program.finish(program("ADD", one, other)))
    assert types(after) == ["ADD", "TRANSPOSE"]
    assert origins(after) == {"n1", "n2", "n3"}


def test_transpose_of_unit_axes_becomes_reshape():
    program = Program(x=(2, 1, 4))
    after = check(CANCEL, program.finish(program("EXP", program("TRANSPOSE", program.x, perm=(1, 0, 2)))))
    assert types(after) == ["EXP", "RESHAPE"]


@pytest.mark.parametrize("reader", ["MAT_MUL", "SUM"])
def test_unprofitable_transpose_is_unchanged(reader):
    program = Program(x=(3, 3))
    y = program("RELU", program("TRANSPOSE", program.x, perm=(1, 0)))
    model = program.finish(program(reader, y, program("TANH", program.x)))
    assert CANCEL(model) is model


def test_shared_transposed_value_is_computed_once():
    program = Program(x=(2, 3, 4, 5))
    y = program("TRANSPOSE", program.x, perm=BACK)
    other = program("MAT_MUL", y, np.eye(3, dtype="f"))
    after = check(CANCEL, program.finish(other, program("RELU", program("TRANSPOSE", y, perm=FORTH))))
    assert types(after).count("TRANSPOSE") == 1


def test_outputs_keep_their_names_and_inputs_their_order():
    program = Program(x=(2, 3))
    y = program("TRANSPOSE", program("TRANSPOSE", program.x, perm=(1, 0)), perm=(1, 0))
    check(CANCEL, program.finish(y, program("NEG", y)))
