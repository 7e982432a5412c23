from __future__ import annotations

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from nnadapter.onnx import in_order, read_nodes
from tests.models import HEAD
from tests.partition.small_graphs import edges


def model_of(nodes):
    return helper.make_model(helper.make_graph(nodes, "g", [], []))


def is_ordered(model):
    """Compare all pairs: no node may read an output of itself or of a later node."""
    nodes = model.graph.node
    return not any(
        name in later.output for at, node in enumerate(nodes) for name in node.input if name for later in nodes[at:]
    )


@given(st.data())
def test_shuffled_nodes_are_sorted(data):
    nodes = [
        helper.make_node("Sum", ["x", "", *(f"v{before}" for before in sorted(reads))], [f"v{index}", ""])
        for index, reads in enumerate(data.draw(edges()))
    ]
    model = model_of(data.draw(st.permutations(nodes)))
    result = in_order(model)
    assert is_ordered(result)
    assert (result is model) == is_ordered(model)
    assert in_order(model, read_nodes(model)) == result
    assert {node.output[0] for node in result.graph.node} == {node.output[0] for node in nodes}


@pytest.mark.parametrize(
    "pairs", [[("a", "a")], [("b", "a"), ("a", "b")], [("x", "y"), ("b", "a"), ("a", "b"), ("y", "z")]]
)
def test_cycles_are_unchanged(pairs):
    model = model_of([helper.make_node("Neg", [read], [made]) for read, made in pairs])
    assert in_order(model) is model


def test_model_with_duplicate_outputs_is_unchanged():
    """No order makes the model valid, and errors must number nodes as the file does."""
    model = onnx.parser.parse_model(f"{HEAD} g (float[2] x) => (float[2] y) {{ a = Relu(x) y = Neg(a) a = Abs(x) }}")
    assert in_order(model) is model


def test_captured_values_come_before_the_branch():
    model = onnx.parser.parse_model(
        f"""{HEAD} g (bool c, float[2] x) => (float[2] y) {{
            y = If (c) <then_branch = t () => (float[2] p) {{ p = Neg(a) }}, else_branch = e () => (float[2] q)
                {{ q = Exp(x) }}>
            a = Relu(x)
        }}"""
    )
    assert [node.op_type for node in in_order(model).graph.node] == ["Relu", "If"]
