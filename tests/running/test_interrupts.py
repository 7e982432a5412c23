"""Ctrl-C at any moment of planning, compiling and running, the first use included: state stays consistent."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_RUNS = """
import gc, random, signal, sys, threading, time
import numpy as np, onnx.parser
import nnadapter as nna
from nnadapter.drivers.onnxruntime.program import pools_held

model = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["" : 17]>
    g (float[n, 4] x) => (float[n, 4] y) { a = Relu(x) b = Erf(a) y = Add(a, b) }''')
DEVICES = [("fake_npu", {"switched_off": ("ERF",)}), "cpu"]
LOCKS = (type(threading.Lock()), type(threading.RLock()))
kept = nna.InferenceSession(model, devices=DEVICES, options={"max_plans": 2})


def feed(rows):
    return {"x": np.ones((rows, 4), np.float32)}


def work():
    kept.run(None, feed(2))
    with nna.InferenceSession(model, devices=DEVICES, options={"max_plans": 2}) as session:
        for rows in (2, 2, 3, 4):
            session.run(None, feed(rows))
    for rows in (2, 3, 4):
        kept.run(None, feed(rows))


def interrupt(*_):
    global armed
    if armed:
        armed = False
        raise KeyboardInterrupt


def locked():
    '''All locks of the process that a thread could not take now.'''
    locks = {id(each): each for holder in gc.get_objects() for each in gc.get_referents(holder)
             if isinstance(each, LOCKS)}
    found = set()

    def try_all():
        for key, lock in locks.items():
            if lock.acquire(blocking=False):
                lock.release()
            else:
                found.add(key)

    thread = threading.Thread(target=try_all)
    thread.start()
    thread.join()
    return len(found)


def pools(session):
    return [bound.pool for lease in session._engine.source.plans._leases.values() for bound in lease.plan.plan.steps]


def check(permits, taken):
    gc.collect()
    assert pools_held() <= permits, "a permit is lost"
    assert locked() <= taken, "a lock is held"
    kept.run(None, feed(2))
    assert not any(pool._executions.users for pool in pools(kept)), "an execution was not given back"


armed = False
work(), work()
started = time.perf_counter()
work()
seconds = time.perf_counter() - started
gc.collect()
permits, taken = pools_held() + 1, locked()
signal.signal(signal.SIGALRM, interrupt)
moment, interrupts = random.Random(int(sys.argv[1])), 0
while interrupts < int(sys.argv[2]):
    try:
        armed = True
        signal.setitimer(signal.ITIMER_REAL, moment.uniform(1e-5, seconds))
        while armed:
            work()
    except KeyboardInterrupt:
        interrupts += 1
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
    assert gc.isenabled(), "the collector is off"
    assert not kept._engine.source.plans.users, "a plan seems in use"
    if not interrupts % 100:
        check(permits, taken)
executions = max(len(pool._executions.all) for pool in pools(kept))
assert executions == 1, "an execution is lost"
kept.close()
print("done")
"""

_COLLECTED = """
import gc, threading
import numpy as np, onnx.parser
import nnadapter as nna

model = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["" : 17]>
    g (float[n, 4] x) => (float[n, 4] y) { a = Relu(x) b = Erf(a) c = MatMul (b, w) y = Relu(c) }''')
model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((4, 4), np.float32), "w"))
gc.disable()
for _ in range(3):
    session = nna.InferenceSession(model, devices=[("fake_npu", {"switched_off": ("ERF",)}), "cpu"])
    session.run(None, {"x": np.ones((2, 4), np.float32)})
    session.itself = session
    tensor = nna.tensor([1.0, 2.0], device="fake_npu")
    cycle = [tensor + tensor]
    cycle.append(cycle)
del session, tensor, cycle
kind = type(threading.Lock())
locks = {id(each): each for holder in gc.get_objects() for each in gc.get_referents(holder) if isinstance(each, kind)}
held = [lock for lock in locks.values() if lock.acquire(blocking=False)]
found = gc.collect()
for lock in held:
    lock.release()
print("done" if found and len(held) > 20 else (found, len(held)))
"""

_FIRST_USE = """
import random, sys
import numpy as np, onnx.parser, onnxruntime
import nnadapter as nna

model = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["" : 17]>
    g (float[2, 4] x) => (float[2, 4] y) { y = Relu(x) }''')
moment, interrupts, left = random.Random(int(sys.argv[1])), 0, 0


def trace(frame, event, _):
    '''Interrupt the body of a module, or what registers for it: locks are taken elsewhere, and a trace comes between
    steps that no signal comes between.'''
    global left
    name = frame.f_globals.get("__name__", "")
    if not name.startswith(("nnadapter", "partition")):
        return None
    if frame.f_code.co_name != "<module>" and name != "nnadapter.converters.registry":
        return None
    left -= 1
    if left == 0:
        raise KeyboardInterrupt
    return trace


while True:
    left = moment.randint(1, 100 + 10 * interrupts)  # more and more, so that it comes to an end
    try:
        sys.settrace(trace)
        session = nna.InferenceSession(model, devices="fake_npu")
        break
    except KeyboardInterrupt:
        interrupts += 1
    finally:
        sys.settrace(None)
assert interrupts > 50, interrupts
print(session.run(None, {"x": np.ones((2, 4), np.float32)})[0].sum())
"""


def run(code, *arguments):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NNADAPTER_")}
    command = [sys.executable, "-X", "faulthandler", "-W", "ignore", "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
def test_finalizers_take_no_locks():
    """The collector may run in a thread that holds any lock, so a finalizer that acquires one would deadlock."""
    assert run(_COLLECTED) == "done"


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "interrupts"), [(0, 100), pytest.param(1, 5000, marks=pytest.mark.fuzz)])
def test_random_interrupts_leave_consistent_state(seed, interrupts):
    assert run(_RUNS, seed, interrupts) == "done"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.fuzz)])
def test_package_works_after_interrupts_of_its_first_use(seed):
    assert run(_FIRST_USE, seed) == "8.0"
