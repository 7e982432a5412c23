"""Sizes and numbers that no memory holds, or that mean nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks.hostile import HUGE, LARGE, Made, X, graph, info, model, node, tagged, weight

_DEEP = 1000
_PADS = [0, 0, HUGE, HUGE]


def _doubling_concat(depth: int = 38) -> Made:
    """Each node joins the one before with itself: 2 ** 38 times x."""
    nodes = [node("Concat", f"v{n} v{n}", f"v{n + 1}", axis=0) for n in range(depth)]
    return model(graph([node("Relu", "x", "v0"), *nodes, node("ReduceSum", f"v{depth}")])), X


def _doubling_constants(depth: int = 38) -> Made:
    nodes = [node("Concat", f"v{n} v{n}", f"v{n + 1}", axis=0) for n in range(depth)]
    nodes += [node("ReduceSum", f"v{depth}", "s"), node("Add", "x s")]
    return model(graph(nodes, weights=[weight("v0", [1.0], TensorProto.FLOAT)])), X


def _doubling_einsum() -> Made:
    terms = ",".join("abcdefghijklmnopqrstuvwxyz"[n] for n in range(26))
    return model(
        graph(
            [
                node("Einsum", " ".join(["w"] * 26), "s", equation=f"{terms}->{terms.replace(',', '')}"),
                node("Add", "x s"),
            ],
            weights=[weight("w", [1.0] * 4, TensorProto.FLOAT)],
        )
    ), X


def _huge_input(size: int = HUGE) -> Made:
    return model(graph([node("Relu", "x")], [info("x", (size,))])), {"x": np.broadcast_to(np.float32(1), (size,))}


def _input_of_one_size(size: int = LARGE) -> Made:
    """A declared input of 2 ** 31 elements, which is fed as a view of one."""
    made = model(graph([node("Shape", "x")], [info("x", (size,))], [info("y", None, TensorProto.INT64)]))
    return made, {"x": np.broadcast_to(np.float32(1), (size,))}


def _product_of_dimensions() -> Made:
    """Ten dimensions of 2 ** 20."""
    shape = (2**20,) * 10
    return model(graph([node("Relu", "x")], [info("x", shape)])), {"x": np.ones((1,) * 10, np.float32)}


def _negative_dimensions() -> Made:
    return model(graph([node("Relu", "x")], [info("x", (-5, 3))])), X


def _many_dimensions(rank: int = 100_000) -> Made:
    return model(graph([node("Relu", "x")], [info("x", (1,) * rank)])), X


def _negative_weight() -> Made:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[-2, 3], raw_data=bytes(24))
    return model(graph([node("Add", "x w")], weights=[tensor])), X


def _huge_weight(dims: Sequence[int] = (HUGE, HUGE)) -> Made:
    """Dimensions of a weight that holds nothing."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=dims, raw_data=b"")
    return model(graph([node("Add", "x w")], weights=[tensor])), X


def _huge_empty_weight() -> Made:
    return _huge_weight((0, HUGE, HUGE))


def _weight_of_many_dimensions(rank: int = 100_000) -> Made:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1] * rank, raw_data=bytes(4))
    return model(graph([node("Add", "x w")], weights=[tensor])), X


def _texts(count: int = 1000) -> Made:
    tensor = helper.make_tensor("w", TensorProto.STRING, (count,), [b"\xff" * 1000] * count)
    nodes = [node("Identity", "w", "v"), node("Relu", "x")]
    return model(graph(nodes, outputs=[info("y", None), info("v", None, TensorProto.STRING)], weights=[tensor])), X


def _too_few_texts() -> Made:
    tensor = TensorProto(name="w", data_type=TensorProto.STRING, dims=[HUGE], string_data=[b"a"])
    nodes = [node("Identity", "w", "v"), node("Relu", "x")]
    return model(graph(nodes, outputs=[info("y", None), info("v", None, TensorProto.STRING)], weights=[tensor])), X


