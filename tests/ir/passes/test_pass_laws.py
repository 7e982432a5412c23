"""Laws of the passes: in any order, they preserve the results of random models."""

from math import pi, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnadapter.drivers.fake_npu import PASSES as DEVICE_PASSES
from nnadapter.ir import DataType, to_text, verify
from nnadapter.ir.definition import by_definition
from nnadapter.ir.passes import PASSES, check_numbers, run_passes
from nnadapter.ir.structure import constants, numbers
from tests.ir.passes.program import Program, border, check, random

TOLERANCES = {"float64": 1e-9, "float32": 2e-4, "float16": 1e-1}
STEP_TOLERANCES = {DataType(dtype): 5 * tolerance for dtype, tolerance in TOLERANCES.items()}
IDEMPOTENT = sorted(PASSES)
ACTIVATIONS = ["RELU", "SIGMOID", "TANH", "GELU", "HARD_SWISH", "HARD_SIGMOID", "LEAKY_RELU", "SWISH", "CLIP"]


def constant(draw, program, *dimensions):
    """Return numbers near one: nothing grows, and a missing factor shows."""
    value = random(draw(st.integers(0, 9)), *dimensions)
    return np.asarray(np.sign(value) * (0.6 + 0.3 * np.abs(np.tanh(value))), program.dtype)


def number(draw, program, value):
    """Return a scalar in one of the forms of exporters, sometimes with a wrong value or too many axes."""
    shape = draw(st.sampled_from([(), (), (1,), (1, 1, 1, 1), (1,) * 5]))
    return np.full(shape, value * draw(st.sampled_from([1, 1, 1, 1, 1, 1.25])), program.dtype)


def either_way(draw, program, type_, left, right):
    return program(type_, *((left, right) if draw(st.booleans()) else (right, left)))


