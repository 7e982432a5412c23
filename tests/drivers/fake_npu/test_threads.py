"""BLAS threads during programs, interrupts, signal handlers and forks."""

from __future__ import annotations

import os
import signal
import threading
import warnings

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import nnadapter as nna
from nnadapter.drivers import Control
from nnadapter.drivers.fake_npu import BLAS_THREADS, run_limited
from nnadapter.drivers.fake_npu import execution as blas
from nnadapter.ir import DataType, ModelBuilder, OperandType
from tests.drivers.fake_npu.harness import context, floats
from tests.drivers.fake_npu.signals import call_with_signals
from tests.models import HEAD, parse

SECONDS = 60


def blas_threads() -> set[int]:
    """Return the thread counts of numpy's BLAS; other packages may load another at any time."""
    np.ones((2, 2)) @ np.ones((2, 2))
    libraries = [library for library in threadpool_info() if library["user_api"] == "blas"]
    of_numpy = [library for library in libraries if "numpy" in library["filepath"]]
    return {library["num_threads"] for library in of_numpy or libraries}


def set_number() -> list[int]:
    """Return the thread counts of all BLAS libraries; faster than `blas_threads`."""
    return [pool.get_num_threads() for pool in blas._pools()]


class Worker(threading.Thread):
    def __init__(self, limit):
        super().__init__(daemon=True)
        self.limit = limit
        self.began, self.told = threading.Event(), threading.Event()
        self.start()

    def run(self):
        run_limited([self.began.set, lambda: self.told.wait(SECONDS)], self.limit)

    def finish(self):
        self.told.set()
        self.join(SECONDS)
        assert not self.is_alive()


def started_worker(limit) -> Worker:
    worker = Worker(limit)
    assert worker.began.wait(SECONDS)
    return worker


def test_single_program_gets_the_requested_threads() -> None:
    initial = blas_threads()
    for limit, expected in ((1, {1}), (0, initial), (1000, initial)):
        worker = started_worker(limit)
        assert blas_threads() == expected
        worker.finish()
        assert blas_threads() == initial


def test_lowest_limit_holds_until_the_last_program_finishes() -> None:
    initial = blas_threads()
    high, low = started_worker(1000), started_worker(1)
    assert blas_threads() == {1}
    high.finish()
    assert blas_threads() == {1}
    low.finish()
    assert blas_threads() == initial


@pytest.mark.parametrize("rows", [8, "N"])
def test_signal_handler_may_run_a_session_at_any_step(rows) -> None:
    """The handler may interrupt the same session, or one with another number of threads."""
    model = parse(f"{HEAD} g (float[{rows}, 8] x) => (float[{rows}, 8] y) {{ y = MatMul(x, x) }}")
    feed, initial, calls = {"x": floats(8, 8)}, set_number(), []
    with (
        nna.InferenceSession(model, devices=[("fake_npu", {"threads": 1})]) as limited,
        nna.InferenceSession(model, devices="fake_npu") as other,
    ):
        for session in (limited, other):
            session.run(None, feed)
            session.run(None, feed)

        def work():
            for outer, inner in ((limited, limited), (limited, other), (other, limited)):
                number = call_with_signals(lambda: outer.run(None, feed), lambda: inner.run(None, feed))  # noqa: B023
                calls.append(number)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(SECONDS)
        assert not thread.is_alive(), "a handler waits for what it stands in"
    assert len(calls) == 3 and min(calls) > 50
    assert set_number() == initial and not BLAS_THREADS.limits


def test_interrupt_at_any_step_restores_the_thread_count() -> None:
    initial, moments = set_number(), 0
    while True:
        remaining, moments = moments, moments + 1

        def interrupt():
            nonlocal remaining
            remaining -= 1
            if remaining < 0:
                raise KeyboardInterrupt

        try:
            call_with_signals(lambda: run_limited([lambda: None] * 2, 1), interrupt)
        except KeyboardInterrupt:
            assert set_number() == initial and not BLAS_THREADS.limits, moments
        else:
            break
    assert moments > 20
    worker = started_worker(1)
    assert set(set_number()) == {1}
    worker.finish()
    assert set_number() == initial


def test_a_forked_process_computes_while_its_parent_does() -> None:
    initial = set_number()
    program = product(8)
    workers = [started_worker(1) for _ in range(2)]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about forks in threaded processes
            child = os.fork()
        if not child:
            try:
                program.create_execution().compute([floats(8, 8)])
                os._exit(0 if set_number() == initial and not BLAS_THREADS.limits else 2)
            finally:
                os._exit(1)
        end = threading.Timer(SECONDS, os.kill, (child, signal.SIGKILL))
        end.start()
        assert os.waitpid(child, 0)[1] == 0
        end.cancel()
    finally:
        for worker in workers:
            worker.finish()
    assert set_number() == initial


def product(rows, columns=None):
    columns = columns or rows
    builder = ModelBuilder()
    x = builder.add_input("x", OperandType(DataType.FLOAT32, (rows, columns)))
    w = builder.add_input("w", OperandType(DataType.FLOAT32, (columns, columns))) if rows != columns else x
    (result,) = builder.add_operation("MAT_MUL", (x, w))
    return context().compile(builder.finish([result]))


def test_many_threads_compute_the_same_as_one() -> None:
    initial = blas_threads()
    builder = ModelBuilder()
    x = builder.add_input("x", OperandType(DataType.FLOAT32, (64, 64)))
    value = x
    for _ in range(20):
        (value,) = builder.add_operation("MAT_MUL", (value, x))
    program = context().compile(builder.finish([value]))
    array = floats(64, 64) / 8
    (expected,) = program.create_execution().compute([array])
    results = []

    def work():
        execution = program.create_execution()
        for _ in range(10):
            results.append(execution.compute([array])[0])

    workers = [threading.Thread(target=work, daemon=True) for _ in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(SECONDS)
    assert len(results) == 60
    for result in results:
        np.testing.assert_allclose(result, expected, rtol=1e-5)
    assert blas_threads() == initial
    assert not BLAS_THREADS.limits


def test_any_thread_sets_and_restores_the_number() -> None:
    """threadpoolctl lets only the first thread set the number again while it lives."""
    initial = blas_threads()
    with threadpool_limits(limits=max(initial), user_api="blas"):
        first, second = started_worker(1), started_worker(1)
        assert blas_threads() == {1}
        second.finish()
        first.finish()
        assert blas_threads() == initial


def test_threads_option_applies_during_a_run() -> None:
    observed = []
    builder = ModelBuilder()
    x = builder.add_input("x", OperandType(DataType.FLOAT32, (3, 3)))
    (product,) = builder.add_operation("MAT_MUL", (x, x))
    execution = context(threads=1).compile(builder.finish([product])).create_execution()

    def observe() -> bool:
        observed.append(blas_threads())
        return False

    array = floats(3, 3)
    (result,) = execution.compute_within([array], Control(cancelled=observe))
    np.testing.assert_allclose(result, array @ array, rtol=1e-6)
    assert observed == [{1}]