def _constant_of_shape(shape: Sequence[int]) -> Made:
    nodes = [node("ConstantOfShape", "s", "c"), node("ReduceSum", "c", "r", keepdims=0), node("Add", "x r")]
    return model(graph(nodes, weights=[weight("s", list(shape))])), X


def _fed_shape(op_type: str = "ConstantOfShape") -> Made:
    """A size that comes with the feed: nothing in the model tells it."""
    inputs = [info("s", (1,), TensorProto.INT64)]
    nodes = [node(op_type, "s", "c"), node("ReduceSum", "c")]
    return model(graph(nodes, inputs)), {"s": np.array([HUGE], np.int64)}


def _expanding(op_type: str, weights: Sequence[onnx.TensorProto], inputs: str, **attributes: Any) -> Made:
    nodes = [node(op_type, inputs, "c", **attributes), node("ReduceSum", "c")]
    return model(graph(nodes, weights=weights)), X


def _expanding_constant(op_type: str, weights: Sequence[onnx.TensorProto], inputs: str, **attributes: Any) -> Made:
    one = weight("one", [[1.0]], TensorProto.FLOAT)
    nodes = [node(op_type, inputs, "c", **attributes), node("ReduceSum", "c", "t"), node("Add", "x t")]
    return model(graph(nodes, weights=[one, *weights])), X


def _range_of(limit: int, step: int = 1) -> Made:
    weights = [weight("a", 0), weight("b", limit), weight("c", step)]
    nodes = [
        node("Range", "a b c", "r"),
        node("Cast", "r", "f", to=1),
        node("ReduceSum", "f", "s"),
        node("Add", "x s"),
    ]
    return model(graph(nodes, weights=weights)), X


def _resized(scale: float) -> Made:
    image = [info("x", (1, 1, 2, 3))]
    nodes = [node("Resize", "x  scales", "c", mode="nearest"), node("ReduceSum", "c")]
    nodes[0].input[:] = ["x", "", "scales"]
    made = model(graph(nodes, image, weights=[weight("scales", [1.0, 1.0, scale, scale], TensorProto.FLOAT)]))
    return made, {"x": np.ones((1, 1, 2, 3), np.float32)}


def _convolution(**attributes: Any) -> Made:
    nodes = [node("Conv", "x w", **attributes)]
    made = model(
        graph(nodes, [info("x", (1, 1, 8, 8))], weights=[weight("w", np.ones((1, 1, 3, 3)), TensorProto.FLOAT)])
    )
    return made, {"x": np.ones((1, 1, 8, 8), np.float32)}


def _pooling(op_type: str, **attributes: Any) -> Made:
    made = model(graph([node(op_type, "x", **attributes)], [info("x", (1, 1, 8, 8))]))
    return made, {"x": np.ones((1, 1, 8, 8), np.float32)}


def _long_kernel(count: int = 1_000_000) -> Made:
    return _pooling("MaxPool", kernel_shape=[2] * count)


def _one_hot(depth: int = HUGE) -> Made:
    weights = [weight("d", depth), weight("v", [0.0, 1.0], TensorProto.FLOAT)]
    nodes = [node("Cast", "x", "i", to=7), node("OneHot", "i d v", "c"), node("ReduceSum", "c")]
    return model(graph(nodes, weights=weights)), X


def _not_a_number() -> Made:
    nodes = [node("LeakyRelu", "x", "a", alpha=float("nan")), node("Elu", "a", "b", alpha=float("inf"))]
    return model(graph([*nodes, node("Relu", "b")])), X


def _extreme_integers() -> Made:
    nodes = [node("Softmax", "x", "a", axis=2**62), node("Relu", "a")]
    return model(graph(nodes)), X


def _eye(size: int = LARGE) -> Made:
    nodes = [
        node("ConstantOfShape", "s", "z"),
        node("EyeLike", "z", "e"),
        node("ReduceSum", "e", "r"),
        node("Add", "x r"),
    ]
    return model(graph(nodes, weights=[weight("s", [size, size])])), X


