from __future__ import annotations

from types import SimpleNamespace

import onnx
import onnxruntime
import pytest

from nnadapter.drivers import SUPPORTED
from nnadapter.drivers.execution_providers import marked, read_assignment, without
from tests.models import HEAD, parse

CPU = "CPUExecutionProvider"


def assigned(model, provider=CPU, level=onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    session = onnxruntime.InferenceSession(marked(model).SerializeToString(), options, providers=[CPU])
    return read_assignment(session, provider)


SAME_NAMES = f"""{HEAD} g (float[2] x, bool c) => (float[2] y) {{
    [n] a = Relu(x)
    [n] b = Constant <value = float[2] {{1, 2}}> ()
    [n] z = If (c) <
        then_branch = g1 () => (float[2] t) {{ [n] t = Sin(a) }},
        else_branch = g2 () => (float[2] e) {{ [n] e = Add(a, b) }}
    >
    y = HardSwish(z)
}}"""


def test_nested_nodes_with_the_same_name_are_distinguished():
    assignment = assigned(parse(SAME_NAMES))
    assert assignment.provider_nodes >= {0, 2} and not assignment.cpu_nodes and not assignment.cpu_op_types_in_functions
    assert [assignment.verdict(position, CPU) for position in range(4)] == [SUPPORTED] * 4


def test_nodes_of_another_provider_are_refused_with_function_parts():
    assignment = assigned(parse(SAME_NAMES), "AcmeExecutionProvider")
    assert (
        assignment.cpu_nodes >= {0, 2}
        and not assignment.provider_nodes
        and set(assignment.cpu_op_types_in_functions) == {"HardSigmoid", "Mul"}
    )
    assert "takes no node: it supports none" in assignment.verdict(0, "Acme").detail
    assert "leaves parts of the node to ONNX Runtime's CPU: HardSigmoid, Mul" in assignment.verdict(3, "Acme").detail


@pytest.mark.parametrize("layout", ["nnadapter:0:0", "nnadapter:0:0_token_3", "nnadapter:0:0/MatMulAddFusion"])
def test_rewritten_nodes_keep_their_mark(layout):
    def part(provider, name, op_type):
        node = SimpleNamespace(name=name, op_type=op_type)
        return SimpleNamespace(ep_name=provider, get_nodes=lambda: [node])

    parts = [part("A", layout, "Conv"), part("A", "nnadapter:1:0", "Relu"), part(CPU, "", "Transpose")]
    assignment = read_assignment(SimpleNamespace(get_provider_graph_assignment_info=lambda: parts), "A")
    assert (assignment.provider_nodes, assignment.cpu_nodes, assignment.cpu_op_types_in_functions) == (
        {0, 1},
        frozenset(),
        (),
    )
    parts.append(part(CPU, "nnadapter:1:1", "Relu"))
    assignment = read_assignment(SimpleNamespace(get_provider_graph_assignment_info=lambda: parts), "A")
    assert (assignment.provider_nodes, assignment.cpu_nodes) == ({0}, {1})


def test_boundaries_of_a_model_without_some_nodes():
    text = f"{HEAD} g (float[2] x) => (float[2] y, float[2] b) {{ a = Relu(x) b = Sin(a) c = Cos(b) y = Add(c, a) }}"
    remaining = without(parse(text), {1})
    assert [value.name for value in remaining.graph.input] == ["x", "b"]
    assert [value.name for value in remaining.graph.output] == ["y", "a"]
    onnx.checker.check_model(remaining, full_check=True)
