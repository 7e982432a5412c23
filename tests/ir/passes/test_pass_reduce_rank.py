from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnadapter.errors import InvalidOptionError
from nnadapter.ir import to_text
from nnadapter.ir.passes import reduce_rank, run_passes
from tests.ir.passes.program import Program, check, random, types

SHAPE = (2, 3, 4, 5, 6)
UNARY = {
    "RELU": {},
    "TRANSPOSE": {"perm": (0, 3, 1, 4, 2)},
    "REDUCE_SUM": {"axes": (0, 2, 4), "keepdims": False},
    "REDUCE_MEAN": {"axes": (0, 2, 4), "keepdims": True},
    "REDUCE_MAX": {"axes": (1, 2), "keepdims": True},
    "SOFTMAX": {"axis": 2},
    "CUM_SUM": {"axis": 4},
    "ARG_MAX": {"axis": 1, "keepdims": False},
    "SPLIT": {"axis": 2, "split": (1, 3)},
    "SLICE": {"axes": (4, 0, 2), "starts": (1, 1, 3), "ends": (6, 2, 0), "steps": (2, 1, -1)},
    "PAD": {"pads": (1, 0, 2, 0, 1, 0, 0, 0, 1, -1), "value": 0.5},
    "TILE": {"repeats": (2, 1, 3, 1, 2)},
    "EXPAND": {"shape": (7, 2, 3, 4, 5, 6)},
    "TOP_K": {"axis": 3, "k": 2},
    "GATHER": {"axis": 2},
    "GATHER_ELEMENTS": {"axis": 2},
    "MAT_MUL": {},
    "FULLY_CONNECTED": {},
    "BATCH_NORMALIZATION": {},
    "INSTANCE_NORMALIZATION": {},
    "LAYER_NORMALIZATION": {"axis": 3},
}
OTHERS = {
    "GATHER": [np.array([[0, -1], [2, 1]])],
    "GATHER_ELEMENTS": [np.arange(2 * 3 * 2 * 5 * 6).reshape(2, 3, 2, 5, 6) % 4],
    "MAT_MUL": [random(1, 4, 6, 4)],
    "FULLY_CONNECTED": [random(1, 4, 6)],
    "BATCH_NORMALIZATION": [np.abs(random(seed, 3)) + 1 for seed in range(4)],
    "INSTANCE_NORMALIZATION": [random(seed, 3) for seed in range(2)],
    "LAYER_NORMALIZATION": [random(seed, 5, 6) for seed in range(2)],
}


def largest_inside(model):
    """Return the largest rank of the intermediate values."""
    border = {*model.inputs, *model.outputs}
    return max((each.type.rank for index, each in enumerate(model.operands) if index not in border), default=0)


def single_operation(type_):
    """Put the operation between two others of high rank, to keep its values off the model's boundary."""
    program = Program(x=SHAPE)
    result = program(type_, program("TANH", program.x), *OTHERS.get(type_, []), **UNARY[type_])
    result = result if isinstance(result, tuple) else (result,)
    return program.finish(*(program("ABS", each) for each in result))


@pytest.mark.parametrize("largest", [4, 5])
@pytest.mark.parametrize("type_", UNARY)
def test_operations_with_fewer_dimensions(type_, largest):
    reduce = partial(reduce_rank, largest=largest)
    after = check(reduce, single_operation(type_))
    assert largest_inside(after) <= largest
    assert reduce(after) is after


def test_broadcasting_is_preserved():
    program = Program(x=SHAPE, y=(3, 1, 1, 6))
    y = program("ADD", program("MUL", program.x, random(1, 4, 5, 1)), program.y)
    after = check(reduce_rank, program.finish(program("SUB", y, 1.0)))
    assert largest_inside(after) <= 4
    assert types(after) == ["RESHAPE", "MUL", "RESHAPE", "RESHAPE", "ADD", "SUB", "RESHAPE"]


def test_slope_rank_is_at_most_the_input_rank():
    program = Program(x=SHAPE)
    y = program("PRELU", program("REDUCE_SUM", program.x, axes=(0, 1), keepdims=True), np.full((1, 1, 1, 1), 0.5, "f"))
    assert largest_inside(check(reduce_rank, program.finish(y))) <= 4