def _window(op_type: str = "HannWindow", size: int = HUGE) -> Made:
    nodes = [node(op_type, "n", "e"), node("ReduceSum", "e", "r"), node("Add", "x r")]
    return model(graph(nodes, weights=[weight("n", size)])), X


def _mel(size: int = 2**31 - 1) -> Made:
    weights = [
        weight("n", size),
        weight("d", size),
        weight("r", 16000),
        *(weight(n, v, TensorProto.FLOAT) for n, v in (("l", 0.0), ("u", 8000.0))),
    ]
    nodes = [node("MelWeightMatrix", "n d r l u", "e"), node("ReduceSum", "e", "q"), node("Add", "x q")]
    return model(graph(nodes, weights=weights)), X


def _random_normal(size: int = HUGE) -> Made:
    nodes = [node("RandomNormal", "", "e", shape=[size]), node("ReduceSum", "e", "q"), node("Add", "x q")]
    return model(graph(nodes)), X


def _recurrent(hidden: int = HUGE) -> Made:
    weights = [weight(n, np.ones((1, 4, 3)), TensorProto.FLOAT) for n in "wr"]
    nodes = [helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=hidden)]
    made = model(graph(nodes, [info("x", (1, 2, 3))], weights=weights))
    return made, {"x": np.ones((1, 2, 3), np.float32)}


def _sparse(indices: Sequence[int], dims: Sequence[int], values: int = 2) -> Made:
    held = helper.make_tensor("w", TensorProto.FLOAT, (values,), [1.0] * values)
    where = weight("i", list(indices))
    made = graph([node("Add", "x w")])
    made.sparse_initializer.append(helper.make_sparse_tensor(held, where, dims))
    return model(made), X


def _sparse_constant(indices: Sequence[int], dims: Sequence[int]) -> Made:
    held = helper.make_tensor("w", TensorProto.FLOAT, (2,), [1.0] * 2)
    tensor = helper.make_sparse_tensor(held, weight("i", list(indices)), dims)
    return model(graph([node("Constant", "", "w", sparse_value=tensor), node("Add", "x w")])), X


def _empty_dims(count: int = 30_000_000) -> Made:
    """An input of 30 million dimensions without a size: 60 MB."""
    shape = tagged(2, b"\x0a\x00" * count)
    info = tagged(1, b"s") + tagged(2, tagged(1, b"\x08\x01" + shape))
    whole = model(graph([node("Relu", "x")]))
    own = whole.graph.SerializeToString()
    return whole.SerializeToString().replace(tagged(7, own), tagged(7, own + tagged(11, info))), X


