import pytest

from nnadapter.errors import InvalidOptionError
from nnadapter.ir.passes import PASSES, run_passes
from tests.ir.passes.program import Program, check, origins, random, types

SIMPLIFY = PASSES["simplify"]


def test_copies_are_bypassed():
    program = Program(x=(2, 3))
    y = program("CAST", program("ASSIGN", program("ASSIGN", program.x)), to="float32")
    assert types(check(SIMPLIFY, program.finish(program("RELU", y)))) == ["RELU"]


def test_copy_passes_its_output_name_to_the_producer():
    program = Program(x=(2, 3))
    after = check(SIMPLIFY, program.finish(program("ASSIGN", program("RELU", program.x))))
    assert types(after) == ["RELU"]


def test_copies_of_model_inputs_and_outputs_remain():
    program = Program(x=(2, 3))
    y = program("RELU", program.x)
    model = program.finish(program("ASSIGN", program.x), y, program("ASSIGN", y))
    assert SIMPLIFY(model) is model


def test_effective_cast_remains():
    program = Program(x=(2, 3))
    model = program.finish(program("CAST", program.x, to="float16"))
    assert SIMPLIFY(model) is model


def test_reshapes_are_merged():
    program = Program(x=(2, 3))
    y = program("RESHAPE", program("RESHAPE", program("RESHAPE", program.x, shape=(6,)), shape=(1, 6)), shape=(3, 2))
    assert types(check(SIMPLIFY, program.finish(y))) == ["RESHAPE"]


def test_inverse_reshapes_are_removed():
    program = Program(x=(2, 3))
    y = program("RESHAPE", program("RESHAPE", program.x, shape=(6,)), shape=(2, 3))
    assert types(check(SIMPLIFY, program.finish(program("RELU", y)))) == ["RELU"]


def test_shared_reshape_remains():
    program = Program(x=(2, 3))
    flat = program("RESHAPE", program.x, shape=(6,))
    after = check(SIMPLIFY, program.finish(flat, program("RELU", program("RESHAPE", flat, shape=(3, 2)))))
    assert types(after) == ["RESHAPE", "RESHAPE", "RELU"]
    assert after.operations[1].inputs == after.inputs


@pytest.mark.parametrize(("second", "left"), [((1, 2, 0), ["RELU"]), ((0, 2, 1), ["TRANSPOSE", "RELU"])])
def test_transposes_are_merged(second, left):
    program = Program(x=(2, 3, 4))
    y = program("TRANSPOSE", program("TRANSPOSE", program.x, perm=(2, 0, 1)), perm=second)
    assert types(check(SIMPLIFY, program.finish(program("RELU", y)))) == left


def test_dead_operations_are_removed():
    program = Program(x=(2, 3), unused=(1,))
    program("TANH", program("MUL", program.x, random(1, 3)))
    values, indices = program("TOP_K", program.x, k=1, axis=1)
    after = check(PASSES["remove_dead"], program.finish(program("RELU", values)), keeps_origins=False)
    assert types(after) == ["TOP_K", "RELU"]
    assert len(after.operands) == 5
    assert indices


@pytest.mark.parametrize("name", PASSES)
def test_unchanged_model_is_the_same_object(name):
    program = Program(x=(2, 3))
    model = program.finish(program("SOFTMAX", program.x, axis=1))
    assert PASSES[name](model) is model


def test_observer_sees_every_step():
    program = Program(x=(2, 3))
    model = program.finish(program("RELU", program("ASSIGN", program.x)))
    observed = []
    after = run_passes(
        model, ["remove_dead", SIMPLIFY], lambda name, old, new: observed.append((name, len(new.operations)))
    )
    assert observed == [("remove_dead", 2), ("simplify", 1)]
    assert origins(after) == origins(model)


def test_unknown_pass_is_named():
    program = Program(x=(2, 3))
    with pytest.raises(InvalidOptionError, match=r"'simplfy'; did you mean 'simplify'"):
        run_passes(program.finish(program.x), ["simplfy"])


def test_sum_of_two_becomes_an_addition():
    program = Program(x=(2, 3), z=(3,))
    y = program("SUM", program("CONCAT", program("SUM", program.x, program.z), axis=0), program.x, program.z)
    assert types(check(SIMPLIFY, program.finish(program("SUM", y)))) == ["ADD", "SUM"]
