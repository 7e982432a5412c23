import numpy as np
import pytest
from onnx import TensorProto, helper

from nnadapter.drivers import SUPPORTED, Reason
from tests.converters.single_node import check, convert, expected, floats, make, opsets, reason


def _pooled(*shape, **attributes):
    """Return both outputs of MaxPool for random numbers."""
    return expected(make("MaxPool", 12, [floats(*shape)], attributes, outputs=2), {"x0": floats(*shape)})


@pytest.mark.parametrize("shape", [(2, 3, 8), (2, 3, 8, 6), (1, 2, 4, 6, 4)])
@pytest.mark.parametrize("opset", opsets("MaxUnpool"))
def test_max_unpool(opset, shape):
    attributes = {"kernel_shape": [2] * (len(shape) - 2), "strides": [2] * (len(shape) - 2)}
    pooled = _pooled(*shape, **attributes)
    check("MaxUnpool", opset, pooled, attributes, tolerance=0)


@pytest.mark.parametrize(("size", "disputed"), [(4, False), (5, True)])
def test_max_unpool_to_another_shape_may_be_refused(size, disputed):
    attributes = {"kernel_shape": [2, 2], "strides": [2, 2]}
    inputs = [*_pooled(1, 1, size, size, **attributes), np.array([1, 1, size, size])]
    model = make("MaxUnpool", 11, inputs, attributes, constant=[2])
    # onnx infers no type if the shape is an input, but a model may state it.
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y0", TensorProto.FLOAT, [1, 1, size, size]))
    (verdict,) = convert(model).verdicts
    assert (verdict == SUPPORTED) is not disputed
    assert not disputed or verdict.reason is Reason.UNSUPPORTED_ATTRIBUTE


@pytest.mark.parametrize(
    ("image", "block", "attributes"),
    [
        ([5, 6], [2, 3], {}),
        ([5, 6], [2, 3], {"strides": [1, 2], "pads": [1, 0, 0, 1]}),
        ([5, 6], [2, 2], {"dilations": [2, 3], "pads": [0, 1, 1, 0]}),
        ([4, 5, 4], [2, 1, 3], {"pads": [1, 0, 0, 1, 0, 1]}),
        ([9], [3], {"strides": [2]}),
    ],
)
def test_col_to_im(image, block, attributes):
    rank = len(image)
    pads, strides = attributes.get("pads", [0] * 2 * rank), attributes.get("strides", [1] * rank)
    dilations = attributes.get("dilations", [1] * rank)
    blocks = [
        (size + pads[axis] + pads[axis + rank] - (block[axis] - 1) * dilations[axis] - 1) // strides[axis] + 1
        for axis, size in enumerate(image)
    ]
    x = floats(2, 3 * int(np.prod(block)), int(np.prod(blocks)))
    check("Col2Im", 18, [x, np.array(image), np.array(block)], attributes, constant=[1, 2], tolerance=1e-5)


def test_computed_shapes_are_refused():
    inputs = [floats(1, 4, 16), np.array([5, 5]), np.array([2, 2])]
    assert reason("Col2Im", 18, inputs) in (Reason.NOT_CONSTANT, Reason.DYNAMIC_SHAPE)
