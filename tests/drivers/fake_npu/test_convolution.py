from __future__ import annotations

import pytest

from tests.drivers.fake_npu.harness import close, context, floats, model_of, oracle, run

CONVOLUTIONS = {
    "plain": ((3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1, 5),
    "uneven pads": ((3, 3), (2, 2), (1, 0, 2, 1), (1, 1), 1, 5),
    "pointwise": ((1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1, 7),
    "pointwise strided": ((1, 1), (2, 2), (0, 0, 0, 0), (1, 1), 1, 7),
    "grouped and dilated": ((3, 2), (1, 2), (2, 1, 0, 1), (2, 2), 2, 6),
    "pointwise grouped": ((1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 4, 8),
    "pointwise grouped and strided": ((1, 1), (1, 2), (0, 0, 0, 0), (1, 1), 4, 8),
    "depthwise": ((3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 8, 8),
    "depthwise strided": ((3, 3), (2, 2), (1, 1, 1, 1), (1, 1), 8, 8),
    "depthwise dilated": ((5, 3), (1, 3), (2, 2, 2, 2), (1, 2), 8, 8),
    "depthwise no pads": ((3, 3), (1, 1), (0, 0, 0, 0), (1, 1), 8, 8),
    "depth multiplier": ((3, 3), (1, 1), (0, 0, 0, 0), (1, 1), 8, 16),
    "pads wider than the image": ((3, 3), (1, 1), (15, 14, 15, 14), (1, 1), 1, 2),
}


@pytest.mark.parametrize("case", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("computed", [False, True], ids=["constant", "computed"])
def test_convolution(case, bias, computed):
    kernel, strides, pads, dilations, group, outputs = case
    arrays = [floats(2, 8, 13, 11), floats(outputs, 8 // group, *kernel, seed=1)]
    arrays += [floats(outputs, seed=2)] if bias else []
    attributes = {"strides": strides, "pads": pads, "dilations": dilations, "group": group}
    constants = range(1, 1 if computed else len(arrays))
    close(run("CONV_2D", arrays, attributes, constants), oracle("Conv", arrays, attributes, constants), 1e-4)


@pytest.mark.parametrize("constant", [1, 2], ids=["filter", "bias"])
def test_convolution_with_one_constant_operand(constant):
    arrays = [floats(2, 8, 13, 11), floats(6, 8, 3, 3, seed=1), floats(6, seed=2)]
    close(run("CONV_2D", arrays, {}, (constant,)), oracle("Conv", arrays, {}, (constant,)), 1e-4)


def test_a_computed_filter_is_read_at_every_run():
    arrays = [floats(2, 8, 13, 11), floats(8, 1, 3, 3, seed=1)]
    model, _ = model_of("CONV_2D", arrays, {"group": 8})
    execution = context().compile(model).create_execution()
    for seed in range(2):
        feeds = [floats(2, 8, 13, 11, seed=seed), floats(8, 1, 3, 3, seed=seed + 1)]
        close(execution.compute(feeds)[0], oracle("Conv", feeds, {"group": 8}), 1e-5)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("channels", "width"), [(500, 6), (500, 9), (500, 15), (3, 1100), (1600, 4)])
def test_depthwise_convolution_in_several_blocks_of_columns(channels, width, stride):
    arrays = [floats(2, channels, 5, width), floats(channels, 1, 3, 3, seed=1), floats(channels, seed=2)]
    attributes = {"pads": (1, 1, 1, 1), "strides": (1, stride), "group": channels}
    close(run("CONV_2D", arrays, attributes, (1, 2)), oracle("Conv", arrays, attributes, (1, 2)), 1e-5)


def test_convolution_in_several_blocks():
    arrays = [floats(1, 32, 70, 90), floats(48, 32, 3, 3, seed=1), floats(48, seed=2)]
    attributes = {"pads": (1, 1, 1, 1)}
    close(run("CONV_2D", arrays, attributes, (1, 2)), oracle("Conv", arrays, attributes, (1, 2)), 1e-3)


@pytest.mark.parametrize(
    ("code", "parameters", "op_type", "attributes"),
    [
        ("relu", (), "Relu", {}),
        ("hard_swish", (1 / 6, 0.5), "HardSwish", {}),
        ("sigmoid", (), "Sigmoid", {}),
        ("gelu", (), "Gelu", {}),
        ("leaky_relu", (0.1,), "LeakyRelu", {"alpha": 0.1}),
    ],
)
@pytest.mark.parametrize("group", [1, 6])
def test_fused_activation(code, parameters, op_type, attributes, group):
    arrays = [floats(1, 6, 40, 40), floats(6, 6 // group, 3, 3, seed=1)]
    fused = {"group": group, "fuse_code": code, "fuse_parameters": parameters}
    expected = oracle(op_type, [oracle("Conv", arrays, {"group": group}, (1,))], attributes)
    close(run("CONV_2D", arrays, fused, (1,)), expected, 1e-4)


TRANSPOSED = {
    "stride is kernel": ((2, 2), (2, 2), (0, 0, 0, 0), (1, 1), 1, (0, 0)),
    "overlapping": ((3, 3), (2, 2), (1, 1, 1, 1), (1, 1), 1, (1, 1)),
    "stride 1": ((3, 4), (1, 1), (1, 0, 0, 2), (1, 1), 1, (0, 0)),
    "gaps": ((1, 2), (3, 3), (0, 0, 0, 0), (1, 1), 1, (2, 1)),
    "grouped and dilated": ((3, 2), (2, 1), (2, 1, 0, 1), (2, 2), 2, (1, 0)),
}


@pytest.mark.parametrize("case", TRANSPOSED.values(), ids=TRANSPOSED)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("computed", [False, True], ids=["constant", "computed"])
def test_transposed_convolution(case, bias, computed):
    kernel, strides, pads, dilations, group, output_padding = case
    arrays = [floats(2, 6, 9, 7), floats(6, 4 // group, *kernel, seed=1)]
    arrays += [floats(4, seed=2)] if bias else []
    attributes = {"strides": strides, "pads": pads, "dilations": dilations, "group": group}
    attributes["output_padding"] = output_padding
    constants = range(1, 1 if computed else len(arrays))
    expected = oracle("ConvTranspose", arrays, attributes, constants)
    close(run("CONV_2D_TRANSPOSE", arrays, attributes, constants), expected, 1e-4)


@pytest.mark.parametrize("size", [(3, 4), (40, 70)], ids=["images at once", "rows at once"])
@pytest.mark.parametrize("group", [1, 2])
def test_transposed_convolution_in_several_blocks(size, group):
    arrays = [floats(50 if size == (3, 4) else 2, 32, *size), floats(32, 32 // group, 3, 3, seed=1)]
    attributes = {"strides": (2, 1), "pads": (1, 1, 0, 1), "group": group}
    close(run("CONV_2D_TRANSPOSE", arrays, attributes), oracle("ConvTranspose", arrays, attributes), 1e-4)


POOLS = {
    "plain": ((2, 2), (2, 2), (0, 0, 0, 0), (1, 1), False),
    "padded": ((3, 3), (2, 2), (1, 1, 1, 1), (1, 1), False),
    "uneven": ((3, 2), (1, 3), (1, 0, 2, 1), (1, 1), False),
    "ceil": ((3, 3), (2, 2), (0, 0, 0, 0), (1, 1), True),
    "ceil padded": ((2, 2), (2, 2), (0, 0, 1, 1), (1, 1), True),
    "dilated": ((3, 3), (1, 1), (2, 2, 2, 2), (2, 2), False),
}


@pytest.mark.parametrize("case", POOLS.values(), ids=POOLS)
def test_max_pool(case):
    names = ("kernel_shape", "strides", "pads", "dilations", "ceil_mode")
    attributes = dict(zip(names, case, strict=True))
    x = floats(2, 3, 12, 14)
    close(run("MAX_POOL_2D", [x], attributes), oracle("MaxPool", [x], attributes))


@pytest.mark.parametrize("case", POOLS.values(), ids=POOLS)
@pytest.mark.parametrize("include_pad", [True, False])
def test_average_pool(case, include_pad):
    names = ("kernel_shape", "strides", "pads", "dilations", "ceil_mode")
    attributes = {**dict(zip(names, case, strict=True)), "count_include_pad": include_pad}
    x = floats(2, 3, 12, 14)
    expected = oracle("AveragePool", [x], {**attributes, "count_include_pad": int(include_pad)})
    close(run("AVERAGE_POOL_2D", [x], attributes), expected)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_and_space(mode):
    x = floats(2, 12, 4, 6)
    attributes = {"block_size": 2}
    expected = oracle("DepthToSpace", [x], {"blocksize": 2, "mode": mode})
    close(run("DEPTH_TO_SPACE", [x], {**attributes, "mode": mode}), expected, 0)
    close(run("SPACE_TO_DEPTH", [x], attributes), oracle("SpaceToDepth", [x], {"blocksize": 2}), 0)
