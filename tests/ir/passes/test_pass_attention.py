import numpy as np
import pytest

from nnadapter.ir.passes import PASSES
from tests.ir.passes.program import Program, check, random, types

_FUSE = PASSES["fuse_attention"]
_SHAPES = {"q": (2, 3, 4, 5), "k": (2, 3, 5, 6), "v": (2, 3, 6, 7)}


def _attention(program, scale="MUL", factor=0.5, mask=None, guard=False, axis=3):
    scores = program("MAT_MUL", program.q, program.k)
    if scale:
        scores = program(scale, scores, factor)
    if mask is not None:
        scores = program("ADD", mask, scores)
    weights = program("SOFTMAX", scores, axis=axis)
    if guard:
        weights = program("WHERE", np.zeros((4, 1), bool), 0.0, weights)
    return program("MAT_MUL", weights, program.v)


@pytest.mark.parametrize("guard", [True, False])
@pytest.mark.parametrize("mask", [None, (4, 6), (2, 1, 1, 6), (6,)])
@pytest.mark.parametrize("scale", ["MUL", "DIV", None])
def test_attention(scale, mask, guard):
    program = Program(**_SHAPES)
    result = _attention(program, scale, mask=None if mask is None else random(1, *mask), guard=guard)
    after = check(_FUSE, program.finish(result))
    assert types(after) == ["TRANSPOSE", "ATTENTION"]
    assert after.operations[1].attributes["scale"] == {"MUL": 0.5, "DIV": 2.0, None: 1.0}[scale]


def test_transposed_key_needs_no_transpose():
    program = Program(q=(2, 3, 4, 5), k=(2, 3, 6, 5), v=(2, 3, 6, 7))
    scores = program("MAT_MUL", program.q, program.k, transpose_y=True)
    result = program("MAT_MUL", program("SOFTMAX", scores, axis=3), program.v)
    assert types(check(_FUSE, program.finish(result))) == ["ATTENTION"]


def test_the_transpose_of_the_key_is_cancelled():
    program = Program(q=(2, 3, 4, 5), k=(2, 6, 3, 5), v=(2, 3, 6, 7))
    program.k = program("TRANSPOSE", program.k, perm=(0, 2, 3, 1))
    after = PASSES["simplify"](_FUSE(program.finish(_attention(program))))
    assert types(after) == ["TRANSPOSE", "ATTENTION"]
    assert after.operations[0].attributes["perm"] == (0, 2, 1, 3)


@pytest.mark.parametrize(
    ("shapes", "options"),
    [
        ({}, {"axis": 2}),
        ({}, {"factor": np.full((3, 1, 1), 0.5, np.float32)}),
        ({"k": (1, 3, 5, 6)}, {}),
        ({"v": (3, 6, 7)}, {}),
        ({"q": (1, 1, 4, 5), "k": (1, 1, 5, 6), "v": (1, 1, 6, 7)}, {"mask": np.ones((2, 1, 4, 6), np.float32)}),
    ],
)
def test_near_attention_is_unchanged(shapes, options):
    program = Program(**{**_SHAPES, **shapes})
    model = program.finish(_attention(program, **options))
    assert _FUSE(model) is model


def test_attention_with_read_weights_is_unchanged():
    program = Program(**_SHAPES)
    weights = program("SOFTMAX", program("MAT_MUL", program.q, program.k), axis=3)
    model = program.finish(program("MAT_MUL", weights, program.v), weights)
    assert _FUSE(model) is model
