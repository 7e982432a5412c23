"""Permuted channels before a convolution: the engine would permute the filter the wrong way round."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from nnadapter.drivers.openvino import read
from tests.drivers.openvino.harness import computed, context
from tests.every import for_every_value
from tests.models import run_whole

SHUFFLED = (0, 2, 4, 1, 3, 5)
GATHERS = ((1, 2, 0), SHUFFLED, (-2, -1, -3), (2, 1, 0), (0, 0, 1))
PARTS = ((3, (1, 2, 0)), (3, (2, 1, 0)), (6, (1, 2, 0)), (6, (2, 1, 0)))
"""Channels of the input, and the order of its parts."""
BETWEEN = {
    "nothing": [],
    "Relu": [helper.make_node("Relu", ["p"], ["q"])],
    "Add": [helper.make_node("Add", ["p", "per_channel"], ["q"])],
    "Transpose": [helper.make_node("Transpose", ["p"], ["q"], perm=[0, 1, 3, 2])],
    "Conv": [helper.make_node("Conv", ["p", "deep"], ["q"], pads=[1, 1, 1, 1])],
}
SIZES = {"known": (1, 5, 5), "open": ("n", "h", "w")}


def random(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def picture_model(nodes, channels, sizes, constants):
    batch, height, width = sizes
    shape = [batch, channels, height, width]
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    end = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    start = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    graph = helper.make_graph(nodes, "g", [start], [end], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=9)
    return onnx.shape_inference.infer_shapes(model)


def convolved(nodes, between, channels, sizes=SIZES["known"], **constants):
    """Build a model of the nodes, then `between`, then a convolution."""
    middle = BETWEEN[between]
    last = helper.make_node("Conv", ["q" if middle else "p", "filter"], ["y"], pads=[1, 1, 1, 1])
    defaults = {
        "filter": random(4, channels, 3, 3),
        "per_channel": random(1, channels, 1, 1),
        "deep": random(channels, channels, 3, 3),
    }
    read_names = {name for node in (*nodes, *middle, last) for name in node.input}
    used_constants = {name: value for name, value in {**defaults, **constants}.items() if name in read_names}
    return picture_model([*nodes, *middle, last], channels, sizes, used_constants)


def assert_right(model, channels):
    opened, x = context(), random(1, channels, 5, 5)
    is_open = bool(model.graph.input[0].type.tensor_type.shape.dim[2].dim_param)
    assert opened.admit(model).verdict if is_open else all(opened.supported(model))
    (expected,) = run_whole(model, {"x": x})
    np.testing.assert_allclose(computed(opened, model, [x])[0], expected, rtol=1e-3, atol=1e-4)
    program = opened.compile(model)
    execution = opened.deserialize(program.serialize()).create_execution()
    np.testing.assert_allclose(execution.compute([x])[0], expected, rtol=1e-3, atol=1e-4)
    execution.close()


def gathering(order):
    return [helper.make_node("Gather", ["x", "order"], ["p"], axis=1)], {"order": np.array(order)}


def splitting(order):
    parts = [f"part{number}" for number in range(len(order))]
    split = helper.make_node("Split", ["x"], parts, axis=1)
    return [split, helper.make_node("Concat", [parts[number] for number in order], ["p"], axis=1)]


@for_every_value(order=GATHERS, sizes=SIZES.values(), between=BETWEEN)
def test_gathered_channels_are_convolved_in_their_new_order(order, sizes, between):
    nodes, constants = gathering(order)
    assert_right(convolved(nodes, between, len(order), sizes, **constants), len(order))


@for_every_value(part=PARTS, sizes=SIZES.values(), between=BETWEEN)
def test_parts_of_channels_are_convolved_in_their_new_order(part, sizes, between):
    channels, order = part
    assert_right(convolved(splitting(order), between, channels, sizes), channels)


@pytest.mark.parametrize("order", [[[1, 2, 0]], [[2], [1], [0]]], ids=["row", "column"])
def test_rank_2_indices_are_no_channel_order(order):
    nodes, constants = gathering(order)
    width = np.shape(order)[0]
    volumes = random(4, width, *[1] * 3)
    last = helper.make_node("Conv", ["p", "filter"], ["y"])
    assert_right(picture_model([*nodes, last], 3, SIZES["known"], {**constants, "filter": volumes}), 3)


def gather_axes(order):
    nodes, constants = gathering(order)
    model = convolved(nodes, "nothing", len(order), **constants)
    gathers = (op for op in read(model).get_ops() if op.get_type_name() == "Gather")
    return [int(op.input_value(2).get_node().data.item()) for op in gathers]


def test_self_inverse_orders_are_unchanged():
    assert gather_axes((2, 1, 0)) == [1]
    assert gather_axes((1, 2, 0)) == [-3]
