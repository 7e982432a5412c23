import numpy as np
import pytest

from nnadapter.drivers.fake_npu import PASSES, lower
from nnadapter.ir import passes
from tests.ir.passes.program import Program, check, random


def kernels(model):
    return [instruction.kernel for instruction in lower(model).graph.instructions]


def test_expanded_operations_are_fused_before_constant_folding():
    program = Program(x=(1, 3, 4, 5))
    y = program("CONV_2D", program.x, random(1, 6, 3, 1, 1))
    clipped = program("CLIP", program("ADD", y, 3.0), min=0.0, max=6.0)
    model = program.finish(program("DIV", clipped, 6.0))
    check(lambda graph: passes.run_passes(graph, PASSES), model)
    assert kernels(model) == ["transpose", "pointwise_convolution", "transpose"]


def test_scale_and_batch_normalization_fold_into_convolution():
    program = Program(x=(1, 3, 4, 5))
    statistics = [np.abs(random(seed, 6)) + 1 for seed in range(4)]
    y = program("BATCH_NORMALIZATION", program("CONV_2D", program.x, random(1, 6, 3, 1, 1)), *statistics)
    model = program.finish(program("RELU", program("MUL", y, random(5, 6, 1, 1))))
    assert kernels(model) == ["transpose", "pointwise_convolution", "transpose"]


def test_passes_run_in_the_recommended_order():
    recommended = [name for name in passes.PASSES if name in PASSES]
    assert list(dict.fromkeys(PASSES)) == recommended


@pytest.mark.parametrize(("group", "kernel"), [(1, 1), (1, 3), (2, 3), (24, 3)])
@pytest.mark.parametrize("type_", ["CONV_2D", "CONV_2D_TRANSPOSE"])
def test_constants_do_not_depend_on_image_sizes(type_, group, kernel):
    weight, bias = random(1, 24, 24 // group, kernel, kernel), random(2, 24)
    constants = []
    for batch, height, width in ((1, 5, 9), (3, 40, 23)):
        program = Program(x=(batch, 24, height, width))
        model = program.finish(program(type_, program.x, weight, bias, group=group))
        tensors = lower(model).graph.tensors
        constants.append([tensor.value for tensor in tensors if tensor.value is not None])
    for first, other in zip(*constants, strict=True):
        np.testing.assert_array_equal(first, other)


def test_equal_weights_of_two_models_are_packed_once():
    packed = []
    models = []
    for _ in range(2):
        program = Program(x=(1, 24, 9, 9))
        models.append(program.finish(program("CONV_2D", program.x, random(1, 24, 24, 3, 3))))
        tensors = lower(models[-1]).graph.tensors
        packed.append([tensor.value for tensor in tensors if tensor.value is not None])
    assert len(packed[0]) == 1
    for first, other in zip(*packed, strict=True):
        assert np.shares_memory(first, other)