SIZES: Mapping[str, Callable[[Path], Made]] = {
    "Concat with itself, 38 times": lambda _: _doubling_concat(),
    "Concat of constants with itself, 38 times": lambda _: _doubling_constants(),
    "Einsum of constants, 4**26": lambda _: _doubling_einsum(),
    "an input of 2**40 elements": lambda _: _huge_input(),
    "an input of 2**31 elements": lambda _: _huge_input(LARGE),
    "an input of 2**31 elements, Shape of it": lambda _: _input_of_one_size(),
    "an input of 2**200 elements": lambda _: _product_of_dimensions(),
    "an input of negative dimensions": lambda _: _negative_dimensions(),
    "a type of 30 million dimensions": lambda _: _empty_dims(),
    "an input of 100,000 dimensions": lambda _: _many_dimensions(),
    "a weight of 100,000 dimensions": lambda _: _weight_of_many_dimensions(),
    "a weight of negative dimensions": lambda _: _negative_weight(),
    "a weight of 2**80 elements": lambda _: _huge_weight(),
    "a weight of 0 * 2**80 elements": lambda _: _huge_empty_weight(),
    "a weight of 2**31 elements": lambda _: _huge_weight((LARGE,)),
    "texts that are no UTF-8": lambda _: _texts(),
    "2**40 _texts, one there": lambda _: _too_few_texts(),
    "ConstantOfShape 2**40": lambda _: _constant_of_shape((HUGE,)),
    "ConstantOfShape 2**31": lambda _: _constant_of_shape((LARGE,)),
    "ConstantOfShape 2**62 x 4": lambda _: _constant_of_shape((2**62, 4)),
    "ConstantOfShape of a fed 2**40": lambda _: _fed_shape(),
    "Tile 2**40": lambda _: _expanding("Tile", [weight("r", [HUGE, 1])], "x r"),
    "Tile of a constant 2**31": lambda _: _expanding_constant("Tile", [weight("r", [LARGE, 1])], "one r"),
    "Expand 2**40": lambda _: _expanding("Expand", [weight("s", [HUGE, 2, 3])], "x s"),
    "Expand of a constant 2**31": lambda _: _expanding_constant("Expand", [weight("s", [LARGE, 1])], "one s"),
    "Range 2**40": lambda _: _range_of(HUGE),
    "Range 2**31": lambda _: _range_of(LARGE),
    "Range by 0": lambda _: _range_of(5, 0),
    "Resize by 2**20": lambda _: _resized(2.0**20),
    "Resize by NaN": lambda _: _resized(float("nan")),
    "Resize by infinity": lambda _: _resized(float("inf")),
    "Pad by 2**40": lambda _: _expanding("Pad", [weight("p", _PADS)], "x p"),
    "Pad of a constant by 2**31": lambda _: _expanding_constant("Pad", [weight("p", [0, 0, LARGE, 0])], "one p"),
    "Pad by -2**62": lambda _: _expanding("Pad", [weight("p", [-(2**62)] * 4)], "x p"),
    "Conv with pads of 2**40": lambda _: _convolution(pads=_PADS),
    "Conv with pads of 2**31": lambda _: _convolution(pads=[0, 0, LARGE, 0]),
    "Conv with strides of 2**40": lambda _: _convolution(strides=[HUGE, HUGE]),
    "Conv with dilations of 2**40": lambda _: _convolution(dilations=[HUGE, HUGE], pads=[HUGE] * 4),
    "Conv with a group of 2**40": lambda _: _convolution(group=HUGE),
    "Conv with strides of 0": lambda _: _convolution(strides=[0, 0]),
    "MaxPool with a kernel of 2**40": lambda _: _pooling("MaxPool", kernel_shape=[HUGE, HUGE], pads=[HUGE] * 4),
    "AveragePool with pads of 2**40": lambda _: _pooling("AveragePool", kernel_shape=[2, 2], pads=_PADS),
    "MaxPool with a kernel of a million axes": lambda _: _long_kernel(),
    "GlobalLpPool with p of 2**62": lambda _: _pooling("GlobalLpPool", p=2**62),
    "OneHot of 2**40": lambda _: _one_hot(),
    "EyeLike 2**62": lambda _: _eye(),
    "HannWindow 2**40": lambda _: _window(),
    "MelWeightMatrix 2**62": lambda _: _mel(),
    "RandomNormal 2**40": lambda _: _random_normal(),
    "LSTM with 2**40 hidden": lambda _: _recurrent(),
    "attributes that are NaN and infinite": lambda _: _not_a_number(),
    "an axis of 2**62": lambda _: _extreme_integers(),
    "a sparse weight with indices outside": lambda _: _sparse([0, 77], (2, 3)),
    "a sparse weight with negative indices": lambda _: _sparse([-2, 1], (2, 3)),
    "a sparse weight of 2**40 elements": lambda _: _sparse([0, 1], (HUGE,)),
    "a sparse weight of 2**31 elements": lambda _: _sparse([0, 1], (LARGE,)),
    "a sparse weight of negative dimensions": lambda _: _sparse([0, 1], (-2, -3)),
    "a sparse constant of 2**40 elements": lambda _: _sparse_constant([0, 1], (HUGE,)),
    "a sparse constant of 2**31 elements": lambda _: _sparse_constant([0, 1], (LARGE,)),
    "a sparse constant with indices outside": lambda _: _sparse_constant([0, 77], (2, 3)),
}
