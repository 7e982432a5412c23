"""What plans hold together, and which stay."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nnadapter.running.plan_memory import Holding, most_kept, total_bytes

HOLDINGS = st.builds(Holding, st.integers(0, 50), st.dictionaries(st.sampled_from("abc"), st.just(30)))


@given(st.lists(HOLDINGS, min_size=1, max_size=6), st.integers(0, 4), st.integers(0, 120))
def test_the_most_that_fit_stay(holdings, limit, limit_bytes):
    def fits(count):
        kept = holdings[-count:]
        freed_by_nobody = holdings[-1].shared_bytes
        shared = {key for holding in kept for key in holding.shared_bytes if key not in freed_by_nobody}
        return count <= limit and sum(each.own_bytes for each in kept) + 30 * len(shared) <= limit_bytes

    most = most_kept(holdings, limit, limit_bytes)
    assert most == max([1, *(count for count in range(1, len(holdings) + 1) if fits(count))])


def test_what_is_shared_is_counted_once():
    assert total_bytes([Holding(1, {"a": 10, "b": 20}), Holding(2, {"b": 20})]) == 33
