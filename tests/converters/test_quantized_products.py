import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnadapter.drivers import Reason
from tests.converters.quantized_nodes import SCALES, check_on_device, integers, scale
from tests.converters.single_node import refusal

PAIRS = [("uint8", "int8"), ("uint8", "uint8"), ("int8", "int8")]


def convolution(dtypes=("uint8", "int8"), image=(1, 4, 7, 6), filter_=(6, 4, 3, 3), seed=0, bias=True, channels=False):
    """Return inputs of QLinearConv whose results fill most of the range of their type."""
    generator = np.random.default_rng(seed)
    x, w = integers(generator, dtypes[0], *image), integers(generator, dtypes[1], *filter_, spread=0.8)
    depth = np.prod(filter_[1:])
    w_scales = generator.uniform(0.5, 2, filter_[0]).astype(np.float32) if channels else scale(1.0)
    w_points = np.zeros(filter_[0], dtypes[1]) if channels else integers(generator, dtypes[1], spread=0.3)
    y_scale = scale(0.02 * 40.0 * np.sqrt(depth))
    inputs = [x, scale(0.02), integers(generator, dtypes[0], spread=0.5), w, w_scales, w_points, y_scale]
    inputs.append(integers(generator, dtypes[0], spread=0.3))
    if bias:
        inputs.append(generator.integers(-3000, 3000, filter_[0]).astype(np.int32))
    return inputs


@pytest.mark.parametrize("dtypes", PAIRS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"pads": [1, 2, 0, 1], "strides": [2, 1]},
        {"dilations": [2, 2]},
        {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
    ],
)
def test_qlinear_conv(dtypes, bias, attributes):
    inputs = convolution(dtypes, bias=bias)
    conversion = check_on_device("QLinearConv", 10, inputs, attributes, constant=range(1, len(inputs)))
    assert [operation.type for operation in conversion.model.operations] == ["STORAGE_CAST", "CONV_2D"]


