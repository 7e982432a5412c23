from __future__ import annotations

import onnx
import pytest
from onnx import helper

from benchmarks.models.hostile_models import graph, model
from nnadapter import limits
from nnadapter.errors import InvalidModelError
from nnadapter.onnx import check_calls, check_calls_in


def _calls(bodies, called="F0"):
    """Return a model whose functions call each other by name; Relu is an operator."""
    functions = []
    for name, ops in bodies.items():
        values = ["a", *(f"c{number}" for number in range(len(ops) - 1)), "b"]
        nodes = [
            helper.make_node(op, [values[number]], [values[number + 1]], domain="" if op == "Relu" else "own")
            for number, op in enumerate(ops)
        ]
        imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
        functions.append(helper.make_function("own", name, ["a"], ["b"], nodes, imports))
    return model(graph([helper.make_node(called, ["x"], ["y"], domain="own")]), functions)


def _chain(depth, times):
    return _calls({f"F{n}": [f"F{n + 1}"] * times for n in range(depth)} | {f"F{depth}": ["Relu"]})


@pytest.mark.parametrize("depth", [40, 1000])
def test_functions_with_exponential_expansion_are_refused(depth):
    with pytest.raises(
        InvalidModelError, match=r"expand to more than a billion nodes, expected at most .* in the model"
    ):
        check_calls(_chain(depth, 2))


@pytest.mark.parametrize(
    ("bodies", "name"),
    [
        ({"F0": ["Relu", "F0"]}, "F0"),
        ({"F0": ["F1"], "F1": ["Relu", "F2"], "F2": ["F1", "Relu"]}, "F1"),
        ({"F0": ["Relu"], "F1": ["F1"]}, "F1"),
    ],
)
def test_recursive_functions_are_refused(bodies, name):
    with pytest.raises(InvalidModelError, match=f"function '{name}' of domain 'own' calls itself"):
        check_calls(_calls(bodies))


@pytest.mark.parametrize(
    "bodies",
    [
        {"F0": ["F1", "F2"], "F1": ["F3", "Relu"], "F2": ["F1", "F3"], "F3": ["Relu"]},  # a diamond has no cycle
        {"F0": ["F1"] * 64, "F1": ["Relu"] * 64},
        {"F0": ["Relu"] * 20_000},
    ],
)
def test_ordinary_functions(bodies):
    check_calls(_calls(bodies))


def test_functions_up_to_the_limit_are_accepted(tmp_path):
    depth = limits.EXPANDED_NODES.bit_length() - 1
    check_calls(_chain(depth, 2))
    path = tmp_path / "model.onnx"
    onnx.save(_chain(depth + 1, 2), path)
    for source in (path, path.read_bytes()):
        with pytest.raises(InvalidModelError, match="expand to 16,384 nodes, expected at most 8,192 for 30 in"):
            check_calls_in(source)
