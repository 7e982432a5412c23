import numpy as np
import pytest

from nnadapter.ir import DataType, ModelBuilder, OperandType, Quantization
from nnadapter.ir.operand import freeze
from nnadapter.ir.passes import PASSES
from nnadapter.ir.structure import numbers, with_numbers
from nnadapter.ir.symbolic_numbers import SymbolicTrace
from tests.ir.passes.program import Program, check, random, types

COMMON = PASSES["common_subexpressions"]
IDENTITIES = PASSES["remove_identities"]


def test_duplicate_chain_is_computed_once():
    program = Program(x=(2, 3), y=(2, 3))
    one, other = (program("EXP", program("ADD", *pair)) for pair in ((program.x, program.y), (program.y, program.x)))
    after = check(COMMON, program.finish(program("SUB", one, other)))
    assert types(after) == ["ADD", "EXP", "SUB"]
    assert after.operations[0].origins == ("n1", "n3")


def test_only_equal_constants_merge():
    program = Program(x=(2, 3))
    results = [program("MUL", program.x, freeze(random(seed, 3))) for seed in (1, 1, 2)]
    after = check(COMMON, program.finish(program("SUM", *results)))
    assert types(after) == ["MUL", "MUL", "SUM"]


@pytest.mark.parametrize(("type_", "one", "other"), [("CLIP", 0.0, -0.0), ("LEAKY_RELU", 0.1, 0.2)])
def test_operations_with_other_attributes_do_not_merge(type_, one, other):
    program = Program(x=(2, 3))
    name = {"CLIP": "min", "LEAKY_RELU": "alpha"}[type_]
    model = program.finish(*(program(type_, program.x, **{name: value}) for value in (one, other)))
    assert COMMON(model) is model


def test_two_outputs_keep_their_names():
    program = Program(x=(2, 3))
    one, other = program("EXP", program.x), program("EXP", program.x)
    assert types(check(COMMON, program.finish(one, program("NEG", other)))) == ["EXP", "NEG"]
    program = Program(x=(2, 3))
    model = program.finish(program("EXP", program.x), program("EXP", program.x))
    assert COMMON(model) is model


def test_symbolic_sizes_are_compared_by_origin():
    program = Program(x=(6, 3))
    results = [program("RESHAPE", program.x, shape=(3, 6)) for _ in range(2)]
    model = program.finish(program("ADD", *results))
    trace = SymbolicTrace()
    six = trace.variable(6)
    traced = with_numbers(model, [six if value == 6 else value for value in numbers(model)])
    assert types(COMMON(traced)) == ["RESHAPE", "ADD"]
    assert trace.replay([9]) is not None


NOTHING = {
    "MUL": ((np.ones((2, 1), "f"),), {}),
    "DIV": ((1.0,), {}),
    "ADD": ((np.zeros(3, "f"),), {}),
    "SUB": ((0.0,), {}),
    "POW": ((1.0,), {}),
    "CLIP": ((), {}),
    "PAD": ((), {"pads": (0, 0, 0, 0), "mode": "edge"}),
    "SLICE": ((), {"axes": (0, 1), "starts": (0, 0), "ends": (2, 3), "steps": (1, 1)}),
    "EXPAND": ((), {"shape": (2, 3)}),
    "TILE": ((), {"repeats": (1, 1)}),
    "SPLIT": ((), {"axis": 1, "split": (3,)}),
    "RESIZE_LINEAR": ((), {"shape": (2, 3), "scales": (1.0, 1.0)}),
}


@pytest.mark.parametrize("type_", NOTHING)
def test_identity_operations_are_removed(type_):
    program = Program(x=(2, 3))
    more, attributes = NOTHING[type_]
    y = program(type_, program("TANH", program.x), *more, **attributes)
    after = check(IDENTITIES, program.finish(program("NEG", y)))
    assert types(after) == ["TANH", "NEG"]


SOMETHING = {
    "MUL": ((np.ones((1, 2, 3), "f"),), {}),
    "ADD": ((np.zeros((2, 3), "f"),), {"fuse_code": "relu"}),
    "SUB": ((np.float32(1.0),), {}),
    "PAD": ((), {"pads": (0, 0, 0, 1)}),
    "SLICE": ((), {"axes": (1,), "starts": (3,), "ends": (-4,), "steps": (-1,)}),
    "TILE": ((), {"repeats": (1, 2)}),
    "CLIP": ((), {"max": 0.5}),
}


@pytest.mark.parametrize("type_", SOMETHING)
def test_effective_operations_remain(type_):
    program = Program(x=(2, 3))
    more, attributes = SOMETHING[type_]
    model = program.finish(program(type_, program.x, *more, **attributes))
    assert IDENTITIES(model) is model


def test_quantized_one_is_not_one():
    builder, scale = ModelBuilder(), Quantization(scale=(0.5,), zero_point=(0,))
    x = builder.add_input("x", OperandType(DataType.INT8, (2,), quantization=scale))
    one = builder.add_constant("one", np.ones((), np.int8), scale)
    model = builder.finish(builder.add_operation("MUL", (x, one)))
    assert IDENTITIES(model) is model


def test_identity_at_one_size_is_guarded():
    program = Program(x=(7, 3))
    y = program("PAD", program.x, pads=(7, 0, 0, 0))
    model = program.finish(program("NEG", program("EXPAND", y, shape=(14, 3))))
    trace = SymbolicTrace()
    seven = trace.variable(7)
    places = {7: seven, 14: seven + seven}
    traced = with_numbers(model, [places.get(value, value) for value in numbers(model)])
    assert types(IDENTITIES(traced)) == ["PAD", "NEG"]
    assert trace.replay([5]) is not None
    assert trace.replay([0]) is None
