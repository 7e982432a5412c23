"""Forks while other threads hold locks: the child must not wait for threads it lacks."""

from __future__ import annotations

import ast
import os
import signal
import threading
import warnings
from functools import cached_property
from pathlib import Path

import numpy as np
import pytest

import nnadapter as nna
from nnadapter.drivers.registry import device_lock
from nnadapter.planning import Setting
from nnadapter.process import new_lock, new_re_lock, resources
from tests.models import HEAD, parse

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
X = np.asarray([-1, 2, 3], np.float32)
SIGNALS = {
    "drivers/fake_npu/streams.py": "a place in a stream's work",
    "session/streams.py": "an input on its way",
    "engine/control.py": "a run that is followed, there is something to watch over, or whose turn it is",
    "engine/concurrent_steps.py": "a step that is run elsewhere",
    "engine/tracing.py": "all is noted",
}
"""Locks that only signal events; no other thread holds them."""
OTHER_LOCKS = {
    "drivers/isolation/child_process.py": "parts by itself",
    "drivers/isolation/isolated_device.py": "parts by itself",
    "drivers/isolation/worker.py": "in the process of a device, which forks nobody",
    "cli/parameters.py": "in a command, which forks nobody",
    "process/resources.py": "makes them",
}


def status_of(work):
    """Return the exit code of a forked process that has ten seconds for `work`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about forks in threaded processes
        process = os.fork()
    if not process:
        code = 1
        try:
            signal.alarm(10)
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


@pytest.fixture
def held_elsewhere():
    """Yield a function that locks a lock in another thread until the test ends."""
    over, threads = threading.Event(), []

    def hold(lock):
        locked = threading.Event()

        def work():
            with lock:
                locked.set()
                over.wait()

        threads.append(threading.Thread(target=work))
        threads[-1].start()
        locked.wait()

    yield hold
    over.set()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("make", [new_lock, new_re_lock])
def test_locks_of_other_threads_are_free_in_a_forked_process(make, held_elsewhere):
    lock = make()
    held_elsewhere(lock)
    assert not lock.acquire(blocking=False)
    assert status_of(lock.acquire) == 0
    assert not lock.acquire(blocking=False)


@pytest.mark.skipif(not hasattr(cached_property(str), "lock"), reason="properties have locks before Python 3.12 only")
def test_locks_of_properties_are_free_too(held_elsewhere):
    properties = [member for member in vars(Setting).values() if isinstance(member, cached_property)]
    resources._find_locks_of_properties()
    locks = resources._of_properties
    assert properties and all(member.lock in locks for member in properties)
    held_elsewhere(locks[0])
    assert status_of(locks[0].acquire) == 0


def test_forked_session_runs_despite_a_held_device_lock(held_elsewhere):
    relu = parse(f"{HEAD} g (float[3] x) => (float[3] y) {{ y = Relu(x) }}")
    with nna.InferenceSession(relu, devices="fake_npu") as session:
        session.submit(None, {"x": X}).result()
        held_elsewhere(device_lock("fake_npu"))

        def work():
            for results in (session.run(None, {"x": X}), session.submit(None, {"x": X}).result(5)):
                np.testing.assert_array_equal(results[0], np.maximum(X, 0))

        assert status_of(work) == 0


def test_a_session_plans_while_another_thread_does(held_elsewhere):
    relu = parse(f"{HEAD} g (float[n] x) => (float[n] y) {{ y = Relu(x) }}")
    with nna.InferenceSession(relu, devices="fake_npu") as session:
        held_elsewhere(session._engine.source._own.planner._lock)
        assert status_of(lambda: session.run(None, {"x": X})) == 0


def test_a_deadline_holds_in_a_forked_process():
    slow = '[[fault]]\nkind = "slow"\nphase = "run"\nfrom = 2\nseconds = 0.2\n'
    relu = parse(f"{HEAD} g (float[3] x) => (float[3] y) {{ y = Relu(x) }}")
    devices, options = ("faulty:fake_npu", {"script": slow}), nna.Options(deadline_s=0.05)
    with nna.InferenceSession(relu, devices=devices, options=options) as session:
        session.run(None, {"x": X})

        def work():
            with pytest.raises(nna.errors.DeadlineExceededError):
                session.run(None, {"x": X})

        assert status_of(work) == 0


@pytest.mark.slow
def test_locks_are_created_by_new_lock():
    folder = Path(nna.__file__).parent
    for path in folder.rglob("*.py"):
        name, source = path.relative_to(folder).as_posix(), path.read_text()
        if "Lock" not in source:
            continue
        calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
        lines = [
            node.lineno
            for node in calls
            # including default_factory
            for maker in (node.func, *node.args, *(keyword.value for keyword in node.keywords))
            if ast.unparse(maker).split(".")[-1] in ("Lock", "RLock")
        ]
        assert not lines or name in SIGNALS or name in OTHER_LOCKS, (
            f"{name}, lines {lines}: use process.forking.new_lock"
        )


def test_forked_process_can_close_a_session():
    """ONNX Runtime would wait for threads that do not exist in the child."""
    model = parse(f"{HEAD} g (float[3] x) => (float[3] y) {{ a = Exp(x) y = Sin(a) }}")
    session = nna.InferenceSession(model, devices=[("fake_npu", {"switched_off": ["SIN"]})])
    expected = session.run(None, {"x": X})[0]
    assert [step.device for step in session.provenance.steps] == ["fake_npu", "cpu"]

    def work():
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], expected)
        session.close()

    assert status_of(work) == 0
