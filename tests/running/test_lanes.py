"""Lanes for parallel steps: no step continues or starts after its run has ended."""

from __future__ import annotations

import threading

from nnadapter.engine import Lane, StepRun


def step(done, go=None):
    def run():
        if go is not None:
            done.append("begun")
            assert go.wait(10)
        done.append("done")
        return StepRun(0, "null", 0.0)

    return run


def test_unsubmitted_step_is_not_awaited():
    """An interrupt between the two causes this."""
    lane, done = Lane("null"), []
    job = lane.job(step(done))
    waiting = threading.Thread(target=job.wait_out, daemon=True)
    waiting.start()
    waiting.join(10)
    assert not waiting.is_alive()
    lane.submit(job)
    lane.close()
    assert done == []


def test_started_step_is_awaited():
    lane, done, go = Lane("null"), [], threading.Event()
    job = lane.job(step(done, go))
    lane.submit(job)
    while not done:
        pass
    threading.Timer(0.05, go.set).start()
    job.wait_out()
    assert done == ["begun", "done"]
    lane.close()
