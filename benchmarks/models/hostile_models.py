"""Hostile models: endless or deep graphs, huge counts, and sizes that no memory holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from nnadapter.onnx import BYTES, varint_bytes

Feed = Mapping[str, Any]
Made = tuple[onnx.ModelProto | bytes | Path, Feed]
"""A model and a feed."""
X: Feed = {"x": np.ones((2, 3), np.float32)}
HUGE, LARGE = 2**40, 2**31


def info(name: str, shape: Sequence[int | str] | None = ("n", "m"), data_type: int = TensorProto.FLOAT) -> Any:
    """Return the declaration of a value."""
    return helper.make_tensor_value_info(name, data_type, shape)


def node(op_type: str, inputs: str, outputs: str = "y", **attributes: Any) -> onnx.NodeProto:
    """Return a node; its inputs and outputs are separated by spaces."""
    return helper.make_node(op_type, inputs.split(), outputs.split(), **attributes)


def graph(
    nodes: Iterable[onnx.NodeProto],
    inputs: Sequence[Any] | None = None,
    outputs: Sequence[Any] | None = None,
    weights: Sequence[Any] = (),
) -> onnx.GraphProto:
    """Return a graph with an input x of [2, 3] and an output y."""
    graph_inputs = [info("x", (2, 3))] if inputs is None else inputs
    return helper.make_graph(nodes, "g", graph_inputs, [info("y", None)] if outputs is None else outputs, list(weights))


def model(graph: onnx.GraphProto, functions: Sequence[onnx.FunctionProto] = (), opset: int = 17) -> onnx.ModelProto:
    """Return a model of opset 17, with functions of the domain `own`."""
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=imports, functions=list(functions), ir_version=8)


def weight(name: str, values: Any, data_type: int = TensorProto.INT64) -> onnx.TensorProto:
    """Return an initializer."""
    array = np.asarray(values)
    return helper.make_tensor(name, data_type, array.shape, array.reshape(-1).tolist())


def tagged(number: int, contents: bytes) -> bytes:
    """Return a field of a serialized message: its tag, its length, its contents."""
    return varint_bytes(number << 3 | BYTES) + varint_bytes(len(contents)) + contents


def with_fields(nodes: bytes, weights: Sequence[onnx.TensorProto] = ()) -> bytes:
    """Return a model around serialized fields of a graph, because creating so many messages is slow."""
    proto = model(helper.make_graph([], "g", [info("x", (2, 3))], [info("y", None)], list(weights)))
    graph_bytes = proto.graph.SerializeToString()
    return proto.SerializeToString().replace(tagged(7, graph_bytes), tagged(7, graph_bytes + nodes))


_DEEP = 1000


def _function(name: str, nodes: Iterable[onnx.NodeProto]) -> onnx.FunctionProto:
    return helper.make_function(
        "own", name, ["a"], ["b"], list(nodes), [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    )


def _own(name: str, source: str = "a", target: str = "b") -> onnx.NodeProto:
    return helper.make_node(name, [source], [target], domain="own")


def _calls_itself() -> Made:
    function = _function("F", [node("Relu", "a", "c"), _own("F", "c")])
    return model(graph([_own("F", "x", "y")]), [function]), X


def _call_each_other() -> Made:
    functions = [
        _function("F", [node("Relu", "a", "c"), _own("G", "c")]),
        _function("G", [node("Relu", "a", "c"), _own("F", "c")]),
    ]
    return model(graph([_own("F", "x", "y")]), functions), X


def _doubling_functions(depth: int = 40) -> Made:
    """Return functions that each call the next one twice."""
    functions = [
        _function(f"F{number}", [_own(f"F{number + 1}", "a", "c"), _own(f"F{number + 1}", "c")])
        for number in range(depth)
    ]
    functions.append(_function(f"F{depth}", [node("Relu", "a", "b")]))
    return model(graph([_own("F0", "x", "y")]), functions), X


def _deep_functions(depth: int = _DEEP) -> Made:
    functions = [_function(f"F{number}", [_own(f"F{number + 1}")]) for number in range(depth)]
    functions.append(_function(f"F{depth}", [node("Relu", "a", "b")]))
    return model(graph([_own("F0", "x", "y")]), functions), X


def _doubling_in_branches(depth: int = 40) -> Made:
    """Return functions that each call the next one twice, in a branch of an `If`."""
    functions = []
    for number in range(depth):
        branch = helper.make_graph(
            [_own(f"F{number + 1}", "a", "c"), _own(f"F{number + 1}", "c", "d")], "t", [], [info("d", None)]
        )
        condition = node("Constant", "", "k", value=weight("k", True, TensorProto.BOOL))
        chosen = helper.make_node("If", ["k"], ["b"], then_branch=branch, else_branch=branch)
        functions.append(_function(f"F{number}", [condition, chosen]))
    functions.append(_function(f"F{depth}", [node("Relu", "a", "b")]))
    return model(graph([_own("F0", "x", "y")]), functions), X


def _cycle() -> Made:
    return model(graph([node("Add", "x b", "a"), node("Relu", "a", "b"), node("Relu", "b")])), X


def _long_name() -> Made:
    name = "n" * 10_000_000
    named = helper.make_node("Relu", ["x"], [name], name=name)
    return model(graph([named, helper.make_node("Relu", [name], ["y"])])), X


def _long_name_often(uses: int = 200) -> Made:
    """Return a model with a name of 100 KB that many nodes read: 20 MB."""
    name = "n" * 100_000
    nodes = [helper.make_node("Relu", ["x"], [name])]
    nodes += [helper.make_node("Relu", [name], [f"y{number}"]) for number in range(uses - 1)]
    nodes += [helper.make_node("Relu", [name], ["y"])]
    return model(graph(nodes)), X


def _deep_branches(depth: int = _DEEP, known: bool = False) -> Made:
    """Return nested `If` nodes, serialized by hand, since copies of copies are slow."""
    data = _deep_attribute(depth, "known" if known else "c")
    inputs = [info("x", (2, 3)), info("c", (), TensorProto.BOOL)]
    weights = [weight("known", True, TensorProto.BOOL)]
    proto = model(helper.make_graph([], "g", inputs, [info("y", None)], weights))
    graph_bytes = proto.graph.SerializeToString()
    nested = proto.SerializeToString().replace(tagged(7, graph_bytes), tagged(7, graph_bytes + tagged(1, data)))
    return nested, {**X, "c": np.array(True)}


def _deep_attribute(depth: int, condition: str) -> bytes:
    """Return a serialized `If` with nested `If` nodes in its branches."""
    encoded = helper.make_node("Relu", ["x"], ["y"]).SerializeToString()
    flat = helper.make_graph([node("Relu", "x")], "e", [], [info("y", None)]).SerializeToString()
    output = tagged(12, info("y", None).SerializeToString())
    for _ in range(depth):
        inner = tagged(1, encoded) + tagged(2, b"t") + output
        attributes = [
            tagged(1, b"then_branch") + b"\xa0\x01\x05" + tagged(6, inner),
            tagged(1, b"else_branch") + b"\xa0\x01\x05" + tagged(6, flat),
        ]
        encoded = tagged(1, condition.encode()) + tagged(2, b"y") + tagged(4, b"If")
        encoded += b"".join(tagged(5, attribute) for attribute in attributes)
    return encoded


def _deep_types(depth: int = _DEEP) -> Made:
    """Return an input with a deeply nested sequence type."""
    encoded = helper.make_tensor_type_proto(TensorProto.FLOAT, (2, 3)).SerializeToString()
    for number in range(depth):
        encoded = tagged(4 if number % 2 else 9, tagged(1, encoded))
    info = tagged(1, b"s") + tagged(2, encoded)
    proto = model(graph([node("Relu", "x")]))
    graph_bytes = proto.graph.SerializeToString()
    return proto.SerializeToString().replace(tagged(7, graph_bytes), tagged(7, graph_bytes + tagged(11, info))), X


def _deep_loops(depth: int = 60) -> Made:
    """Return nested `Loop` nodes with 100 rounds each, a constant: 100 ** depth rounds."""
    body = [node("Relu", "x", "r")]
    for number in range(depth):
        inner = helper.make_graph(
            [*body, node("Identity", f"c{number}", f"d{number}"), node("Identity", f"v{number}", f"w{number}")],
            f"l{number}",
            [
                info(f"i{number}", (), TensorProto.INT64),
                info(f"c{number}", (), TensorProto.BOOL),
                info(f"v{number}", None),
            ],
            [info(f"d{number}", (), TensorProto.BOOL), info(f"w{number}", None)],
        )
        out = "y" if number == depth - 1 else f"o{number}"
        body = [helper.make_node("Loop", ["rounds", "go", "x"], [out], body=inner)]
    weights = [weight("rounds", 100), weight("go", True, TensorProto.BOOL)]
    return model(graph(body, weights=weights)), X


def _endless_loop() -> Made:
    """Return a `Loop` of 2 ** 62 rounds over constants, which folding must not run."""
    inner = helper.make_graph(
        [node("Identity", "c", "d"), node("Add", "v v", "w")],
        "l",
        [info("i", (), TensorProto.INT64), info("c", (), TensorProto.BOOL), info("v", None)],
        [info("d", (), TensorProto.BOOL), info("w", None)],
    )
    weights = [
        weight("rounds", 2**62),
        weight("go", True, TensorProto.BOOL),
        weight("one", [1.0], TensorProto.FLOAT),
    ]
    nodes = [
        helper.make_node("Loop", ["rounds", "go", "one"], ["s"], body=inner),
        node("Add", "x s"),
    ]
    return model(graph(nodes, weights=weights)), X


def _many_nodes(count: int = 1_000_000) -> Made:
    """Return a chain with two million names, serialized by hand, since creating the messages is slow."""
    nodes = b"".join(
        tagged(1, tagged(1, f"v{number}".encode()) + tagged(2, f"v{number + 1}".encode()) + tagged(4, b"Relu"))
        for number in range(count)
    )
    nodes += tagged(1, tagged(1, f"v{count}".encode()) + tagged(2, b"y") + tagged(4, b"Relu"))
    nodes = tagged(1, tagged(1, b"x") + tagged(2, b"v0") + tagged(4, b"Relu")) + nodes
    return with_fields(nodes), X


def _many_attributes(count: int = 1_000_000) -> Made:
    attributes = b"".join(
        tagged(5, tagged(1, f"a{number}".encode()) + b"\xa0\x01\x02\x18\x01") for number in range(count)
    )
    return with_fields(tagged(1, tagged(1, b"x") + tagged(2, b"y") + tagged(4, b"Relu") + attributes)), X


def _many_outputs(count: int = 200_000) -> Made:
    outs = b"".join(tagged(2, f"y{number}".encode()) for number in range(count))
    return with_fields(tagged(1, tagged(1, b"x") + tagged(2, b"y") + outs + tagged(4, b"Split"))), X


def _many_same_inputs(count: int = 1_000_000) -> Made:
    """Return a Concat of a million times x: 24 MB."""
    axis = tagged(5, tagged(1, b"axis") + b"\xa0\x01\x02\x18\x00")
    node = tagged(1, b"x") * count + tagged(2, b"y") + tagged(4, b"Concat") + axis
    return with_fields(tagged(1, node)), X


def _empty_fields(count: int = 60_000_000) -> Made:
    """Return 60 MB of empty nodes, which take many times their bytes as messages."""
    return with_fields(b"\x0a\x00" * (count // 2)), X


def _scanned(length: int = HUGE) -> Made:
    """Return a `Scan` over the axis of an expanded constant."""
    inner = helper.make_graph(
        [node("Identity", "e", "f"), node("Identity", "s", "t")],
        "b",
        [info("s", None), info("e", None)],
        [info("t", None), info("f", None)],
    )
    nodes = [
        node("Expand", "one n", "c"),
        helper.make_node("Scan", ["x", "c"], ["t", "z"], body=inner, num_scan_inputs=1),
        node("Relu", "t"),
    ]
    return model(graph(nodes, weights=[weight("one", [1.0], TensorProto.FLOAT), weight("n", [length])])), X


GRAPHS: Mapping[str, Callable[[Path], Made]] = {
    "a function that calls itself": lambda _: _calls_itself(),
    "two functions that call each other": lambda _: _call_each_other(),
    "functions that call the next one twice, 40 deep": lambda _: _doubling_functions(),
    "the same, 15 deep": lambda _: _doubling_functions(15),
    "the same in branches of If, 40 deep": lambda _: _doubling_in_branches(),
    "functions 1,000 deep": lambda _: _deep_functions(),
    "a cycle": lambda _: _cycle(),
    "names of 10 MB": lambda _: _long_name(),
    "a name of 100 KB, 200 times": lambda _: _long_name_often(),
    "If in If, 1,000 deep": lambda _: _deep_branches(),
    "If in If, 1,000 deep, known": lambda _: _deep_branches(known=True),
    "If in If, 18 deep, known": lambda _: _deep_branches(18, known=True),
    "sequences of optionals, 1,000 deep": lambda _: _deep_types(),
    "sequences of optionals, 30 deep": lambda _: _deep_types(30),
    "Loop in Loop, 15 deep, 100 rounds each": lambda _: _deep_loops(15),
    "a Loop of 2**62 rounds over constants": lambda _: _endless_loop(),
    "Scan over 2**40 elements": lambda _: _scanned(),
    "a million nodes": lambda _: _many_nodes(),
    "a million attributes": lambda _: _many_attributes(),
    "200,000 outputs": lambda _: _many_outputs(),
    "a million times the same input": lambda _: _many_same_inputs(),
    "30 million empty nodes": lambda _: _empty_fields(),
}


_PADS = [0, 0, HUGE, HUGE]


def _doubling_concat(depth: int = 38) -> Made:
    """Return nodes that each concatenate the one before with itself: 2 ** 38 times x."""
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
    """Return an input of 2 ** 31 elements, fed as a view of one element."""
    proto = model(graph([node("Shape", "x")], [info("x", (size,))], [info("y", None, TensorProto.INT64)]))
    return proto, {"x": np.broadcast_to(np.float32(1), (size,))}


def _product_of_dimensions() -> Made:
    """Return an input with ten dimensions of 2 ** 20."""
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
    """Return a weight with huge dimensions and no data."""
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
    """Return a model with a size that only the feed has."""
    inputs = [info("s", (1,), TensorProto.INT64)]
    nodes = [node(op_type, "s", "c"), node("ReduceSum", "c")]
    return model(graph(nodes, inputs)), {"s": np.array([HUGE], np.int64)}


def _expanding(op_type: str, weights: Sequence[onnx.TensorProto], inputs: str, **attributes: Any) -> Made:
    nodes = [node(op_type, inputs, "c", **attributes), node("ReduceSum", "c")]
    return model(graph(nodes, weights=weights)), X


def _expanding_constant(op_type: str, weights: Sequence[onnx.TensorProto], inputs: str, **attributes: Any) -> Made:
    unit = weight("one", [[1.0]], TensorProto.FLOAT)
    nodes = [node(op_type, inputs, "c", **attributes), node("ReduceSum", "c", "t"), node("Add", "x t")]
    return model(graph(nodes, weights=[unit, *weights])), X


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
    proto = model(graph(nodes, image, weights=[weight("scales", [1.0, 1.0, scale, scale], TensorProto.FLOAT)]))
    return proto, {"x": np.ones((1, 1, 2, 3), np.float32)}


def _convolution(**attributes: Any) -> Made:
    nodes = [node("Conv", "x w", **attributes)]
    proto = model(
        graph(nodes, [info("x", (1, 1, 8, 8))], weights=[weight("w", np.ones((1, 1, 3, 3)), TensorProto.FLOAT)])
    )
    return proto, {"x": np.ones((1, 1, 8, 8), np.float32)}


def _pooling(op_type: str, **attributes: Any) -> Made:
    proto = model(graph([node(op_type, "x", **attributes)], [info("x", (1, 1, 8, 8))]))
    return proto, {"x": np.ones((1, 1, 8, 8), np.float32)}


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
    proto = model(graph(nodes, [info("x", (1, 2, 3))], weights=weights))
    return proto, {"x": np.ones((1, 2, 3), np.float32)}


def _sparse(indices: Sequence[int], dims: Sequence[int], values: int = 2) -> Made:
    values_tensor = helper.make_tensor("w", TensorProto.FLOAT, (values,), [1.0] * values)
    where = weight("i", list(indices))
    sparse_graph = graph([node("Add", "x w")])
    sparse_graph.sparse_initializer.append(helper.make_sparse_tensor(values_tensor, where, dims))
    return model(sparse_graph), X


def _sparse_constant(indices: Sequence[int], dims: Sequence[int]) -> Made:
    values_tensor = helper.make_tensor("w", TensorProto.FLOAT, (2,), [1.0] * 2)
    tensor = helper.make_sparse_tensor(values_tensor, weight("i", list(indices)), dims)
    return model(graph([node("Constant", "", "w", sparse_value=tensor), node("Add", "x w")])), X


def _empty_dims(count: int = 30_000_000) -> Made:
    """Return an input of 30 million dimensions without a size: 60 MB."""
    shape = tagged(2, b"\x0a\x00" * count)
    info = tagged(1, b"s") + tagged(2, tagged(1, b"\x08\x01" + shape))
    proto = model(graph([node("Relu", "x")]))
    graph_bytes = proto.graph.SerializeToString()
    return proto.SerializeToString().replace(tagged(7, graph_bytes), tagged(7, graph_bytes + tagged(11, info))), X


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
