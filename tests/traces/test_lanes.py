"""Rows of a trace: events nest or follow each other, even across threads."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from nnadapter.traces import SESSION, Event, rows_of


def event(start, end, thread=1, lane="npu", name=""):
    return Event(lane, thread, "step", name or f"{thread}:{start}-{end}", start, end, {})


def shown(events):
    return {row.name: [each.name for each in row.events] for row in rows_of(events)}


def test_one_thread_has_one_row():
    assert shown([event(6, 9), event(0, 5), event(1, 2), event(2, 5)]) == {"npu": ["1:0-5", "1:1-2", "1:2-5", "1:6-9"]}


def test_threads_without_overlap_share_a_row():
    assert list(shown([event(0, 5), event(5, 9, 2), event(9, 10), event(10, 12, 3)])) == ["npu"]


def test_concurrent_threads_have_separate_rows():
    rows = shown([event(0, 5), event(1, 7, 2), event(6, 9), event(8, 12, 2)])
    assert rows == {"npu": ["1:0-5", "1:6-9"], "npu (2)": ["2:1-7", "2:8-12"]}


def test_lanes_are_in_order_of_use_after_session():
    lanes = [event(0, 1, lane=lane) for lane in ("gpu", "cpu", SESSION)]
    assert list(shown(lanes)) == [SESSION, "gpu", "cpu"]


def test_instant_is_in_the_row_of_its_thread():
    assert shown([event(0, 5), event(3, None), event(3, 4, 2), event(3, None, 2)]) == {
        "npu": ["1:0-5", "1:3-None"],
        "npu (2)": ["2:3-4", "2:3-None"],
    }


def test_overlap_within_clock_error_is_cut_off():
    (row,) = rows_of([event(0, 10_000), event(9_000, 11_000)])
    assert [each.end for each in row.events] == [10_000, 10_000]
    assert len(rows_of([event(0, 10_000), event(9_000, 12_001)])) == 2


@given(st.lists(st.tuples(st.integers(0, 40_000), st.integers(0, 9_000), st.integers(1, 3), st.sampled_from("ab"))))
def test_rows_have_every_event_and_events_nest(drawn):
    events = [event(start, start + taken, thread, lane) for start, taken, thread, lane in drawn]
    rows = rows_of(events)
    placed = [each for row in rows for each in row.events]
    assert Counter(each.name for each in placed) == Counter(each.name for each in events)
    for row in rows:
        around = []
        for each in row.events:
            while around and around[-1] <= each.start:
                around.pop()
            assert not around or each.last <= around[-1]
            around.append(each.last)
