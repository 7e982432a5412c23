"""How busy others keep the machine, by figures of a test; and what this machine says."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from nnadapter.process import processors
from nnadapter.process.processors import (
    Load,
    computes_for_this,
    computes_no_more,
    is_crowded,
    left_by_others,
    machine_name,
    own_seconds,
    seconds_of_process,
    usable,
)


@pytest.mark.parametrize(
    ("others", "processors", "may_use", "crowded"),
    [(0.0, 2, 2, False), (0.2, 2, 2, False), (1.0, 2, 2, True), (30.0, 64, 2, False), (63.0, 64, 2, True)],
)
def test_it_is_crowded_where_others_leave_less_than_may_be_used(others, processors, may_use, crowded):
    before, after = Load(passed=1.0, own=5.0, whole=100.0), Load(passed=3.0, own=7.5, whole=102.5 + 2 * others)
    assert is_crowded(before, after, processors, may_use) == crowded
    assert left_by_others(before, after, processors, may_use) == pytest.approx(min(processors - others, may_use))


def test_where_the_system_does_not_say_it_is_not_crowded():
    assert not is_crowded(Load(0.0, 0.0, None), Load(1.0, 0.0, None), 2, 2)
    assert not is_crowded(Load(1.0, 0.0, 0.0), Load(1.0, 0.0, 9.0), 2, 2)


def test_this_machine():
    first, second = Load(), Load()
    assert second.passed >= first.passed and second.own >= first.own
    assert 1 <= usable() <= (os.cpu_count() or 1) and machine_name()


_WORKS = "import time\nwhile time.process_time() < 0.2: pass\nprint(time.process_time(), flush=True)\ninput()"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not say it")
def test_the_processor_time_of_another_process():
    with subprocess.Popen([sys.executable, "-c", _WORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        before = own_seconds()
        computes_for_this(process.pid)
        used = float(process.stdout.readline())
        assert used == pytest.approx(seconds_of_process(process.pid), abs=0.05)
        assert own_seconds() - before >= used
        computes_no_more(process.pid)
        process.communicate(b"\n")
    assert seconds_of_process(process.pid) is None and own_seconds() - before >= used


def test_seconds_of_a_process_that_ends_as_they_are_read_count_once(monkeypatch):
    first, second = 1 << 30, (1 << 30) + 1
    told = {first: [2.0, 3.0], second: [5.0, None]}

    def seconds_of(process_id):
        seconds = told[process_id].pop(0)
        if told[process_id]:  # as another thread, or a finalizer, would say it meanwhile
            computes_no_more(process_id)
        return seconds

    before = processors._WORKERS.seconds()
    for process_id in (first, second):
        computes_for_this(process_id)
    monkeypatch.setattr(processors, "seconds_of_process", seconds_of)
    own_seconds()
    monkeypatch.undo()
    for _ in range(2):
        assert processors._WORKERS.seconds() - before == pytest.approx(3.0 + 5.0)
