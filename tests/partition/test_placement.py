import pytest

from partition import SUPPORTED, GraphError, Reason, Unsupported, place_by_priority
from tests.partition.small_graphs import graph_of

NO = Unsupported(Reason.UNSUPPORTED_OPERATION, "not here")


def test_first_supporting_device_gets_the_atom():
    graph = graph_of([set(), {0}, {1}])
    verdicts = {"a": [NO, SUPPORTED, NO], "b": [SUPPORTED, SUPPORTED, NO], "c": [SUPPORTED] * 3}
    assert place_by_priority(graph, ["a", "b", "c"], verdicts) == ("b", "a", "c")
    assert place_by_priority(graph, ["c", "a"], verdicts) == ("c", "c", "c")


def test_unsupported_atoms_are_an_error():
    graph = graph_of([{0} - {0} for _ in range(8)])
    with pytest.raises(GraphError, match=r"'n1' \(Sum\), .* and 2 more"):
        place_by_priority(graph, ["a"], {"a": [SUPPORTED, *[NO] * 7]})


def test_missing_verdicts_are_an_error():
    with pytest.raises(GraphError, match="'a' has 0 verdicts for 1 atoms"):
        place_by_priority(graph_of([set()]), ["a"], {})