def convolution(draw, program, x):
    if len(program.dimensions(x)) != 4:
        return product(draw, program, x)
    channels, group = program.dimensions(x)[1], draw(st.sampled_from([1, 1, program.dimensions(x)[1]]))
    bias = [constant(draw, program, channels)] if draw(st.booleans()) else []
    filter_ = constant(draw, program, channels, channels // group, 1, 1) / (channels // group)
    type_ = draw(st.sampled_from(["CONV_2D", "CONV_2D", "CONV_2D_TRANSPOSE"]))
    return program(type_, x, filter_.astype(program.dtype), *bias, group=group)


def batch_normalization(draw, program, x):
    if len(program.dimensions(x)) != 4:
        return activation(draw, program, x)
    statistics = [constant(draw, program, program.dimensions(x)[1]) for _ in range(4)]
    return program("BATCH_NORMALIZATION", x, *statistics[:3], np.abs(statistics[3]), epsilon=0.1)


def product(draw, program, x):
    size = program.dimensions(x)[-1]
    weight = (constant(draw, program, size, size) / size).astype(program.dtype)
    if draw(st.booleans()):
        return program("FULLY_CONNECTED", x, weight, constant(draw, program, size))
    return program("MAT_MUL", x, weight, transpose_y=draw(st.booleans()))


def scale(draw, program, x):
    """Apply a constant of any shape that broadcasts, often not along the channels."""
    dimensions = program.dimensions(x)
    rank = draw(st.integers(0, len(dimensions)))
    kept = dimensions[len(dimensions) - rank :]
    shape = draw(st.sampled_from([kept, (1,) * rank, *[_along(kept, axis) for axis in range(rank)]]))
    value = constant(draw, program, *shape)
    type_ = draw(st.sampled_from(["MUL", "ADD", "SUB", "DIV"]))
    return program("DIV", x, value) if type_ == "DIV" else either_way(draw, program, type_, x, value)


def _along(dimensions, axis):
    return tuple(size if position == axis else 1 for position, size in enumerate(dimensions))


def activation(draw, program, x):
    type_ = draw(st.sampled_from(ACTIVATIONS))
    return program(type_, x, **({"min": 0.0, "max": 6.0} if type_ == "CLIP" else {}))


def gelu(draw, program, x):
    def times(left, right):
        return either_way(draw, program, "MUL", left, right)

    if draw(st.booleans()):
        inner = program("ERF", program("DIV", x, number(draw, program, sqrt(2))))
    else:
        cube = times(number(draw, program, 0.044715), times(x, program("MUL", x, x)))
        inner = program("TANH", times(either_way(draw, program, "ADD", x, cube), number(draw, program, sqrt(2 / pi))))
    raised = either_way(draw, program, "ADD", inner, number(draw, program, 1))
    if draw(st.booleans()):
        return times(times(x, number(draw, program, 0.5)), raised)
    return times(times(x, raised), number(draw, program, 0.5))


def hard_swish(draw, program, x):
    clipped = program("CLIP", either_way(draw, program, "ADD", x, number(draw, program, 3)), min=0.0, max=6.0)
    gated = clipped if draw(st.booleans()) else either_way(draw, program, "MUL", x, clipped)
    return program("DIV", gated, number(draw, program, 6))


def swish(draw, program, x):
    inner = x if draw(st.booleans()) else program("MUL", x, number(draw, program, 1.5))
    return either_way(draw, program, "MUL", x, program("SIGMOID", inner))


def layer_normalization(draw, program, x):
    dimensions = program.dimensions(x)
    last = len(dimensions) - 1
    choices = st.sampled_from([(last,), (last,), (last,), (last - 1,), (last - 1, last)])
    usual = draw(choices)

    def mean(y):
        return program("REDUCE_MEAN", y, axes=draw(st.one_of(st.just(usual), choices)), keepdims=True)

    one = program("SUB", x, mean(x))
    other = program("SUB", x, mean(x)) if draw(st.booleans()) else one
    square = program("POW", other, number(draw, program, 2)) if draw(st.booleans()) else program("MUL", other, one)
    variance = either_way(draw, program, "ADD", mean(square), number(draw, program, 1))
    quotient = program("DIV", one, program("SQRT", variance))
    scaled = program("MUL", quotient, constant(draw, program, *dimensions[usual[0] :]))
    return program("ADD", scaled, constant(draw, program, *dimensions[usual[0] :])) if draw(st.booleans()) else scaled


def addition(draw, program, x):
    y = program("ASSIGN", x) if draw(st.booleans()) else program("RELU", x)
    return program("ADD", x, y)


def movement(draw, program, x):
    dimensions = program.dimensions(x)
    perm = tuple(draw(st.permutations(range(len(dimensions)))))
    moved = program("TRANSPOSE", x, perm=perm)
    return moved if draw(st.booleans()) else program("RESHAPE", moved, shape=dimensions)


def pad(draw, program, x):
    """Add a pad, usually before a pool or a convolution."""
    dimensions = program.dimensions(x)
    pads = [
        draw(st.sampled_from([0, 0, 1])) if axis % len(dimensions) > 1 else 0 for axis in range(2 * len(dimensions))
    ]
    padded = program("PAD", x, pads=tuple(pads), value=draw(st.sampled_from([0.0, 0.0, 0.5, float("-inf")])))
    if len(dimensions) != 4 or max(program.dimensions(padded)) > 4:
        return program("TANH", x)
    type_ = draw(st.sampled_from(["MAX_POOL_2D", "AVERAGE_POOL_2D", "CONV_2D"]))
    if type_ == "CONV_2D":
        return convolution(draw, program, program("CLIP", padded, min=-9.0))
    return program(
        "CLIP", program(type_, padded, kernel_shape=(1, 2) if program.dimensions(padded)[3] > 1 else (1, 1)), min=-9.0
    )


def of_constants(draw, program, x):
    """Add an operand that can be folded."""
    value = program(draw(st.sampled_from(["ASSIGN", "TANH"])), constant(draw, program, program.dimensions(x)[-1]))
    return program("ADD", x, program("RESHAPE", value, shape=(1, program.dimensions(x)[-1])))


def twice(draw, program, x):
    one, other = (program(draw(st.sampled_from(["TANH", "SIGMOID"])), x) for _ in range(2))
    return either_way(draw, program, "MUL", one, other)


def nothing(draw, program, x):
    dimensions = program.dimensions(x)
    rank = len(dimensions)
    type_, attributes = draw(
        st.sampled_from(
            [("PAD", {"pads": (0,) * 2 * rank}), ("EXPAND", {"shape": dimensions}), ("TILE", {"repeats": (1,) * rank})]
        )
    )
    return program("MUL", program(type_, x, **attributes), number(draw, program, 1))


def rank(draw, program, x):
    """Add dimensions, permute the axes, and restore the shape."""
    dimensions = program.dimensions(x)
    position = draw(st.integers(0, len(dimensions)))
    more = program("RESHAPE", x, shape=(*dimensions[:position], 1, 1, *dimensions[position:]))
    moved = program("TRANSPOSE", more, perm=tuple(draw(st.permutations(range(len(dimensions) + 2)))))
    return program("RESHAPE", activation(draw, program, moved), shape=dimensions)


STEPS = [
    *(convolution, convolution, batch_normalization, scale, scale, activation, product),
    *(gelu, hard_swish, swish, layer_normalization, addition, movement, movement),
    *(pad, of_constants, twice, nothing, rank),
]


@st.composite
def models(draw):
    size = st.sampled_from([1, 2, 3, 3])
    program = Program(draw(st.sampled_from(list(TOLERANCES))), x=[draw(size) for _ in range(4)])
    values = [program.x]
    for _ in range(draw(st.integers(2, 7))):
        latest = st.just(values[-1])
        values.append(
            draw(st.sampled_from(STEPS))(draw, program, draw(st.one_of(latest, latest, st.sampled_from(values))))
        )
    middle = draw(st.sets(st.sampled_from(program.made), max_size=2))
    return program.finish(*(each for each in program.made if each not in program.read or each in middle))


ORDERS = st.one_of(
    st.just(tuple(PASSES)),
    st.just(DEVICE_PASSES),
    st.permutations(list(PASSES)),
    st.lists(st.sampled_from(list(PASSES)), max_size=20),
)


@pytest.mark.slow
@given(models(), ORDERS)
def test_passes_preserve_results(model, order):
    def observe(name, before, after):
        verify(after)

    tolerance = TOLERANCES[model.operands[model.inputs[0]].type.dtype.value]
    check(lambda each: run_passes(each, order, observe), model, tolerance)


@pytest.mark.slow
@given(models(), st.permutations(list(PASSES)))
def test_every_step_computes_the_same(model, order):
    run_passes(model, order, check_numbers(by_definition, tolerances=STEP_TOLERANCES))


@pytest.mark.slow
@pytest.mark.parametrize("name", IDEMPOTENT)
@settings(max_examples=20, deadline=None)
@given(model=models())
def test_passes_are_idempotent(name, model):
    once = PASSES[name](model)
    assert to_text(PASSES[name](once)) == to_text(once)


@pytest.mark.slow
@given(models(), ORDERS)
def test_shared_editor_equals_separate_editors(model, order):
    together, apart = run_passes(model, order), run_passes(model, order, lambda name, before, after: None)
    assert together.structure == apart.structure and numbers(together) == numbers(apart)
    assert border(together) == border(apart)
    assert [operation.origins for operation in together.operations] == [
        operation.origins for operation in apart.operations
    ]
    for one, other in zip(constants(together), constants(apart), strict=True):
        np.testing.assert_array_equal(one, other)
