import numpy as np
import pytest

from nnadapter.ir.passes import PASSES, run_passes
from tests.ir.passes.program import Program, check, random, types

FUSE = PASSES["fuse_pad"]
PADS = (0, 0, 1, 0, 0, 0, 2, 1)
POOL = {"kernel_shape": (3, 3), "strides": (2, 2)}


def padded(type_, *others, value=0.0, before="TANH", pads=PADS, mode="constant", **attributes):
    program = Program(x=(2, 3, 6, 7))
    y = program("MAX_POOL_2D", program.x, kernel_shape=(1, 1))
    y = program("PAD", program(before, y), pads=pads, value=value, mode=mode)
    return program.finish(program(type_, y, *others, **attributes))


FUSED = {
    "convolution": padded("CONV_2D", random(1, 4, 3, 3, 3), strides=(2, 1)),
    "depthwise": padded("CONV_2D", random(1, 3, 1, 3, 3), random(2, 3), group=3, fuse_code="relu"),
    "dilated": padded("CONV_2D", random(1, 4, 3, 2, 2), dilations=(2, 2)),
    "largest": padded("MAX_POOL_2D", value=float("-inf"), **POOL),
    "largest of positives": padded("MAX_POOL_2D", before="RELU", **POOL),
    "average": padded("AVERAGE_POOL_2D", **POOL),
}


@pytest.mark.parametrize("name", FUSED)
def test_pads_are_fused_into_the_operation(name):
    after = check(FUSE, FUSED[name])
    assert "PAD" not in types(after)


@pytest.mark.parametrize("name", FUSED)
def test_pads_of_images_with_the_channels_last(name):
    last = run_passes(FUSED[name], ["channels_last"])
    assert "PAD" not in types(check(FUSE, last))


def test_counted_pads_are_added():
    program = Program(x=(2, 3, 6, 7))
    y = program("PAD", program.x, pads=(0, 0, 1, 0, 0, 0, 0, 1))
    y = program("AVERAGE_POOL_2D", y, kernel_shape=(3, 3), pads=(1, 1, 1, 1), count_include_pad=True)
    after = check(FUSE, program.finish(y))
    assert after.operations[0].attributes["pads"] == (2, 1, 1, 2)


REFUSED = {
    "other value": padded("CONV_2D", random(1, 4, 3, 3, 3), value=1.0),
    "other mode": padded("CONV_2D", random(1, 4, 3, 3, 3), mode="edge"),
    "channels": padded("CONV_2D", random(1, 4, 4, 3, 3), pads=(0, 1, 0, 0, 0, 0, 0, 0)),
    "taken away": padded("CONV_2D", random(1, 4, 3, 3, 3), pads=(0, 0, -1, 0, 0, 0, 0, 0)),
    "zeros that may win": padded("MAX_POOL_2D", **POOL),
    "a window of padding": padded("MAX_POOL_2D", value=float("-inf"), kernel_shape=(1, 1)),
    "the last window": padded("MAX_POOL_2D", value=float("-inf"), ceil_mode=True, **POOL),
    "holes": padded("MAX_POOL_2D", before="RELU", kernel_shape=(2, 2), dilations=(2, 2)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_fusion_that_changes_results_is_refused(name):
    assert FUSE(REFUSED[name]) is REFUSED[name]


def test_uncounted_pads_are_not_fused():
    program = Program(x=(2, 3, 6, 7))
    y = program("AVERAGE_POOL_2D", program("PAD", program.x, pads=PADS), kernel_shape=(3, 3), pads=(1, 1, 1, 1))
    model = program.finish(y)
    assert FUSE(model) is model


@pytest.mark.parametrize(("dtype", "value"), [("int8", -128), ("uint8", 0), ("int32", -(2**31))])
def test_max_pool_absorbs_pads_of_the_smallest_integer(dtype, value):
    program = Program(dtype, x=(1, 2, 4, 4))
    y = program(
        "MAX_POOL_2D", program("PAD", program.x, pads=(0, 0, 1, 1, 0, 0, 1, 1), value=float(value)), kernel_shape=(3, 3)
    )
    assert types(FUSE(program.finish(y))) == ["MAX_POOL_2D"]


def test_shared_pad_is_not_fused():
    program = Program(x=(2, 3, 6, 7))
    y = program("PAD", program.x, pads=PADS)
    model = program.finish(program("CONV_2D", y, np.ones((1, 3, 1, 1), "f")), y)
    assert FUSE(model) is model


def test_consecutive_pads_merge():
    program = Program(x=(2, 3, 6, 7))
    y = program.x
    for _ in range(3):
        y = program("PAD", y, pads=PADS)
    after = check(FUSE, program.finish(program("CONV_2D", y, random(1, 1, 3, 1, 1)), program("NEG", program.x)))
    assert sorted(types(after)) == ["CONV_2D", "NEG"]


@pytest.mark.parametrize(
    ("one", "other"), [((PADS, 0.0), (PADS, 1.0)), ((PADS, 0.0), ((0, 0, -1, 0, 0, 0, 0, 0), 0.0))]
)
def test_pads_with_other_values_and_crops_do_not_merge(one, other):
    program = Program(x=(2, 3, 6, 7))
    y = program.x
    for pads, value in (one, other):
        y = program("PAD", y, pads=pads, value=value)
    model = program.finish(y)
    assert FUSE(model) is model
