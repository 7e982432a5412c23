from itertools import permutations
from math import pi, sqrt

import numpy as np
import pytest

from nnadapter.ir.passes import PASSES
from tests.ir.passes.program import Program, check, random, types

BROAD = np.full((1,) * 4, 1e-5, np.float32)
"""A number that raises the rank of the other operand."""


def product(program, order, *factors):
    """Multiply the factors in that order, each on either side."""
    first, *others = (factors[position] for position in order)
    for position, other in enumerate(others):
        first = program("MUL", *((first, other) if position % 2 else (other, first)))
    return first


@pytest.mark.parametrize("order", list(permutations(range(3))))
@pytest.mark.parametrize("divide", [True, False])
def test_gelu(order, divide):
    program = Program(x=(2, 3, 4))
    x = program.x
    inner = program("DIV", x, sqrt(2)) if divide else program("MUL", 1 / sqrt(2), x)
    raised = program("ADD", program("ERF", inner), 1.0)
    after = check(PASSES["fuse_gelu"], program.finish(product(program, order, x, 0.5, raised)))
    assert types(after) == ["GELU"]


@pytest.mark.parametrize("last", ["DIV", "halves", "inside"])
def test_gelu_with_the_half_at_other_positions(last):
    program = Program(x=(2, 3, 4))
    erf = program("ERF", program("DIV", program.x, sqrt(2)))
    if last == "DIV":
        y = program("DIV", program("MUL", program.x, program("ADD", 1.0, erf)), 2.0)
    elif last == "halves":
        y = program("MUL", program("ADD", program("MUL", erf, 0.5), 0.5), program.x)
    else:
        y = program("MUL", program.x, program("DIV", program("ADD", 1.0, erf), 2.0))
    assert types(check(PASSES["fuse_gelu"], program.finish(y))) == ["GELU"]


@pytest.mark.parametrize("cube", ["POW", "MUL", "factored"])
@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_gelu_by_tanh(order, cube):
    program = Program(x=(2, 3, 4))
    x, slope = program.x, sqrt(2 / pi)
    if cube == "factored":
        raised = program("ADD", program("MUL", program("MUL", x, x), 0.044715), 1.0)
        argument = program("MUL", program("MUL", x, slope), raised)
    else:
        cubed = program("POW", x, 3.0) if cube == "POW" else program("MUL", program("MUL", x, x), x)
        argument = program("MUL", program("ADD", program("MUL", 0.044715, cubed), x), slope)
    raised = program("ADD", program("TANH", argument), 1.0)
    after = check(PASSES["fuse_gelu"], program.finish(product(program, order, x, 0.5, raised)))
    assert types(after) == ["GELU"]
    assert after.operations[0].attributes["approximate"] == "tanh"


@pytest.mark.parametrize("change", ["number", "operand", "shared", "broader"])
def test_near_gelu_is_unchanged(change):
    program = Program(x=(2, 3), z=(2, 3))
    inner = program("DIV", program.x, 1.4 if change == "number" else sqrt(2))
    erf = program("ERF", inner)
    raised = program("ADD", erf, 1.0)
    y = program("MUL", program("MUL", program.z if change == "operand" else program.x, raised), 0.5)
    if change == "broader":
        y = program("MUL", program("MUL", program.x, raised), np.full((1, 1, 1), 0.5, np.float32))
    model = program.finish(y, erf) if change == "shared" else program.finish(y)
    assert PASSES["fuse_gelu"](model) is model


@pytest.mark.parametrize("divide", [True, False])
@pytest.mark.parametrize("place", ["clipped", "x", "product"])
def test_hard_swish(place, divide):
    program = Program(x=(2, 3, 4))

    def sixth(y):
        return program("DIV", y, 6.0) if divide else program("MUL", 1 / 6, y)

    x = program.x
    clipped = program("CLIP", program("ADD", 3.0, x), min=0.0, max=6.0)
    if place == "product":
        y = sixth(program("MUL", clipped, x))
    else:
        y = program("MUL", sixth(x), clipped) if place == "x" else program("MUL", x, sixth(clipped))
    assert types(check(PASSES["fuse_hard_swish"], program.finish(y))) == ["HARD_SWISH"]


def test_hard_swish_inherits_the_parameters():
    program = Program(x=(2, 3))
    y = program("MUL", program("HARD_SIGMOID", program.x, alpha=0.3, beta=0.4), program.x)
    after = check(PASSES["fuse_hard_swish"], program.finish(y))
    assert (after.operations[0].attributes["alpha"], after.operations[0].attributes["beta"]) == (0.3, 0.4)


