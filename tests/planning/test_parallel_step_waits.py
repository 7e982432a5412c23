from __future__ import annotations

import pytest

from nnadapter.planning import HostWait, needs_of, waiting
from tests.planning.test_overlap import plan_of


@pytest.mark.parametrize(
    ("predecessors", "labels", "handed", "waits"),
    [
        ([{}, {}, {0, 1}], "abc", {0}, [("a", 0, 2)]),
        ([{}, {}, {0}, {1, 2}], "abac", {0, 2}, [("a", 2, 3)]),  # a thread preserves the order of its device
        ([{}, {}], "ab", {0}, [("a", 0, None)]),
    ],
)
def test_run_waits_for_values_read_on_another_device(predecessors, labels, handed, waits):
    plan = plan_of(predecessors, labels)
    result = waiting(plan, needs_of(plan, {}), frozenset(), frozenset(handed))
    assert result.threaded_segments == handed and not result.is_serial
    assert result.host_waits == tuple(
        HostWait(device=device, segment=last, waiting_segment=before) for device, last, before in waits
    )
