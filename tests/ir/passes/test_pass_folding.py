import numpy as np
import pytest

from nnadapter.ir.passes import PASSES
from tests.ir.passes.program import Program, check, random, types

BATCH = PASSES["fuse_batch_normalization"]
SCALE = PASSES["fuse_scale_and_bias"]
HOSTS = {
    "CONV_2D": (random(1, 6, 2, 3, 3), {"group": 2}),
    "CONV_2D_TRANSPOSE": (random(2, 4, 3, 2, 2), {"group": 2, "strides": (2, 2)}),
}


def statistics(channels):
    return [random(seed, channels) for seed in (5, 6, 7)] + [np.abs(random(8, channels)) + 0.1]


def host(program, type_, bias=True):
    filter_, attributes = HOSTS[type_]
    return program(type_, program.x, filter_, *([random(3, 6)] if bias else []), **attributes)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("type_", HOSTS)
def test_batch_normalization_folds_into_a_convolution(type_, bias):
    program = Program(x=(2, 4, 5, 5))
    y = program("BATCH_NORMALIZATION", host(program, type_, bias), *statistics(6), epsilon=1e-3)
    after = check(BATCH, program.finish(y))
    assert types(after) == [type_]
    assert after.operations[0].origins[0] != after.operations[0].origins[-1]


def test_batch_normalization_folds_into_fully_connected():
    program = Program(x=(2, 4))
    y = program("FULLY_CONNECTED", program.x, random(1, 6, 4))
    assert types(check(BATCH, program.finish(program("BATCH_NORMALIZATION", y, *statistics(6))))) == ["FULLY_CONNECTED"]


@pytest.mark.parametrize("dimensions", [(2, 6, 4, 5), (2, 6), (2, 6, 3)])
def test_batch_normalization_alone_becomes_mul_and_add(dimensions):
    program = Program(x=dimensions)
    after = check(BATCH, program.finish(program("BATCH_NORMALIZATION", program.x, *statistics(6))))
    assert types(after) == ["MUL", "ADD"]
    assert after.operands[after.operations[0].inputs[1]].type.dimensions == (6, *[1] * (len(dimensions) - 2))


def test_batch_normalization_of_shared_convolution_becomes_mul_and_add():
    program = Program(x=(2, 4, 5, 5))
    y = host(program, "CONV_2D")
    z = program("BATCH_NORMALIZATION", y, *statistics(6))
    assert types(check(BATCH, program.finish(y, z))) == ["CONV_2D", "MUL", "ADD"]


def test_batch_normalization_with_run_time_statistics_is_unchanged():
    program = Program(x=(2, 6, 5, 5), s=(6,))
    model = program.finish(program("BATCH_NORMALIZATION", program.x, program.s, *statistics(6)[1:]))
    assert BATCH(model) is model


@pytest.mark.parametrize("shape", [(6, 1, 1), (1, 6, 1, 1), (), (1,), (1, 1, 1, 1)])
@pytest.mark.parametrize("type_", ["MUL", "ADD", "SUB"])
@pytest.mark.parametrize("host_type", HOSTS)
def test_constant_per_channel_folds_into_its_producer(host_type, type_, shape):
    program = Program(x=(2, 4, 5, 5))
    y = program(type_, host(program, host_type), random(4, *shape))
    assert types(check(SCALE, program.finish(y))) == [host_type]


@pytest.mark.parametrize("type_", ["MUL", "ADD", "SUB"])
def test_constant_on_the_left_folds_into_its_producer(type_):
    program = Program(x=(2, 4, 5, 5))
    y = program(type_, random(4, 6, 1, 1), host(program, "CONV_2D", bias=False))
    assert types(check(SCALE, program.finish(y))) == ["CONV_2D"]


def test_chain_folds_in_one_sweep():
    program = Program(x=(2, 4, 5, 5))
    y = host(program, "CONV_2D", bias=False)
    for type_ in ("MUL", "ADD", "SUB", "MUL"):
        y = program(type_, y, random(4, 6, 1, 1))
    after = check(SCALE, program.finish(y))
    assert types(after) == ["CONV_2D"]
    assert len(after.operations[0].origins) == 5


def test_a_chain_folds_into_batch_normalization():
    program = Program(x=(2, 6, 5, 5))
    y = program("BATCH_NORMALIZATION", program.x, *statistics(6))
    y = program("SUB", 1.5, program("ADD", program("MUL", y, random(4, 6, 1, 1)), random(5, 1, 6, 1, 1)))
    assert types(check(SCALE, program.finish(y))) == ["BATCH_NORMALIZATION"]


