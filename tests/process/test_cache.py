from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from nnadapter.process import Cache, cache_counts, counts_of, memoize


@given(limit=st.integers(1, 5), keys=st.lists(st.integers(0, 8)))
def test_most_recently_used_values_are_kept(limit, keys):
    cache = Cache("test of order", limit)
    recent = []
    for key in keys:
        assert cache.get_or_make(key, lambda key=key: -key - 1) == -key - 1
        recent = [*(other for other in recent if other != key), key][-limit:]
        assert cache.values() == tuple(-recent_key - 1 for recent_key in recent) and len(cache) == len(recent)


def test_uses_are_counted_by_name():
    first, second = Cache("test of counts", 1), Cache("test of counts", 1)
    assert first.get_or_make("a", lambda: 1) == first.get_or_make("a", lambda: 2) == 1
    second.get_or_make("b", lambda: 3)
    second.get_or_make("c", lambda: 4)
    counts = counts_of("test of counts")
    assert (counts.hits, counts.misses, counts.failures, counts.dropped) == (1, 3, 0, 1)
    assert counts in cache_counts() and counts is not next(count for count in cache_counts() if count == counts)
    second.clear()
    assert second.get("c") is None and not len(second)


def test_threads_get_one_value():
    cache, values, barrier = Cache("test of threads", 4), [], threading.Barrier(8)

    def use():
        barrier.wait()
        values.append(cache.get_or_make("key", object))

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, values))) == 1


@memoize(2)
def square(number):
    return number * number


def test_memoized_functions_are_counted_by_name():
    assert [square(number) for number in (1, 2, 1, 3, 2)] == [1, 4, 1, 9, 4]
    (counts,) = [count for count in cache_counts() if count.name.endswith("test_cache.square")]
    assert (counts.hits, counts.misses, counts.dropped) == (1, 4, 2)
