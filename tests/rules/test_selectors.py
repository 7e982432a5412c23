from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nnadapter as nna
from nnadapter import Rules
from nnadapter.rules import apply_rules
from partition import SUPPORTED, Graph, Node
from tests.partition.small_graphs import edges, graph_of

NODES = (
    Node("/a/erf", "Erf", "", ("x",), ("a",), origins=("/a",)),
    Node("/a/add", "Add", "", ("a", "x"), ("b",), origins=("/a",)),
    Node("/b[0]", "Erf", "com.acme", ("b",), ("c",)),
    Node("/c/erf", "Neg", "", ("c",), ("d",)),
    Node("/If", "If", "", ("p",), ("e",), captured=("b",)),
)
GRAPH = Graph(NODES, {}, frozenset(("p",)), ("x",), ("d", "e"))


def applied(graph, rule):
    """Apply a rule to a graph that two devices support entirely."""
    rules = Rules(pins=(rule,)) if isinstance(rule, nna.Pin) else Rules(bans=(rule,))
    nodes, devices = range(len(graph.nodes)), ("npu", "cpu")
    return apply_rules(rules, graph, graph, nodes, devices, {name: [SUPPORTED for _ in nodes] for name in devices})


def selected(graph, **selectors):
    return set(applied(graph, nna.Pin(device="cpu", **selectors)).pinned)


def chosen(**selectors):
    return [NODES[position].name for position in sorted(selected(GRAPH, **selectors))]


def why_nothing(graph, **selectors):
    (effect,) = applied(graph, nna.Ban(device="cpu", **selectors)).effects
    assert effect.nodes == 0
    return effect.note


@pytest.mark.parametrize(
    ("selectors", "expected"),
    [
        ({"op_type": "Erf"}, ["/a/erf", "/b[0]"]),
        ({"op_type": "ai.onnx::Erf"}, ["/a/erf"]),
        ({"op_type": "com.acme::Erf"}, ["/b[0]"]),
        ({"name": "/a/*"}, ["/a/erf", "/a/add"]),
        ({"name": "/a"}, ["/a/erf", "/a/add"]),
        ({"name": "*erf"}, ["/a/erf", "/c/erf"]),
        ({"name": "/?/erf"}, ["/a/erf", "/c/erf"]),
        ({"name": "/[bc]*"}, ["/b[0]", "/c/erf"]),
        ({"name": "/b[0]"}, ["/b[0]"]),
        ({"name": "*erf", "op_type": "Erf"}, ["/a/erf"]),
        ({"from_": "x", "to": "b"}, ["/a/erf", "/a/add"]),
        ({"from_": "a", "to": "d"}, ["/a/add", "/b[0]", "/c/erf"]),
        ({"from_": "a", "to": ["e", "c"]}, ["/a/add", "/b[0]", "/If"]),
        ({"from_": ["p", "c"], "to": ["d", "e"]}, ["/c/erf", "/If"]),
        ({"from_": "x", "to": "c", "op_type": "Erf", "name": "/a/*"}, ["/a/erf"]),
        ({"from_": "d", "to": "a"}, []),
        ({"from_": "x", "to": "x"}, []),
    ],
)
def test_selectors(selectors, expected):
    assert chosen(**selectors) == expected


@pytest.mark.parametrize(
    ("selectors", "message"),
    [
        ({"op_type": "Erff"}, "the model has no op type 'Erff'; did you mean 'Erf'?"),
        ({"op_type": "org::Erf"}, "the model has no op type 'org::Erf'; known: none"),
        ({"name": "/d/*"}, "no node's name matches '/d/*'"),
        (
            {"name": "/If/*"},
            "no node's name matches '/If/*'; '/If' runs as a whole, so its branches have no separate nodes",
        ),
        ({"from_": "x", "to": "q"}, "the model has no tensor 'q'"),
        ({"from_": "d", "to": "a"}, "no path leads from one end of the region to the other"),
        ({"op_type": "Neg", "name": "/a/*"}, "no node matches all criteria of the rule"),
    ],
)
def test_empty_selection_has_a_reason(selectors, message):
    assert chosen(**selectors) == []
    assert why_nothing(GRAPH, **selectors) == message


def test_chosen_branch_is_not_an_if():
    graph = Graph(NODES[:1], {}, frozenset(), ("x",), ("a",))
    told = why_nothing(graph, op_type="If")
    assert told == (
        "the model has no op type 'If'; known: Erf; rules find nodes of a chosen branch by the name of their 'If'"
    )


def on_paths(graph, first, last):
    """Return the nodes of every path, enumerated one by one."""
    result = set()

    def walk(trail):
        if f"v{trail[-1]}" in last:
            result.update(trail)
        for reader in graph.consumers.get(f"v{trail[-1]}", ()):
            walk((*trail, reader))

    for name in first:
        for reader in graph.consumers.get(name, ()):
            walk((reader,))
    return result


@given(edges(8), st.data())
def test_regions_are_the_nodes_of_all_paths(predecessors, data):
    graph = graph_of(predecessors)
    tensors = st.lists(st.sampled_from(["x", *graph.producer]), min_size=1, max_size=3)
    first, last = data.draw(tensors), data.draw(tensors)
    assert selected(graph, from_=first, to=last) == on_paths(graph, first, last)


@given(st.lists(st.text("ab/[]*?.", min_size=1, max_size=4), max_size=5, unique=True), st.text("ab/[]*?", min_size=1))
def test_patterns_match_as_in_the_shell_except_exact_names(names, pattern):
    nodes = tuple(Node(name, "Neg", "", (), (f"v{index}",)) for index, name in enumerate(names))
    graph = Graph(nodes, {}, frozenset(), (), ())
    expected = [pattern] if pattern in names else [name for name in names if fnmatchcase(name, pattern)]
    result = selected(graph, name=pattern)
    assert sorted(names[position] for position in result) == sorted(expected)
