"""Graphs without end, or with more in them than they need bytes: functions, nesting, counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks.hostile import HUGE, Made, X, graph, info, model, node, tagged, weight, with_fields

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
    """Each calls the next one twice."""
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
    """Each calls the next one twice, in a branch of an `If`."""
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
    """A name of 100 KB that many nodes read: 20 MB."""
    name = "n" * 100_000
    nodes = [helper.make_node("Relu", ["x"], [name])]
    nodes += [helper.make_node("Relu", [name], [f"y{number}"]) for number in range(uses - 1)]
    nodes += [helper.make_node("Relu", [name], ["y"])]
    return model(graph(nodes)), X


def _deep_branches(depth: int = _DEEP, known: bool = False) -> Made:
    """`If` in `If`: nested by hand, since copies of copies would take a while."""
    data = _deep_attribute(depth, "known" if known else "c")
    inputs = [info("x", (2, 3)), info("c", (), TensorProto.BOOL)]
    weights = [weight("known", True, TensorProto.BOOL)]
    whole = model(helper.make_graph([], "g", inputs, [info("y", None)], weights))
    own = whole.graph.SerializeToString()
    nested = whole.SerializeToString().replace(tagged(7, own), tagged(7, own + tagged(1, data)))
    return nested, {**X, "c": np.array(True)}


def _deep_attribute(depth: int, condition: str) -> bytes:
    """A serialized `If` whose branches hold one, and so on."""
    made = helper.make_node("Relu", ["x"], ["y"]).SerializeToString()
    flat = helper.make_graph([node("Relu", "x")], "e", [], [info("y", None)]).SerializeToString()
    output = tagged(12, info("y", None).SerializeToString())
    for _ in range(depth):
        inner = tagged(1, made) + tagged(2, b"t") + output
        attributes = [
            tagged(1, b"then_branch") + b"\xa0\x01\x05" + tagged(6, inner),
            tagged(1, b"else_branch") + b"\xa0\x01\x05" + tagged(6, flat),
        ]
        made = tagged(1, condition.encode()) + tagged(2, b"y") + tagged(4, b"If")
        made += b"".join(tagged(5, each) for each in attributes)
    return made


def _deep_types(depth: int = _DEEP) -> Made:
    """A sequence of sequences of..., as the type of an input."""
    held = helper.make_tensor_type_proto(TensorProto.FLOAT, (2, 3)).SerializeToString()
    for number in range(depth):
        held = tagged(4 if number % 2 else 9, tagged(1, held))
    info = tagged(1, b"s") + tagged(2, held)
    whole = model(graph([node("Relu", "x")]))
    own = whole.graph.SerializeToString()
    return whole.SerializeToString().replace(tagged(7, own), tagged(7, own + tagged(11, info))), X


def _deep_loops(depth: int = 60) -> Made:
    """`Loop` in `Loop`, each of 100 rounds: 100 ** 60 rounds, whose number of rounds is known."""
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
    """A `Loop` of 2 ** 62 rounds over constants, which folding must not run."""
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
    """A chain: two million names. Written by hand, as messages of it take a while."""
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
    """A Concat of a million times x: 24 MB."""
    axis = tagged(5, tagged(1, b"axis") + b"\xa0\x01\x02\x18\x00")
    node = tagged(1, b"x") * count + tagged(2, b"y") + tagged(4, b"Concat") + axis
    return with_fields(tagged(1, node)), X


def _empty_fields(count: int = 60_000_000) -> Made:
    """60 MB of empty nodes: each takes a message of many times its bytes."""
    return with_fields(b"\x0a\x00" * (count // 2)), X


def _scanned(length: int = HUGE) -> Made:
    """A `Scan` over an axis that a constant is expanded to."""
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