@pytest.mark.parametrize(
    ("image", "filter_", "group"),
    [
        ((2, 6, 5, 5), (6, 1, 3, 3), 6),
        ((1, 6, 5, 5), (4, 3, 2, 2), 2),
        ((3, 6, 4, 4), (5, 6, 1, 1), 1),
        ((1, 64, 3, 3), (8, 64, 3, 3), 1),
    ],
)
def test_qlinear_conv_of_groups_and_scales_per_channel(image, filter_, group):
    inputs = convolution(image=image, filter_=filter_, channels=True)
    attributes = {"group": group, "pads": [filter_[2] // 2] * 4}
    check_on_device("QLinearConv", 10, inputs, attributes, constant=range(1, 9))


def test_qlinear_conv_of_sequences():
    inputs = convolution(image=(2, 3, 9), filter_=(4, 3, 3), channels=True)
    check_on_device("QLinearConv", 10, inputs, {"pads": [1, 1]}, constant=range(1, 9))


def test_results_saturate():
    inputs = convolution()
    inputs[6] = scale(1e-3)
    check_on_device("QLinearConv", 10, inputs, constant=range(1, 9))


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_qlinear_conv_of_any_form(data):
    draw = data.draw
    group = draw(st.sampled_from([1, 1, 2, 3]))
    kernel = [draw(st.integers(1, 3)) for _ in range(2)]
    filter_ = (group * draw(st.integers(1, 3)), draw(st.integers(1, 4)), *kernel)
    image = (draw(st.integers(1, 2)), filter_[1] * group, *(size + draw(st.integers(0, 5)) for size in kernel))
    attributes = {
        "group": group,
        "strides": [draw(st.integers(1, 3)) for _ in range(2)],
        "pads": [draw(st.integers(0, 2)) for _ in range(4)],
    }
    dtypes, seed = draw(st.sampled_from(PAIRS)), draw(st.integers(0, 99))
    inputs = convolution(dtypes, image, filter_, seed, draw(st.booleans()), draw(st.booleans()))
    check_on_device("QLinearConv", 10, inputs, attributes, constant=range(1, len(inputs)))


def product(dtypes=("uint8", "int8"), a=(5, 40), b=(40, 7), seed=0, columns=False):
    """Return inputs of QLinearMatMul."""
    generator = np.random.default_rng(seed)
    x, y = integers(generator, dtypes[0], *a), integers(generator, dtypes[1], *b, spread=0.8)
    scales = generator.uniform(0.5, 2, b[-1]).astype(np.float32) if columns else scale(1.5)
    points = integers(generator, dtypes[1], *((b[-1],) if columns else ()), spread=0.2)
    y_scale = scale(0.02 * 70.0 * np.sqrt(a[-1]))
    first, last = integers(generator, dtypes[0], spread=0.5), integers(generator, dtypes[0], spread=0.3)
    return [x, scale(0.02), first, y, scales, points, y_scale, last]


@pytest.mark.parametrize("dtypes", PAIRS)
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("constant", [range(1, 8), SCALES, ()])
def test_qlinear_mat_mul(dtypes, columns, constant):
    check_on_device("QLinearMatMul", 10, product(dtypes, columns=columns), constant=constant)


@pytest.mark.parametrize(
    ("a", "b"), [((2, 3, 8), (8, 5)), ((2, 3, 8), (2, 8, 5)), ((1, 8), (8, 1)), ((4, 700), (700, 3))]
)
def test_qlinear_mat_mul_of_shapes(a, b):
    check_on_device("QLinearMatMul", 10, product(a=a, b=b), constant=range(1, 8))
    check_on_device("QLinearMatMul", 21, product(a=a, b=b), constant=SCALES)


@pytest.mark.parametrize("dtypes", PAIRS)
@pytest.mark.parametrize("constant", [(1, 2, 3), (2, 3), (1, 3), (3,), ()])
def test_mat_mul_integer(dtypes, constant):
    generator = np.random.default_rng(0)
    a, b = integers(generator, dtypes[0], 3, 4, 300), integers(generator, dtypes[1], 300, 6)
    points = [integers(generator, dtype) for dtype in dtypes]
    check_on_device("MatMulInteger", 10, [a, b, *points], constant=constant)


def test_mat_mul_integer_without_zero_points_and_with_one_per_column():
    generator = np.random.default_rng(0)
    a, b = integers(generator, "uint8", 4, 30), integers(generator, "int8", 30, 6)
    check_on_device("MatMulInteger", 10, [a, b], constant=(1,))
    check_on_device("MatMulInteger", 10, [a, b, None, integers(generator, "int8", 6)], constant=(1, 3))


@pytest.mark.parametrize("dtypes", [("uint8", "uint8"), ("uint8", "int8")])
@pytest.mark.parametrize("constant", [(1, 2, 3), (1, 3)])
@pytest.mark.parametrize("attributes", [{}, {"pads": [1, 0, 2, 1], "strides": [2, 1]}])
def test_conv_integer(dtypes, constant, attributes):
    generator = np.random.default_rng(0)
    x, w = integers(generator, dtypes[0], 2, 3, 6, 5), integers(generator, dtypes[1], 4, 3, 3, 2)
    points = [integers(generator, dtype) for dtype in dtypes]
    check_on_device("ConvInteger", 10, [x, w, *points], attributes, constant=constant)


def test_conv_integer_of_sequences_with_computed_zero_point():
    generator = np.random.default_rng(0)
    x, w = integers(generator, "uint8", 2, 3, 6), integers(generator, "uint8", 4, 3, 3)
    check_on_device("ConvInteger", 10, [x, w, np.uint8(7), np.uint8(9)], {"pads": [1, 2]}, constant=(1, 3))


def test_computed_scales_of_convolutions_are_refused():
    assert refusal("QLinearConv", 10, convolution(), constant=(3, 4, 5, 6, 7, 8)).reason is Reason.NOT_CONSTANT


@pytest.mark.parametrize(("position", "value"), [(1, scale(0.0)), (1, scale(np.nan)), (6, scale([1, 2]))])
def test_invalid_scales_are_refused(position, value):
    inputs = convolution()
    inputs[position] = value
    assert refusal("QLinearConv", 10, inputs, constant=range(1, 9)).reason is Reason.UNSUPPORTED_ATTRIBUTE