def test_bias_folds_into_fully_connected():
    program = Program(x=(2, 3, 4))
    y = program("ADD", program("FULLY_CONNECTED", program.x, random(1, 6, 4)), random(2, 6))
    assert types(check(SCALE, program.finish(y))) == ["FULLY_CONNECTED"]


@pytest.mark.parametrize("shape", [(3, 1), (5, 1, 1, 1), (1, 6, 3, 3), (1, 1, 1, 3), (1, 1, 3)])
def test_constant_along_other_axes_is_not_folded(shape):
    program = Program(x=(1, 4, 5, 5))
    model = program.finish(program("ADD", host(program, "CONV_2D"), random(4, *shape)))
    assert SCALE(model) is model


def test_overflowing_scale_is_not_folded():
    program = Program(x=(1, 4, 5, 5))
    model = program.finish(program("MUL", host(program, "CONV_2D"), np.float32(3e38) * np.ones((), np.float32)))
    assert SCALE(model) is model


def test_scaling_does_not_pass_an_activation():
    program = Program(x=(1, 4, 5, 5))
    y = program("CONV_2D", program.x, random(1, 6, 4, 3, 3), fuse_code="relu")
    model = program.finish(program("MUL", y, 2.0))
    assert SCALE(model) is model


@pytest.mark.parametrize("transpose_y", [False, True])
def test_a_product_with_a_constant_matrix_is_fully_connected(transpose_y):
    program = Program(x=(2, 3, 4))
    weight = random(1, 5, 4) if transpose_y else random(1, 4, 5)
    model = program.finish(program("MAT_MUL", program.x, weight, transpose_y=transpose_y, fuse_code="relu"))
    after = check(PASSES["matmul_to_fully_connected"], model)
    assert types(after) == ["FULLY_CONNECTED"]
    assert after.operations[0].attributes["fuse_code"] == "relu"


def test_products_with_one_constant_share_the_weight():
    program = Program(x=(2, 3, 4), z=(2, 4))
    weight = program.builder.add_constant("w", random(1, 4, 4))
    outputs = program("MAT_MUL", program.x, weight), program("MAT_MUL", program.z, weight)
    after = check(PASSES["matmul_to_fully_connected"], program.finish(*outputs))
    assert after.operations[0].inputs[1] == after.operations[1].inputs[1]


@pytest.mark.parametrize("right", [random(1, 4), random(1, 2, 4, 5), "z"])
def test_other_products_are_unchanged(right):
    program = Program(x=(2, 3, 4), z=(4, 4))
    model = program.finish(program("MAT_MUL", program.x, program.z if isinstance(right, str) else right))
    assert PASSES["matmul_to_fully_connected"](model) is model


ACTIVATIONS = [
    ("RELU", {}, "relu"),
    ("CLIP", {"min": 0.0, "max": 6.0}, "clip"),
    ("SIGMOID", {}, "sigmoid"),
    ("HARD_SIGMOID", {"alpha": 0.3, "beta": 0.4}, "hard_sigmoid"),
    ("HARD_SWISH", {}, "hard_swish"),
    ("TANH", {}, "tanh"),
    ("LEAKY_RELU", {"alpha": 0.3}, "leaky_relu"),
    ("GELU", {}, "gelu"),
    ("GELU", {"approximate": "tanh"}, "gelu_tanh"),
    ("SWISH", {}, "swish"),
]


@pytest.mark.parametrize(("type_", "attributes", "code"), ACTIVATIONS)
def test_activation_is_fused_into_its_producer(type_, attributes, code):
    program = Program(x=(2, 4, 5, 5))
    y = program(type_, host(program, "CONV_2D"), **attributes)
    after = check(PASSES["fuse_activation"], program.finish(y))
    assert [operation.attributes["fuse_code"] for operation in after.operations] == [code]


def test_only_the_first_activation_is_fused():
    program = Program(x=(2, 4))
    after = check(
        PASSES["fuse_activation"], program.finish(program("TANH", program("RELU", program("ADD", program.x, 1.0))))
    )
    assert types(after) == ["ADD", "TANH"]


def test_activation_of_shared_result_or_scaled_swish_is_not_fused():
    program = Program(x=(2, 4))
    y = program("ADD", program.x, 1.0)
    z = program("SWISH", program("MUL", program.x, 2.0), alpha=1.7)
    model = program.finish(y, program("RELU", y), z)
    assert PASSES["fuse_activation"](model) is model


def test_integers_keep_their_activation():
    program = Program(dtype="int32", x=(2, 4))
    model = program.finish(program("RELU", program("ADD", program.x, np.array(1, np.int32))))
    assert PASSES["fuse_activation"](model) is model
