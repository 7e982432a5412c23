import numpy as np
import pytest

from nnadapter.converters import OnnxNode, convert_graph
from nnadapter.drivers import Reason
from partition import Value
from tests.converters.single_node import check, convert, floats, make, opsets, reason

_PICTURES = [
    {},
    {"strides": [2, 1], "pads": [1, 0, 2, 1]},
    {"dilations": [2, 1], "pads": [2, 1, 2, 1]},
    {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
    {"auto_pad": "SAME_LOWER", "strides": [2, 3], "dilations": [1, 2]},
    {"auto_pad": "VALID", "strides": [2, 2]},
    {"kernel_shape": [3, 2]},
]


@pytest.mark.parametrize("constant", [[], [1, 2]])
@pytest.mark.parametrize("attributes", _PICTURES)
@pytest.mark.parametrize("opset", opsets("Conv"))
def test_conv_of_images(opset, attributes, constant):
    inputs = [floats(2, 3, 8, 7), floats(4, 3, 3, 2, seed=1), floats(4, seed=2)]
    check("Conv", opset, inputs, attributes, constant=constant, tolerance=1e-5)


@pytest.mark.parametrize("group", [2, 4])
def test_conv_in_groups(group):
    check("Conv", 11, [floats(1, 4, 6, 6), floats(8, 4 // group, 3, 3, seed=1)], {"group": group}, tolerance=1e-5)


@pytest.mark.parametrize("constant", [[], [1]])
@pytest.mark.parametrize("attributes", [{"strides": [2], "pads": [1, 2]}, {"auto_pad": "SAME_UPPER", "dilations": [2]}])
def test_conv_of_sequences(attributes, constant):
    check("Conv", 11, [floats(2, 3, 9), floats(4, 3, 3, seed=1)], attributes, constant=constant, tolerance=1e-5)


_SPREADS = [
    {},
    {"strides": [2, 3], "pads": [1, 0, 0, 1]},
    {"strides": [2, 3], "output_padding": [1, 2]},
    {"dilations": [2, 1], "strides": [2, 2]},
    {"strides": [2, 2], "output_shape": [9, 8]},
    {"strides": [2, 2], "output_shape": [9, 8], "auto_pad": "SAME_UPPER"},
    {"strides": [2, 2], "output_shape": [10, 9], "output_padding": [1, 1]},
    {"strides": [2, 2], "output_shape": [12, 9]},
    {"strides": [2, 2], "auto_pad": "SAME_UPPER"},
    {"strides": [2, 2], "auto_pad": "SAME_LOWER"},
    {"strides": [2, 2], "auto_pad": "VALID"},
]


@pytest.mark.parametrize("attributes", _SPREADS)
@pytest.mark.parametrize("opset", opsets("ConvTranspose"))
def test_conv_transpose_of_images(opset, attributes):
    inputs = [floats(2, 3, 5, 4), floats(3, 4, 3, 3, seed=1), floats(4, seed=2)]
    check("ConvTranspose", opset, inputs, attributes, constant=[1, 2], tolerance=1e-5)


def test_conv_transpose_in_groups():
    check("ConvTranspose", 11, [floats(1, 4, 5, 5), floats(4, 3, 2, 2, seed=1)], {"group": 2}, tolerance=1e-5)


def test_conv_transpose_of_sequences():
    attributes = {"strides": [2], "output_padding": [1], "pads": [1, 0]}
    check("ConvTranspose", 11, [floats(2, 3, 9), floats(3, 4, 3, seed=1)], attributes, tolerance=1e-5)


@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose"])
def test_rank_6_is_refused(op_type):
    assert reason(op_type, 11, [floats(1, 2, 3, 3, 3, 3), floats(2, 2, 1, 1, 1, 1)]) is Reason.UNSUPPORTED_RANK


_VOLUMES = [
    {},
    {"strides": [1, 2, 1], "pads": [1, 0, 1, 0, 1, 1]},
    {"dilations": [1, 2, 1], "pads": [0, 1, 0, 1, 1, 0]},
    {"auto_pad": "SAME_UPPER", "strides": [2, 1, 2]},
]


@pytest.mark.parametrize("attributes", _VOLUMES)
@pytest.mark.parametrize("opset", opsets("Conv"))
def test_conv_of_volumes(opset, attributes):
    inputs = [floats(2, 4, 4, 5, 4), floats(6, 2, 2, 3, 2, seed=1), floats(6, seed=2)]
    check("Conv", opset, inputs, {"group": 2, **attributes}, constant=[1], tolerance=1e-5)


@pytest.mark.parametrize("attributes", _VOLUMES)
@pytest.mark.parametrize("opset", opsets("ConvTranspose"))
def test_conv_transpose_of_volumes(opset, attributes):
    inputs = [floats(2, 4, 3, 4, 3), floats(4, 3, 2, 3, 2, seed=1), floats(6, seed=2)]
    check("ConvTranspose", opset, inputs, {"group": 2, **attributes}, constant=[1], tolerance=1e-5)


def test_kernel_shape_unequal_to_the_filter_is_refused():
    inputs = [floats(1, 2, 5, 5), floats(2, 2, 3, 3)]
    verdict = reason("Conv", 11, inputs, {"kernel_shape": [2, 3]})
    assert verdict is Reason.INVALID_NODE


def test_output_padding_of_another_length_is_refused():
    inputs = [floats(1, 2, 5, 5), floats(2, 2, 3, 3)]
    attributes = {"output_padding": [1], "strides": [2, 2], "output_shape": [9, 9]}
    model = make("ConvTranspose", 11, inputs, {**attributes, "output_padding": [1, 1]})
    model.graph.node[0].attribute[0].ints.pop()
    (verdict,) = convert(model).verdicts
    assert verdict.reason is Reason.INVALID_NODE


def test_output_shape_far_beyond_the_input_is_refused():
    inputs = [floats(1, 2, 5, 5), floats(2, 2, 3, 3)]
    assert reason("ConvTranspose", 11, inputs, {"output_shape": [9, 9]}) is Reason.INVALID_NODE


def test_double_precision():
    inputs = [floats(1, 2, 5, 5).astype(np.float64), floats(2, 2, 3, 3, seed=1).astype(np.float64)]
    check("Conv", 11, inputs, tolerance=1e-12)


def test_strides_of_zero_are_refused():
    node = OnnxNode("n", "Conv", "", 11, ("x", "w"), ("y",), {"strides": (0, 1), "auto_pad": "SAME_UPPER"})
    values = {name: Value(name, "float32", (1, 1, 3, 3)) for name in "xwy"}
    assert convert_graph([node], values, {}, ["y"]).verdicts[0].reason is Reason.INVALID_NODE
