from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnadapter.ir import Layout
from nnadapter.ir.passes import PASSES, run_passes
from tests.ir.passes.program import Program, check, random, types

CHANNELS_LAST = PASSES["channels_last"]


def conv(program, x, channels=6, seed=1):
    return program("CONV_2D", x, random(seed, channels, program.dimensions(x)[1], 1, 1))


def moved(model):
    return [each for each in types(model) if each in ("TRANSPOSE", "RESHAPE")]


def test_network_needs_two_transposes():
    program = Program(x=(2, 3, 8, 6))
    y = program("MAX_POOL_2D", conv(program, program.x), kernel_shape=(2, 2), strides=(2, 2))
    z = program("RELU", program("ADD", conv(program, y), program("MUL", y, random(2, 6, 1, 1))))
    z = program("CONCAT", z, y, axis=1)
    after = check(CHANNELS_LAST, program.finish(program("SOFTMAX", z, axis=1)))
    assert moved(after) == ["TRANSPOSE", "TRANSPOSE"]
    assert types(after)[0] == "TRANSPOSE"
    assert types(after)[-1] == "TRANSPOSE"
    inner = [after.operands[operation.outputs[0]].type.layout for operation in after.operations[:-1]]
    assert set(inner) == {Layout.NHWC}


def test_a_classifier_ends_without_a_transpose():
    program = Program(x=(2, 3, 8, 6))
    y = program("REDUCE_MEAN", conv(program, program.x), axes=(2, 3), keepdims=True)
    y = program("FULLY_CONNECTED", program("RESHAPE", y, shape=(2, 6)), random(2, 4, 6))
    after = check(CHANNELS_LAST, program.finish(y))
    assert types(after) == ["TRANSPOSE", "CONV_2D", "REDUCE_MEAN", "RESHAPE", "FULLY_CONNECTED"]


def test_transposes_of_the_model_vanish():
    program = Program(x=(2, 8, 6, 3))
    y = conv(program, program("TRANSPOSE", program.x, perm=(0, 3, 1, 2)))
    y = program("TRANSPOSE", y, perm=(0, 2, 3, 1))
    after = check(CHANNELS_LAST, program.finish(program("RESHAPE", y, shape=(2, 48, 6))))
    assert types(after) == ["TRANSPOSE", "CONV_2D", "RESHAPE"]
    assert after.operations[0].attributes["perm"] == (0, 1, 2, 3)


def test_pixels_flattened_to_a_sequence_and_back():
    program = Program(x=(2, 3, 4, 5))
    y = program("RESHAPE", conv(program, program.x), shape=(2, 6, 20))
    y = program("TRANSPOSE", y, perm=(0, 2, 1))
    y = program("FULLY_CONNECTED", y, random(2, 6, 6))
    y = program("RESHAPE", program("TRANSPOSE", y, perm=(0, 2, 1)), shape=(2, 6, 4, 5))
    after = check(CHANNELS_LAST, program.finish(program("REDUCE_MAX", conv(program, y), axes=(2, 3), keepdims=False)))
    assert types(after) == [
        *("TRANSPOSE", "CONV_2D", "RESHAPE", "FULLY_CONNECTED", "RESHAPE", "TRANSPOSE", "CONV_2D", "REDUCE_MAX")
    ]
    assert after.operations[5].attributes["perm"] == (0, 1, 2, 3)


def test_nchw_consumers_share_one_transpose():
    program = Program(x=(2, 3, 4, 4))
    y = conv(program, program.x)
    outputs = program("MAT_MUL", y, random(2, 4, 4)), program("GATHER", y, np.array([1, 0]), axis=1)
    assert types(check(CHANNELS_LAST, program.finish(*outputs))).count("TRANSPOSE") == 2


def test_rank_of_run_time_operands_is_raised():
    program = Program(x=(2, 3, 4, 4), z=(6, 1, 1), w=(4,))
    y = program("MUL", program("ADD", conv(program, program.x), program.z), program.w)
    check(CHANNELS_LAST, program.finish(y))


FOLLOWING = [
    *[(type_, {"axis": axis}) for type_ in ("SOFTMAX", "LOG_SOFTMAX", "CUM_SUM") for axis in range(4)],
    *[("ARG_MAX", {"axis": axis, "keepdims": kept}) for axis in range(4) for kept in (True, False)],
    *[("TOP_K", {"axis": axis, "k": 2}) for axis in range(4)],
    ("SPLIT", {"axis": 1, "split": (1, 2, 3)}),
    ("SPLIT", {"axis": 3, "split": (1, 4)}),
    ("SLICE", {"axes": (1, 3), "starts": (5, 1), "ends": (0, 4), "steps": (-2, 1)}),
    ("PAD", {"mode": "constant", "pads": (0, 1, 2, 3, 1, 0, 2, -1), "value": 0.5}),
    ("PAD", {"mode": "reflect", "pads": (0, 0, 2, 3, 0, 0, 1, 2), "value": 0.0}),
    ("TILE", {"repeats": (1, 2, 3, 1)}),
    ("RESIZE_NEAREST", {"shape": (2, 6, 8, 15), "scales": (1.0, 1.0, 2.0, 3.0)}),
    ("DEPTH_TO_SPACE", {"block_size": 1}),
    ("CAST", {"to": "float64"}),
    ("CLIP", {"min": -0.5}),
]


