import pytest
from hypothesis import given

from partition import SUPPORTED, Graph, GraphError, Node, Segment, cut, make_plan
from tests.partition.small_graphs import graph_of, grouped_graphs, long_graph
from tests.partition.test_segments import count_lines


def plan_of(graph, placement, segments=None):
    result = cut(graph, placement)
    devices = tuple(dict.fromkeys(placement))
    verdicts = {device: [SUPPORTED] * len(graph.atoms) for device in devices}
    return make_plan(graph, devices, verdicts, placement, segments or result.segments, exact=result.exact)


def node(name, reads, makes, captured=()):
    return Node(name, "Any", "", tuple(reads.split()), tuple(makes.split()), captured)


EXAMPLE = Graph(
    nodes=(
        node("n0", "x w", "a unused"),
        node("n1", "a y k", "b"),
        node("n2", "a w", "c d", captured=("x", "w2")),
        node("n3", "b c", "e"),
        node("n4", "e d", "f"),
    ),
    values={},
    constants=frozenset({"w", "w2", "k"}),
    inputs=("x", "y", "z"),
    outputs=("f", "a", "x", "k"),
)


def test_fields_of_every_step():
    plan = plan_of(EXAMPLE, "abaab")
    assert plan.switches == 3
    fields = [
        (step.device, step.nodes, step.inputs, step.constants, step.outputs, step.released) for step in plan.steps
    ]
    assert fields == [
        ("a", (0, 2), ("x",), ("w", "w2"), ("a", "c", "d"), ()),
        ("b", (1,), ("a", "y"), ("k",), ("b",), ("y",)),
        ("a", (3,), ("b", "c"), (), ("e",), ("b", "c")),
        ("b", (4,), ("e", "d"), (), ("f",), ("e", "d")),
    ]


@given(grouped_graphs())
def test_replaying_the_plan(case):
    """Sets of names represent memory: a step's inputs are present, and nothing is freed too early."""
    graph, placement = case
    plan = plan_of(graph, placement)
    alive = set(graph.inputs)
    for step in plan.steps:
        assert alive.issuperset(step.inputs)
        inside = alive | set(step.constants)
        for index in step.nodes:
            assert inside.issuperset(graph.nodes[index].reads)
            inside.update(graph.nodes[index].outputs)
        alive.update(step.outputs)
        alive.difference_update(step.released)
        assert inside.issuperset(step.outputs)
    unread = {name for name in graph.inputs if name not in graph.consumers}
    assert alive - unread == set(graph.outputs) - unread


def test_order_is_checked():
    with pytest.raises(GraphError, match="runs later"):
        plan_of(graph_of([set(), {0}]), "ab", [Segment("b", (1,)), Segment("a", (0,))])


def test_unknown_value():
    graph = Graph((node("n", "nowhere", "a"),), {}, frozenset(), (), ("a",))
    with pytest.raises(GraphError, match="'n' reads 'nowhere'"):
        plan_of(graph, "a")
    with pytest.raises(GraphError, match="output 'b'"):
        plan_of(Graph((), {}, frozenset(), (), ("b",)), ())


@pytest.mark.slow
def test_work_is_linear():
    def work(count):
        graph, placement = long_graph(count)
        return count_lines(lambda: plan_of(graph, placement))

    assert work(16_000) < 2.5 * work(8_000)
