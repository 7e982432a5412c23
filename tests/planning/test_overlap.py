from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nnadapter.planning import HostWait, enqueued_of, needs_of, waiting
from partition import SUPPORTED, Segment, make_plan
from tests.partition.small_graphs import edges, graph_of


def plan_of(predecessors, labels):
    segments = [Segment(label, (at,)) for at, label in enumerate(labels)]
    verdicts = {label: [SUPPORTED] * len(labels) for label in dict.fromkeys(labels)}
    return make_plan(graph_of(predecessors), tuple(verdicts), verdicts, tuple(labels), segments, exact=False)


def overlap_of(plan, streaming, reads):
    return waiting(plan, needs_of(plan, reads), enqueued_of(plan, streaming), frozenset())


def test_consecutive_steps_are_enqueued_and_awaited_once():
    overlap = overlap_of(plan_of([{}, {0}, {1}, {2}], "aaaa"), {"a"}, {})
    assert overlap.enqueued_segments == {0, 1, 2, 3}
    assert overlap.host_waits == (HostWait(device="a", segment=3, waiting_segment=None),)


def test_step_on_another_device_waits_for_its_inputs():
    """Segment 1 continues while segment 2 runs, and completes before segment 3."""
    overlap = overlap_of(plan_of([{}, {0}, {0}, {1, 2}], "aacc"), {"a"}, {})
    assert overlap.enqueued_segments == {0, 1}
    assert overlap.host_waits == (
        HostWait(device="a", segment=0, waiting_segment=2),
        HostWait(device="a", segment=1, waiting_segment=3),
    )
    assert overlap.awaited == {2: (0,), 3: (1,)}


def test_waits_are_not_repeated():
    overlap = overlap_of(plan_of([{}, {0}, {1}, {0}], "aacc"), {"a"}, {})
    assert overlap.host_waits == (HostWait(device="a", segment=1, waiting_segment=2),)


def test_step_between_steps_of_other_devices_is_not_enqueued():
    assert not overlap_of(plan_of([{}, {0}, {0, 1}], "aca"), {"a"}, {}).enqueued_segments


def test_nothing_is_enqueued_on_devices_without_streams():
    assert not overlap_of(plan_of([{}, {0}, {1}], "aaa"), set(), {}).enqueued_segments


def test_host_synchronizes_two_devices_with_streams():
    overlap = overlap_of(plan_of([{}, {0}, {1}, {2}], "aabb"), {"a", "b"}, {})
    assert overlap.enqueued_segments == {0, 1, 2, 3}
    assert overlap.host_waits == (
        HostWait(device="a", segment=1, waiting_segment=2),
        HostWait(device="b", segment=3, waiting_segment=None),
    )


def test_additional_reads_of_a_program_are_awaited():
    overlap = overlap_of(plan_of([{}, {0}, {}], "aac"), {"a"}, {2: ("v1",)})
    assert overlap.host_waits == (HostWait(device="a", segment=1, waiting_segment=2),)


@given(edges(), st.data())
def test_values_are_read_only_after_completion(predecessors, data):
    """A step's inputs have been awaited or precede it in its own stream; at the end all steps are done."""
    count = len(predecessors)
    labels = data.draw(st.lists(st.sampled_from("abc"), min_size=count, max_size=count))
    plan = plan_of(predecessors, labels)
    overlap = overlap_of(plan, {"a", "b"}, {})
    waits = list(overlap.host_waits)
    assert [wait.waiting_segment for wait in waits] == sorted(
        (wait.waiting_segment for wait in waits), key=lambda at: count if at is None else at
    )
    done: dict[str, int] = {}
    for step in [*plan.steps, None]:
        while waits and waits[0].waiting_segment == (None if step is None else step.segment):
            wait = waits.pop(0)
            assert wait.segment in overlap.enqueued_segments and wait.segment > done.get(wait.device, -1)
            done[wait.device] = wait.segment
        read = range(count) if step is None else predecessors[step.segment]
        for before in set(read) & overlap.enqueued_segments:
            behind = step is not None and step.segment in overlap.enqueued_segments and labels[before] == step.device
            assert behind or done.get(labels[before], -1) >= before