@pytest.mark.parametrize(("type_", "attributes"), FOLLOWING)
def test_operations_adopt_the_layout_of_their_input(type_, attributes):
    program = Program(x=(2, 3, 4, 5))
    result = program(type_, conv(program, program.x), **attributes)
    after = check(CHANNELS_LAST, program.finish(*(result if isinstance(result, tuple) else (result,))))
    assert types(after)[:3] == ["TRANSPOSE", "CONV_2D", type_]


def test_where_and_prelu_adopt_the_layout():
    program = Program(x=(2, 3, 4, 5), z=(2, 6, 4, 5))
    y = program("PRELU", conv(program, program.x), random(3, 6, 1, 1))
    y = program("WHERE", program("GREATER", y, program.z), program("POW", y, 2.0), random(4, 4, 1))
    assert types(check(CHANNELS_LAST, program.finish(y))).count("TRANSPOSE") == 3


def test_joining_a_constant():
    program = Program(x=(2, 3, 4, 5))
    y = program("CONCAT", random(3, 2, 1, 4, 5), conv(program, program.x), axis=1)
    check(CHANNELS_LAST, program.finish(conv(program, y)))


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("axes", [(1,), (2,), (3,), (1, 2), (0, 3), (2, 3), (0, 1, 2, 3)])
def test_reductions(axes, kept):
    program = Program(x=(2, 3, 4, 5))
    check(CHANNELS_LAST, program.finish(program("REDUCE_MEAN", conv(program, program.x), axes=axes, keepdims=kept)))


@pytest.mark.parametrize("type_", ["RESHAPE", "TRANSPOSE"])
def test_output_that_is_a_view_of_an_operand(type_):
    program = Program(x=(2, 3, 4, 5))
    y = conv(program, program.x)
    z = program(type_, y, **({"shape": (2, 6, 4, 5)} if type_ == "RESHAPE" else {"perm": (0, 2, 3, 1)}))
    check(CHANNELS_LAST, program.finish(y, z, program.x))


@pytest.mark.parametrize("dimensions", [(2, 3, 1, 1), (2, 1, 4, 5)])
def test_images_of_one_pixel_or_channel_are_not_moved(dimensions):
    program = Program(x=dimensions)
    model = program.finish(program("ABS", conv(program, program.x, channels=dimensions[1])))
    for operation in check(CHANNELS_LAST, model).operations:
        if operation.type == "TRANSPOSE":
            moving = [axis for axis in operation.attributes["perm"] if dimensions[axis] != 1]
            assert moving == sorted(moving)


def test_model_without_images_is_unchanged():
    program = Program(x=(2, 3, 4, 4))
    model = program.finish(program("ADD", program("MAT_MUL", program.x, program.x), program.x))
    assert CHANNELS_LAST(model) is model


def test_pass_is_idempotent():
    program = Program(x=(2, 3, 4, 4))
    once = CHANNELS_LAST(program.finish(conv(program, program.x)))
    assert CHANNELS_LAST(once) is once


def _conv(draw, program, x):
    return conv(program, x, draw(st.sampled_from([1, 3, 4])), seed=draw(st.integers(0, 3)))


def _unary(draw, program, x):
    return program(draw(st.sampled_from(["RELU", "SIGMOID", "NEG", "ASSIGN"])), x)


def _image(draw, program, x):
    n, c, h, w = program.dimensions(x)
    kind = draw(st.sampled_from(["pool", "batch", "instance", "response", "resize", "deconvolution", "pixels"]))
    if kind == "pool":
        return program("AVERAGE_POOL_2D", x, kernel_shape=(2, 1), pads=(1, 0, 0, 0))
    if kind == "batch":
        return program("BATCH_NORMALIZATION", x, *[np.abs(random(seed, c)) for seed in range(4)])
    if kind == "instance":
        return program("INSTANCE_NORMALIZATION", x, random(1, c), random(2, c), epsilon=0.1)
    if kind == "response":
        return program("LOCAL_RESPONSE_NORMALIZATION", x, size=3)
    if kind == "resize":
        return program("RESIZE_LINEAR", x, shape=(n, c, h + 1, w), scales=(1.0, 1.0, (h + 1) / h, 1.0))
    if kind == "deconvolution":
        return program("CONV_2D_TRANSPOSE", x, random(1, c, 2, 1, 2))
    return program("SPACE_TO_DEPTH", x, block_size=1) if h % 2 or w % 2 else program("SPACE_TO_DEPTH", x, block_size=2)


