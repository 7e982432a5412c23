"""Nodes that gain nothing on a device, which are dropped and tried again later."""

from __future__ import annotations

from nnadapter.torch.resident_runs import Trials


def calls_with_trial(trials, calls, gains):
    """Return the calls that try all nodes."""
    tried = []
    for call in range(calls):
        trials.begin()
        if 0 in trials.staying and "x" not in trials.passing:
            tried.append(call)
        if not gains(call):
            trials.leave_out([0], ["x"])
        else:
            trials.leave_out([], [])
    return tried


def test_trials_without_gain_back_off_exponentially():
    assert calls_with_trial(Trials([0, 1]), 32, lambda call: False) == [0, 2, 6, 14, 30]


def test_node_that_gains_again_stays():
    assert calls_with_trial(Trials([0]), 8, lambda call: call != 3) == [0, 1, 2, 3, 5, 6, 7]


def test_crowded_device_keeps_nothing_until_the_next_trial():
    trials = Trials([0, 1])
    trials.begin()
    trials.crowd()
    assert trials.is_crowded and not trials.staying
    for _ in range(2):
        trials.begin()
    assert not trials.is_crowded and trials.staying == {0, 1}


def test_unused_nodes_are_not_tried():
    trials = Trials([0, 1])
    trials.never(0)
    trials.begin()
    assert trials.staying == {1}
