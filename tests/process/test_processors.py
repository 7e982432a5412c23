from __future__ import annotations

import os
import platform
import subprocess
import sys
import time

import pytest

from nnadapter.process import (
    Load,
    computes_for_this,
    computes_no_more,
    is_crowded,
    machine_name,
    own_seconds,
    processors,
    processors_unused_by_others,
    seconds_of_process,
    usable,
)


@pytest.mark.parametrize(
    ("others_use", "processors", "may_use", "crowded"),
    [(0.0, 2, 2, False), (0.2, 2, 2, False), (1.0, 2, 2, True), (30.0, 64, 2, False), (63.0, 64, 2, True)],
)
def test_crowded_if_other_processes_leave_less_than_allowed(others_use, processors, may_use, crowded):
    start, end = (
        Load(wall_seconds=1.0, own_seconds=5.0, total_seconds=100.0),
        Load(wall_seconds=3.0, own_seconds=7.5, total_seconds=102.5 + 2 * others_use),
    )
    assert is_crowded(start, end, processors, may_use) == crowded
    assert processors_unused_by_others(start, end, processors, may_use) == pytest.approx(
        min(processors - others_use, may_use)
    )


def test_not_crowded_without_system_figures():
    for start, end in ((None, None), (None, 9.0), (9.0, None)):
        assert not is_crowded(Load(0.0, 0.0, start), Load(1.0, 0.0, end), 2, 2)
    assert not is_crowded(Load(1.0, 0.0, 0.0), Load(1.0, 0.0, 9.0), 2, 2)


def test_figures_of_this_machine_are_plausible():
    first, second = Load(), Load()
    assert second.wall_seconds >= first.wall_seconds and second.own_seconds >= first.own_seconds
    assert 1 <= usable() <= (os.cpu_count() or 1) and machine_name()


def test_busy_time_excludes_idle_and_guest_columns(tmp_path, monkeypatch):
    """The kernel counts guest time as user time, too."""
    file = tmp_path / "stat"
    file.write_text("cpu  1000 200 30 400000 50000 6 7 8 900 90\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
    monkeypatch.setattr(processors, "_STAT", file)
    assert Load().total_seconds == (1000 + 200 + 30 + 6 + 7 + 8) / os.sysconf("SC_CLK_TCK")


def test_machine_is_identified_by_its_processor(tmp_path, monkeypatch):
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nvendor_id\t: Acme\nmodel name\t: Acme 9000: fast\nprocessor\t: 1\n")
    monkeypatch.setattr(processors, "_CPUINFO", file)
    assert machine_name.__wrapped__() == f"{platform.machine()} Acme 9000: fast"


_WORKS = "import time\nwhile time.process_time() < 0.2: pass\nprint(time.process_time(), flush=True)\ninput()"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not say it")
def test_the_processor_time_of_another_process():
    with subprocess.Popen([sys.executable, "-c", _WORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        initial = own_seconds()
        computes_for_this(process.pid)
        used_seconds = float(process.stdout.readline())
        assert used_seconds == pytest.approx(seconds_of_process(process.pid), abs=0.05)
        assert own_seconds() - initial >= used_seconds
        computes_no_more(process.pid)
        process.communicate(b"\n")
    assert seconds_of_process(process.pid) is None and own_seconds() - initial >= used_seconds


def test_seconds_of_an_ending_process_count_once(monkeypatch):
    first, second = 1 << 30, (1 << 30) + 1
    answers = {first: [2.0, 3.0], second: [5.0, None]}

    def seconds_of(process_id):
        # Devices of other tests may end meanwhile.
        seconds = answers[process_id].pop(0) if process_id in answers else None
        if answers.get(process_id):  # simulates another thread or a finalizer
            computes_no_more(process_id)
        return seconds

    monkeypatch.setattr(processors, "_WORKERS", processors._Workers())
    for process_id in (first, second):
        computes_for_this(process_id)
    monkeypatch.setattr(processors, "seconds_of_process", seconds_of)
    own_seconds()
    for _ in range(2):
        assert processors._WORKERS.seconds() == 3.0 + 5.0


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not say it")
def test_seconds_after_a_worker_is_released_do_not_count():
    computes_for_this(os.getpid())
    computes_no_more(os.getpid())
    seconds_of_others = own_seconds() - time.process_time()
    until = time.process_time() + 0.05
    while time.process_time() < until:
        pass
    assert own_seconds() - time.process_time() == pytest.approx(seconds_of_others, abs=0.02)
