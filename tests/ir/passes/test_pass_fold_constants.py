from functools import partial

import numpy as np

from nnadapter.ir import ABSENT
from nnadapter.ir.definition import by_definition
from nnadapter.ir.passes import fold_constants
from nnadapter.ir.structure import numbers, with_numbers
from nnadapter.ir.symbolic_numbers import SymbolicTrace
from tests.ir.passes.program import Program, check, origins, random, types

FOLD = partial(fold_constants, evaluate=by_definition)


def test_a_chain_of_constants_is_computed():
    program = Program(x=(2, 3))
    weight = program("EXP", program("ADD", random(1, 3), random(2, 3)))
    after = check(FOLD, program.finish(program("MUL", program.x, weight)))
    assert types(after) == ["MUL"]
    assert len(origins(after)) == 3


def test_without_evaluator_only_data_movement_is_folded():
    program = Program(x=(2, 3))
    one = program(
        "TRANSPOSE", program("SLICE", random(1, 3, 4), axes=(1,), starts=(3,), ends=(1,), steps=(-1,)), perm=(1, 0)
    )
    two, _ = program("SPLIT", program("CONCAT", random(2, 2, 3), random(3, 2, 3), axis=0), axis=0, split=(2, 2))
    three = program(
        "EXPAND", program("TILE", program("RESHAPE", random(4, 3), shape=(1, 3)), repeats=(2, 1)), shape=(2, 3)
    )
    y = program.x
    for each in (one, two, three, program("ASSIGN", random(5, 2, 3)), program("EXP", random(6, 2, 3))):
        y = program("ADD", y, each)
    after = check(fold_constants, program.finish(y))
    assert sorted(types(after)) == ["ADD"] * 5 + ["EXP"]


def test_results_are_cached():
    calls = []

    def evaluate(model, inputs):
        calls.append(model)
        return by_definition(model, inputs)

    weight = random(1, 3)
    weight.flags.writeable = False
    for _ in range(2):
        program = Program(x=(2, 3))
        y = program("ADD", program("MUL", program.x, program("EXP", weight)), program("TILE", weight, repeats=(1,)))
        after = fold_constants(program.finish(y), evaluate=evaluate)
        assert types(after) == ["MUL", "ADD"]
    # Results of operations with sizes among their attributes are not cached: they may differ for every shape.
    assert sorted(model.operations[0].type for model in calls) == ["EXP", "TILE", "TILE"]


def test_unevaluable_operation_is_not_folded():
    program = Program(x=(2, 3))
    model = program.finish(program("MUL", program.x, program("EXP", random(1, 3))))
    assert fold_constants(model, evaluate=lambda model, inputs: None) is model


def test_outputs_and_large_results_are_not_folded():
    program = Program(x=(2, 3))
    big, small = program("EXPAND", random(1, 1, 3), shape=(100, 3)), program("EXP", random(1, 3))
    y = program(
        "MUL", program("SLICE", big, axes=(0,), starts=(0,), ends=(2,), steps=(1,)), program("ADD", program.x, small)
    )
    model = program.finish(y, program("ASSIGN", random(2, 3)))
    assert types(check(partial(FOLD, most_bytes=1000), model)) == ["EXPAND", "SLICE", "ADD", "MUL", "ASSIGN"]


def test_symbolic_sizes_are_not_folded_on_request():
    program = Program(x=(7, 3))
    y = program("ADD", program.x, program("EXPAND", program("EXP", random(1, 1, 3)), shape=(7, 3)))
    model = program.finish(y)
    trace = SymbolicTrace()
    seven = trace.variable(7)
    traced = with_numbers(model, [seven if value == 7 else value for value in numbers(model)])
    assert types(FOLD(traced, sizes=False)) == ["EXPAND", "ADD"]
    assert trace.replay([9]) is not None
    assert types(FOLD(traced)) == ["ADD"]
    assert trace.replay([9]) is None


def test_absent_inputs_are_absent():
    program = Program(x=(2, 3))
    weight = program("FULLY_CONNECTED", random(1, 3, 4), random(2, 3, 4), ABSENT)
    after = check(FOLD, program.finish(program("MAT_MUL", program.x, weight)))
    assert types(after) == ["MAT_MUL"]
    np.testing.assert_allclose(
        after.operands[after.operations[0].inputs[1]].value, random(1, 3, 4) @ random(2, 3, 4).T, rtol=1e-5
    )


def test_scalar_is_folded_to_an_array():
    program = Program(x=(2, 3))
    part = program("SLICE", np.array(1.5, np.float32), axes=(), starts=(), ends=(), steps=())
    after = fold_constants(program.finish(program("ADD", program.x, part)))
    assert types(after) == ["ADD"]
    assert all(isinstance(operand.value, np.ndarray | None) for operand in after.operands)