def _binary(draw, program, x):
    dimensions = program.dimensions(x)
    rank = draw(st.integers(0, 4))
    shape = [draw(st.sampled_from([1, size])) for size in dimensions[4 - rank :]] if rank else []
    type_ = draw(st.sampled_from(["ADD", "MUL", "SUB", "MAX"]))
    other = random(5, *shape)
    if draw(st.booleans()) and rank:
        other = program(
            "SLICE",
            program("EXPAND", program.x, shape=program.dimensions(program.x)),
            starts=(0,),
            ends=(1,),
            axes=(0,),
            steps=(1,),
        )
        other = program("REDUCE_MEAN", other, axes=(1, 2, 3), keepdims=True)
        other = program("EXPAND", program("RESHAPE", other, shape=(1,) * rank), shape=tuple(shape))
    return program(type_, other, x) if draw(st.booleans()) else program(type_, x, other)


def _axes(draw, program, x):
    dimensions = program.dimensions(x)
    axis = draw(st.integers(0, 3))
    kind = draw(
        st.sampled_from(["concat", "split", "slice", "pad", "softmax", "reduce", "sum", "tile", "arg", "reduced"])
    )
    if kind == "concat":
        return program("CONCAT", x, x, axis=axis)
    if kind == "split":
        size = dimensions[axis]
        return program("SPLIT", x, axis=axis, split=(size,) if size == 1 else (1, size - 1))
    if kind == "slice":
        size = dimensions[axis]
        return program(
            "SLICE", x, starts=(size - 1, 0), ends=(-size - 1, 1), axes=(axis, (axis + 1) % 4), steps=(-1, 1)
        )
    if kind == "pad":
        return program("PAD", x, mode="constant", pads=(0, 1, 0, 0, 0, 0, 2, 0), value=0.5)
    if kind in ("softmax", "sum"):
        return program(*(("SOFTMAX", x) if kind == "softmax" else ("CUM_SUM", x)), axis=axis)
    if kind == "tile":
        return program("TILE", x, repeats=(1, 2, 1, 1))
    if kind == "arg":
        return program("CAST", program("ARG_MAX", x, axis=axis, keepdims=True), to="float32")
    kept = kind == "reduce"
    y = program("REDUCE_MAX", x, axes=(axis,), keepdims=kept)
    return y if kept else program("RESHAPE", y, shape=(*program.dimensions(y), 1))


def _move(draw, program, x):
    dimensions = program.dimensions(x)
    kind = draw(st.sampled_from(["transpose", "flat", "sequence", "rows", "product"]))
    if kind == "transpose":
        return program("TRANSPOSE", x, perm=tuple(draw(st.permutations(range(4)))))
    if kind == "product":
        return program("MAT_MUL", x, np.eye(dimensions[3], dtype=np.float32))
    n, c, h, w = dimensions
    shape = {"flat": (n, c * h * w), "sequence": (n, c, h * w), "rows": (n * c, h, w)}[kind]
    y = program("RESHAPE", x, shape=shape)
    if draw(st.booleans()):
        y = program("TRANSPOSE", y, perm=tuple(draw(st.permutations(range(len(shape))))))
    if draw(st.booleans()):
        y = program("TANH", y)
    sizes = program.dimensions(y)
    return program("RESHAPE", y, shape=(*sizes[:1], 1, *sizes[1:]) if len(sizes) == 3 else (*sizes, 1, 1))


@st.composite
def networks(draw):
    program = Program(x=[draw(st.sampled_from(sizes)) for sizes in ([1, 2], [1, 2, 3], [1, 2, 4], [1, 2, 5])])
    values = [program.x]
    for _ in range(draw(st.integers(2, 10))):
        step = draw(st.sampled_from([_conv, _unary, _image, _binary, _axes, _move]))
        result = step(draw, program, draw(st.sampled_from(values[-3:])))
        result = result if isinstance(result, tuple) else (result,)
        values += [each for each in result if prod(program.dimensions(each)) <= 400]
    outputs = [value for value in values if draw(st.booleans())] or values[-1:]
    return program.finish(*outputs)


@pytest.mark.slow
@given(networks())
def test_any_network_computes_the_same(model):
    check(CHANNELS_LAST, PASSES["remove_dead"](model), tolerance=1e-3)


@given(networks())
def test_all_passes_together_compute_the_same(model):
    check(lambda live: run_passes(live, list(PASSES)), PASSES["remove_dead"](model), tolerance=1e-3)
