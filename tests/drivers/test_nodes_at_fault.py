"""Search for the nodes that make a loader refuse a model."""

from __future__ import annotations

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnadapter.drivers import Reason, Unsupported
from nnadapter.drivers.onnxruntime import refused_nodes
from nnadapter.drivers.refused_nodes import find_culprits

HEAD = '<ir_version: 10, opset_import: ["" : 17]>'
REFUSAL = Unsupported(Reason.DEVICE_REFUSED, "it does not like it")
OPS = ["Relu", "Neg", "Exp", "Sin", "Cos", "Tanh", "Abs", "Sqrt"]


def chain(op_types):
    nodes = "".join(f"v{index + 1} = {op_type}(v{index})\n" for index, op_type in enumerate(op_types))
    return onnx.parser.parse_model(f"{HEAD} g (float[2] v0) => (float[2] v{len(op_types)}) {{ {nodes} }}")


@given(op_types=st.lists(st.sampled_from(OPS), min_size=1, max_size=30), disliked=st.sets(st.sampled_from(OPS)))
def test_exactly_the_culprits_are_found(op_types, disliked):
    def attempt(part):
        return REFUSAL if any(node.op_type in disliked for node in part.graph.node) else None

    expected = {index: REFUSAL for index, op_type in enumerate(op_types) if op_type in disliked}
    assert find_culprits(chain(op_types), attempt) == expected


def test_one_culprit_among_many_takes_few_tries():
    tries = []

    def attempt(part):
        tries.append(len(part.graph.node))
        return REFUSAL if any(node.attribute and node.attribute[0].f == 7 for node in part.graph.node) else None

    nodes = "".join(f"v{index + 1} = Elu<alpha = {float(index)}>(v{index})\n" for index in range(64))
    model = onnx.parser.parse_model(f"{HEAD} g (float[2] v0) => (float[2] v64) {{ {nodes} }}")
    assert list(find_culprits(model, attempt)) == [7]
    assert len(tries) <= 13


@pytest.mark.parametrize(
    ("text", "positions"),
    [
        ("(float[2] i, float[2] j) => (float[2] k) { k = Max(i, j) }", []),
        ("(int16[2] i, int16[2] j) => (int16[2] k) { h = Neg(i) m = Max(h, j) k = Max(m, j) }", [1, 2]),
        ("(float[2] x) => (float[2] y) { y = Relu<wrong = 1>(x) }", []),
        ("(float[2] x) => (float[2] y) { y = Nonsense(x) }", []),
        (
            """(bool c, int16[2] i) => (int16[2] k) {
                k = If(c) <then_branch = t () => (int16[2] p) { p = Max(i, i) },
                           else_branch = e () => (int16[2] q) { q = Identity(i) }>
            }""",
            [0],
        ),
    ],
)
def test_nodes_that_onnxruntime_refuses(text, positions):
    refused = refused_nodes(onnx.parser.parse_model(f"{HEAD} g {text}"))
    assert list(refused) == positions
    assert all(
        refusal.reason is Reason.UNSUPPORTED_OPERATION and "Max" in refusal.detail for refusal in refused.values()
    )
