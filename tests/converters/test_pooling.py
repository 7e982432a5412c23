import numpy as np
import pytest

from nnadapter.drivers import Reason
from tests.converters.single_node import check, convert, expected, floats, make, opsets, reason

_ATTRIBUTES = [
    {},
    {"strides": [2, 1], "pads": [1, 0, 1, 1]},
    {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
    {"auto_pad": "SAME_LOWER", "strides": [2, 3]},
    {"auto_pad": "VALID", "strides": [2, 2]},
]
_CEILED = [
    {"ceil_mode": 1, "strides": [2, 3]},
    {"ceil_mode": 1, "strides": [2, 2], "pads": [0, 1, 1, 0]},
]
_STARTING_IN_PADDING = {"kernel_shape": [3, 2], "ceil_mode": 1, "strides": [3, 2], "pads": [0, 1, 1, 1]}


@pytest.mark.parametrize("attributes", _ATTRIBUTES)
@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("opset", sorted({*opsets("MaxPool"), *opsets("AveragePool")}))
def test_windows(op_type, opset, attributes):
    check(op_type, opset, [floats(2, 3, 8, 7)], {"kernel_shape": [3, 2], **attributes}, tolerance=1e-6)


@pytest.mark.parametrize("attributes", _CEILED)
@pytest.mark.parametrize(
    ("op_type", "opset"), [("MaxPool", v) for v in (10, 11, 12, 22)] + [("AveragePool", v) for v in (10, 11, 19, 22)]
)
def test_ceil_mode(op_type, opset, attributes):
    check(op_type, opset, [floats(2, 3, 8, 7)], {"kernel_shape": [3, 2], **attributes}, tolerance=1e-6)


@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool"])
def test_windows_that_start_in_the_padding_are_omitted(op_type):
    check(op_type, 22, [floats(2, 3, 8, 7)], _STARTING_IN_PADDING, tolerance=1e-6)


@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool"])
def test_shape_without_a_kernel_is_refused(op_type):
    # Before version 22, onnx infers such windows and ONNX Runtime omits them.
    assert reason(op_type, 11, [floats(2, 3, 8, 7)], _STARTING_IN_PADDING) is Reason.INVALID_NODE


@pytest.mark.parametrize("attributes", [*_ATTRIBUTES[1:], *_CEILED])
@pytest.mark.parametrize("opset", [19, 22])
def test_average_with_padding_counted(opset, attributes):
    attributes = {"kernel_shape": [3, 2], "count_include_pad": 1, **attributes}
    check("AveragePool", opset, [floats(2, 3, 8, 7)], attributes, tolerance=1e-6)


@pytest.mark.parametrize(
    ("op_type", "opset"), [("MaxPool", 10), ("MaxPool", 22), ("AveragePool", 19), ("AveragePool", 22)]
)
def test_dilations(op_type, opset):
    attributes = {"kernel_shape": [2, 2], "dilations": [2, 3], "pads": [1, 1, 1, 1]}
    check(op_type, opset, [floats(2, 3, 8, 7)], attributes, tolerance=1e-6)


@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool"])
def test_sequences(op_type):
    check(op_type, 11, [floats(2, 3, 9)], {"kernel_shape": [3], "strides": [2], "pads": [1, 0]}, tolerance=1e-6)


def test_max_pool_of_bytes():
    check("MaxPool", 12, [np.arange(36, dtype=np.uint8).reshape(1, 1, 6, 6)], {"kernel_shape": [2, 2]}, tolerance=0)


def test_unread_indices_are_not_computed():
    model = make("MaxPool", 12, [floats(1, 1, 4, 4)], {"kernel_shape": [2, 2]}, outputs=2)
    del model.graph.output[1]
    assert [operation.type for operation in convert(model).model.operations] == ["MAX_POOL_2D"]


@pytest.mark.parametrize("storage_order", [0, 1])
@pytest.mark.parametrize("shape", [(2, 3, 7), (2, 3, 6, 7), (2, 2, 4, 5, 4)])
@pytest.mark.parametrize("opset", opsets("MaxPool", 8))
def test_indices(opset, shape, storage_order):
    x = np.random.default_rng(0).integers(0, 4, shape).astype(np.float32)
    rank = len(shape) - 2
    attributes = {"kernel_shape": [3] * rank, "strides": [2] * rank, "pads": [1] * (2 * rank)}
    check("MaxPool", opset, [x], {**attributes, "storage_order": storage_order}, outputs=2, tolerance=0)


def test_rank_6_is_refused():
    assert reason("MaxPool", 12, [floats(1, 1, 4, 4, 4, 4)], {"kernel_shape": [2] * 4}) is Reason.UNSUPPORTED_RANK


@pytest.mark.parametrize("attributes", [{}, {"strides": [2, 1, 2], "pads": [1, 0, 1, 0, 1, 1]}])
@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool", "LpPool"])
def test_windows_over_volumes(op_type, attributes):
    for opset in opsets(op_type):
        check(op_type, opset, [floats(2, 3, 5, 6, 5)], {"kernel_shape": [3, 2, 2], **attributes}, tolerance=1e-5)


@pytest.mark.parametrize("count_include_pad", [0, 1])
@pytest.mark.parametrize("ceil_mode", [0, 1])
def test_average_pool_of_volumes_with_all_attributes(ceil_mode, count_include_pad):
    attributes = {"kernel_shape": [2, 3, 2], "strides": [2, 2, 1], "pads": [1, 1, 0, 1, 1, 1], "dilations": [2, 1, 2]}
    attributes |= {"ceil_mode": ceil_mode, "count_include_pad": count_include_pad}
    check("AveragePool", 19, [floats(1, 2, 6, 7, 5)], attributes, tolerance=1e-5)


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("attributes", _ATTRIBUTES)
@pytest.mark.parametrize("opset", opsets("LpPool"))
def test_p_norms(opset, attributes, p):
    check("LpPool", opset, [floats(2, 3, 8, 7)], {"kernel_shape": [3, 2], "p": p, **attributes}, tolerance=1e-5)


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 4, 5), (1, 2, 3, 4, 5)])
@pytest.mark.parametrize("opset", opsets("GlobalLpPool"))
def test_global_p_norms(opset, shape, p):
    # No runtime has version 22, which only adds data types.
    oracle = expected(make("GlobalLpPool", 7, [floats(*shape)], {"p": p}), {"x0": floats(*shape)})
    check("GlobalLpPool", opset, [floats(*shape)], {"p": p}, tolerance=1e-5, oracle=oracle)


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 4, 5), (1, 2, 3, 4, 5)])
@pytest.mark.parametrize("op_type", ["GlobalAveragePool", "GlobalMaxPool"])
@pytest.mark.parametrize("opset", opsets("GlobalAveragePool"))
def test_global(op_type, opset, shape):
    check(op_type, opset, [floats(*shape)], tolerance=1e-6)


@pytest.mark.parametrize(("op_type", "opset"), [("MaxPool", 12), ("AveragePool", 19)])
def test_auto_padding_of_dilated_windows_is_refused(op_type, opset):
    attributes = {"kernel_shape": [2, 2], "auto_pad": "SAME_UPPER", "dilations": [2, 2]}
    assert reason(op_type, opset, [floats(1, 1, 10, 10)], attributes) is Reason.UNSUPPORTED_ATTRIBUTE


def test_padding_of_disjoint_averages_is_refused():
    attributes = {"kernel_shape": [1, 1], "auto_pad": "SAME_UPPER", "strides": [3, 3]}
    assert reason("AveragePool", 11, [floats(1, 1, 10, 10)], attributes) is Reason.UNSUPPORTED_ATTRIBUTE
