from hypothesis import given
from hypothesis import strategies as st

from nnadapter.ir.builder import flattened

NESTED = st.recursive(st.sampled_from("abcd"), lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=12)


def names(part):
    return [part] if isinstance(part, str) else [name for each in part for name in names(each)]


@given(st.lists(NESTED, max_size=4).map(tuple))
def test_names_are_unique_and_in_order(origins):
    assert flattened(origins) == tuple(dict.fromkeys(names(origins)))


def test_repeatedly_merged_origins_are_visited_once():
    origins = ("a", "b")
    for _ in range(100):
        origins = (origins, origins)
    assert flattened(origins) == ("a", "b")