def test_broadcasting_that_alternates_too_often_is_refused():
    program = Program(x=SHAPE, y=(2, 1, 4, 1, 6))
    model = program.finish(program("ADD", program.x, program.y))
    assert reduce_rank(model) is model
    program = Program(x=SHAPE, y=(2, 1, 4, 1, 6))
    y = program("ADD", program("RELU", program.x), program.y)
    assert types(check(reduce_rank, program.finish(y))) == ["RESHAPE", "RELU", "RESHAPE", "ADD"]


def test_window_partition_is_reduced_to_rank_4():
    program = Program(x=(1, 4, 6, 8))
    windows = program("RESHAPE", program.x, shape=(1, 2, 2, 3, 2, 8))
    windows = program("TRANSPOSE", windows, perm=(0, 1, 3, 2, 4, 5))
    model = program.finish(program("RESHAPE", windows, shape=(6, 4, 8)))
    after = check(lambda each: run_passes(each, ["reduce_rank", "simplify"]), model)
    assert types(after) == ["RESHAPE", "TRANSPOSE", "RESHAPE"]
    assert max(operand.type.rank for operand in after.operands) == 4


def test_integers_are_not_averaged_in_steps():
    program = Program("int32", x=SHAPE)
    model = program.finish(program("REDUCE_MEAN", program.x, axes=(0, 2, 4), keepdims=True))
    assert reduce_rank(model) is model


def test_small_models_are_unchanged_and_rank_limit_2_is_refused():
    program = Program(x=(2, 3))
    model = program.finish(program("RELU", program.x))
    assert reduce_rank(model) is model
    with pytest.raises(InvalidOptionError, match="3 or more"):
        reduce_rank(model, largest=2)


SIZES = st.sampled_from([1, 1, 2, 3])


@st.composite
def chains(draw):
    program = Program(
        draw(st.sampled_from(["float32", "float64"])), x=[draw(SIZES) for _ in range(draw(st.integers(3, 6)))]
    )
    values = [program.x]
    for _ in range(draw(st.integers(1, 6))):
        x = draw(st.sampled_from(values))
        values.append(draw(st.sampled_from(STEPS))(draw, program, x, program.dimensions(x)))
    return program.finish(*(each for each in program.made if each not in program.read))


def transpose(draw, program, x, dimensions):
    return program("TRANSPOSE", x, perm=tuple(draw(st.permutations(range(len(dimensions))))))


def reshape(draw, program, x, dimensions):
    shape = list(draw(st.permutations(dimensions)))
    shape.insert(draw(st.integers(0, len(shape))), 1) if draw(st.booleans()) else shape.append(1)
    return program("RESHAPE", x, shape=tuple(shape))


def add(draw, program, x, dimensions):
    shape = [draw(st.sampled_from([1, size])) for size in dimensions][draw(st.integers(0, len(dimensions))) :]
    return program("ADD", x, np.asarray(random(1, *shape), program.dtype))


def reduce(draw, program, x, dimensions):
    if len(dimensions) < 3:
        return program("RELU", x)
    axes = draw(st.sets(st.integers(0, len(dimensions) - 1), min_size=1, max_size=len(dimensions) - 2))
    return program(
        draw(st.sampled_from(["REDUCE_MEAN", "REDUCE_MAX"])), x, axes=tuple(sorted(axes)), keepdims=draw(st.booleans())
    )


def pad(draw, program, x, dimensions):
    return program("PAD", x, pads=tuple(draw(st.sampled_from([0, 0, 1])) for _ in range(2 * len(dimensions))))


def softmax(draw, program, x, dimensions):
    return program("SOFTMAX", x, axis=draw(st.integers(0, len(dimensions) - 1)))


STEPS = [transpose, transpose, reshape, add, reduce, pad, softmax]


@pytest.mark.slow
@given(chains(), st.integers(3, 5))
def test_chains_compute_the_same_after_one_run(model, largest):
    function = partial(reduce_rank, largest=largest)
    after = check(function, model)
    assert to_text(function(after)) == to_text(after)