def test_hard_sigmoid():
    program = Program(x=(2, 3))
    y = program("DIV", program("CLIP", program("ADD", program.x, 3.0), min=0.0, max=6.0), 6.0)
    assert types(check(PASSES["fuse_hard_swish"], program.finish(y))) == ["HARD_SIGMOID"]


@pytest.mark.parametrize(("shift", "top", "divisor"), [(2.0, 6.0, 6.0), (3.0, 5.0, 6.0), (3.0, 6.0, 5.0)])
def test_other_numbers_are_not_hard_sigmoid(shift, top, divisor):
    program = Program(x=(2, 3))
    y = program("DIV", program("CLIP", program("ADD", program.x, shift), min=0.0, max=top), divisor)
    model = program.finish(y)
    assert PASSES["fuse_hard_swish"](model) is model


@pytest.mark.parametrize("alpha", [None, 1.702])
def test_swish(alpha):
    program = Program(x=(2, 3))
    inner = program.x if alpha is None else program("MUL", program.x, alpha)
    after = check(PASSES["fuse_swish"], program.finish(program("MUL", program("SIGMOID", inner), program.x)))
    assert types(after) == ["SWISH"]


def test_sigmoid_times_another_value_is_not_swish():
    program = Program(x=(2, 3), z=(2, 3))
    model = program.finish(program("MUL", program("SIGMOID", program.x), program.z))
    assert PASSES["fuse_swish"](model) is model


def spelled_layer_normalization(
    program, *, axes=(2,), other_axes=None, square="POW", twice=False, root="DIV", scale=(4,), epsilon=1e-5
):
    x = program.x
    mean = program("REDUCE_MEAN", x, axes=axes, keepdims=True)
    deviation = program("SUB", x, mean)
    other = program("SUB", x, mean) if twice else deviation
    if other_axes is not None:
        other = program("SUB", x, program("REDUCE_MEAN", x, axes=other_axes, keepdims=True))
    squared = program("POW", other, 2.0) if square == "POW" else program("MUL", other, other)
    variance = program("REDUCE_MEAN", squared, axes=axes, keepdims=True)
    bottom = program("SQRT", program("ADD", variance, epsilon))
    if root == "DIV":
        quotient = program("DIV", deviation, bottom)
    else:
        quotient = program("MUL", program("RECIPROCAL", bottom), deviation)
    return program("MUL", quotient, random(1, *scale))


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"square": "MUL"},
        {"twice": True},
        {"other_axes": (2,)},
        {"other_axes": (2,), "square": "MUL"},
        {"root": "RECIPROCAL"},
        {"axes": (1, 2), "scale": (3, 4)},
    ],
)
@pytest.mark.parametrize("bias", [True, False])
def test_layer_normalization(form, bias):
    program = Program(x=(2, 3, 4))
    y = spelled_layer_normalization(program, **form)
    y = program("ADD", y, random(2, *form.get("scale", (4,)))) if bias else y
    after = check(PASSES["fuse_layer_normalization"], program.finish(y))
    assert types(after) == ["LAYER_NORMALIZATION"]
    assert len(after.operations[0].inputs) == 2 + bias


@pytest.mark.parametrize(
    "form", [{"axes": (1,)}, {"scale": (3, 4)}, {"scale": (1,)}, {"epsilon": 0.0}, {"epsilon": BROAD}]
)
def test_near_layer_normalization_is_unchanged(form):
    program = Program(x=(2, 3, 4))
    model = program.finish(spelled_layer_normalization(program, **form))
    assert PASSES["fuse_layer_normalization"](model) is model


def test_all_means_of_a_layer_normalization_are_compared():
    program = Program(x=(2, 3, 4))
    one, other = (
        program("SUB", program.x, program("REDUCE_MEAN", program.x, axes=(axis,), keepdims=True)) for axis in (1, 2)
    )
    for top, left, right in [(one, other, other), (other, one, other), (other, other, one)]:
        variance = program("REDUCE_MEAN", program("MUL", left, right), axes=(2,), keepdims=True)
        y = program("DIV", top, program("SQRT", program("ADD", variance, 1e-5)))
        model = program.finish(program("MUL", y, random(1, 4)))
        assert PASSES["fuse_layer_normalization"](model) is model
