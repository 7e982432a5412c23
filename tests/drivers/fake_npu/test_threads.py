"""How many threads BLAS has, alone and in company, whatever comes between."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import types
import warnings

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import nnadapter as nna
from nnadapter.drivers import Control
from nnadapter.drivers.fake_npu import execution
from nnadapter.drivers.fake_npu import threads as blas
from nnadapter.drivers.fake_npu.execution import _compute
from nnadapter.drivers.fake_npu.threads import BLAS_THREADS, COMPANY_SECONDS, BlasThreads, Computation
from nnadapter.ir import DataType, ModelBuilder, OperandType
from tests.drivers.fake_npu.harness import context, floats
from tests.drivers.fake_npu.signals import call_with_signals
from tests.models import HEAD, parse

SECONDS = 60
"""Nothing here waits longer."""


def blas_threads() -> set[int]:
    """Of numpy's BLAS; other packages bring one of their own, which may have been loaded at any time."""
    np.ones((2, 2)) @ np.ones((2, 2))
    libraries = [each for each in threadpool_info() if each["user_api"] == "blas"]
    own = [each for each in libraries if "numpy" in each["filepath"]]
    return {each["num_threads"] for each in own or libraries}


def set_number() -> list[int]:
    """What `blas_threads` says of all libraries, sooner."""
    return [pool.number() for pool in blas._pools()]


@pytest.fixture(autouse=True)
def _nobody_computed_just_now():
    BLAS_THREADS.after_fork()


class Clock:
    """Stands still."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pool(clock) -> BlasThreads:
    return BlasThreads(4, clock)


class Library:
    """The threads of an OpenBLAS that there are many of."""

    def __init__(self, threads):
        self.threads = threads

    def number(self):
        return self.threads

    def set_number(self, threads):
        self.threads = threads


class Worker(threading.Thread):
    """A computation in a thread, from when it is made until it is told to finish."""

    def __init__(self, pool, limit=0, *, is_small=False):
        super().__init__(daemon=True)
        self.pool, self.one = pool, Computation(limit, is_small=is_small)
        self.began, self.told = threading.Event(), threading.Event()
        self.start()

    def run(self):
        try:
            self.pool.begin(self.one)
            self.began.set()
            self.told.wait(SECONDS)
        finally:
            self.pool.users.pop(self.one, None)
            self.pool.make_room()

    def finish(self):
        self.told.set()
        self.join(SECONDS)
        assert not self.is_alive()


def begun(pool, *arguments, **options) -> Worker:
    worker = Worker(pool, *arguments, **options)
    assert worker.began.wait(SECONDS)
    return worker


def waiting(pool) -> Worker:
    """One that has come, behind all others, and waits for its turn."""
    worker = Worker(pool)
    until(lambda: worker.one in pool.users)
    return worker


def until(done) -> None:
    end = time.monotonic() + SECONDS
    while not done():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.001)


def test_alone_the_number_is_what_was_asked_for(pool) -> None:
    before = blas_threads()
    for limit, expected in ((1, {1}), (0, before), (1000, before)):
        worker = begun(pool, limit)
        assert blas_threads() == expected
        worker.finish()
        assert blas_threads() == before


def test_in_company_each_has_one_and_the_last_all(pool, clock) -> None:
    before = blas_threads()
    workers = [begun(pool)]
    assert blas_threads() == before
    workers += [begun(pool), begun(pool)]
    assert blas_threads() == {1}
    workers.pop().finish()
    workers.pop().finish()
    assert blas_threads() == {1}, "those who ended come again at once"
    pool.look_again()
    assert blas_threads() == {1}
    clock.now += COMPANY_SECONDS
    assert pool.waits_for_company
    pool.look_again()
    assert blas_threads() == before and not pool.waits_for_company
    workers.pop().finish()
    assert blas_threads() == before


def test_who_begins_again_in_a_moment_counts(pool, clock) -> None:
    before = blas_threads()
    workers = [begun(pool), begun(pool)]
    for worker in workers:
        worker.finish()
    assert blas_threads() == before, "nobody computes"
    for seconds, expected in ((COMPANY_SECONDS / 2, {1}), (COMPANY_SECONDS, before), (0.0, before)):
        clock.now += seconds
        worker = begun(pool)
        assert blas_threads() == expected
        worker.finish()
        assert blas_threads() == before


def test_a_run_that_goes_on_alone_has_all_threads_again(pool, clock) -> None:
    before, seen = blas_threads(), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execution, "BLAS_THREADS", pool)
        begun(pool).finish()
        other = begun(pool)

        def leave():
            other.finish()
            clock.now += COMPANY_SECONDS / 2

        def wait():
            clock.now += COMPANY_SECONDS

        look = lambda: seen.append(blas_threads())  # noqa: E731
        _compute([look, leave, look, wait, look], Computation())
    assert seen == [{1}, {1}, before]
    assert blas_threads() == before


@pytest.mark.parametrize(
    ("cores", "numbers"),
    [
        (1, [1]),
        (2, [2, 1]),
        (4, [4, 1, 1, 1]),
        (8, [8, 4, 1, 1, 1]),
        (16, [16, 8, 8, 1, 1, 1, 1, 1]),
        (64, [64, 32, 32, 1, 1]),
    ],
)
def test_few_on_many_processors_share_half_of_the_pool(cores, numbers, monkeypatch) -> None:
    library = Library(cores)
    monkeypatch.setattr(blas, "_pools", lambda: [library])
    pool = BlasThreads(cores)
    workers = []
    for number in numbers:
        workers.append(begun(pool))
        assert library.threads == number
    for worker in workers:
        worker.finish()
    assert library.threads == cores


def test_as_many_compute_as_there_are_processors_and_the_others_in_their_order() -> None:
    pool = BlasThreads(cores=2)
    workers = [begun(pool), begun(pool), waiting(pool), waiting(pool)]
    assert not workers[2].began.is_set() and not workers[3].began.is_set()
    workers[0].finish()
    assert workers[2].began.wait(SECONDS) and not workers[3].began.is_set()
    workers[1].finish()
    assert workers[3].began.wait(SECONDS)
    for worker in workers[2:]:
        worker.finish()
    assert not pool.users


def test_who_waits_comes_even_if_nobody_called() -> None:
    """An interrupt ended what computed, and another one the call of those whose turn it is."""
    pool = BlasThreads(cores=1)
    gone = Computation()
    pool.begin(gone)
    worker = waiting(pool)
    pool.users.pop(gone)
    assert worker.began.wait(SECONDS)
    worker.finish()


def test_small_products_have_one_thread_and_limit_nobody(clock, monkeypatch) -> None:
    library = Library(16)
    monkeypatch.setattr(blas, "_pools", lambda: [library])
    pool = BlasThreads(16, clock)
    small = begun(pool, is_small=True)
    assert library.threads == 1
    large = begun(pool)
    assert library.threads == 8
    for worker in (small, large):
        worker.finish()
    assert library.threads == 16
    clock.now += COMPANY_SECONDS
    limited = begun(pool, 2, is_small=True)
    assert library.threads == 2
    limited.finish()
    assert library.threads == 16


def test_one_inside_of_another_waits_for_nobody() -> None:
    """As a handler of signals does that runs a session: the one that it stands in cannot go on before it."""
    before, pool = blas_threads(), BlasThreads(cores=1)
    outer, inner = Computation(), Computation()
    pool.begin(outer)
    worker = waiting(pool)
    pool.begin(inner)
    for one in (inner, outer):
        pool.users.pop(one, None)
        pool.make_room()
    assert worker.began.wait(SECONDS)
    worker.finish()
    assert blas_threads() == before
    assert not pool.users


@pytest.mark.parametrize("rows", [8, "N"])
def test_a_handler_of_signals_may_run_a_session_wherever_it_comes(rows) -> None:
    """The session that it stands in the middle of, too, and with another number of threads."""
    model = parse(f"{HEAD} g (float[{rows}, 8] x) => (float[{rows}, 8] y) {{ y = MatMul(x, x) }}")
    feed, before, calls = {"x": floats(8, 8)}, set_number(), []
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
    assert set_number() == before and not BLAS_THREADS.users


def test_an_interrupt_wherever_it_comes_leaves_the_number_as_it_was() -> None:
    before, moments = set_number(), 0
    while True:
        left, moments = moments, moments + 1

        def interrupt():
            nonlocal left
            left -= 1
            if left < 0:
                raise KeyboardInterrupt

        try:
            call_with_signals(lambda: _compute([lambda: None] * 2, Computation(1)), interrupt)
        except KeyboardInterrupt:
            assert set_number() == before and not BLAS_THREADS.users, moments
        else:
            break
    assert moments > 20
    worker = begun(BLAS_THREADS, 1)
    assert set(set_number()) == {1}
    worker.finish()
    assert set_number() == before


def test_a_forked_process_computes_while_its_parent_does() -> None:
    before = set_number()
    program = product(8)
    workers = [begun(BLAS_THREADS)]
    workers += [waiting(BLAS_THREADS) for _ in range(os.cpu_count() or 1)]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
            child = os.fork()
        if not child:
            try:
                program.create_execution().compute([floats(8, 8)])
                os._exit(0 if set_number() == before and not BLAS_THREADS.users else 2)
            finally:
                os._exit(1)
        end = threading.Timer(SECONDS, os.kill, (child, signal.SIGKILL))
        end.start()
        assert os.waitpid(child, 0)[1] == 0
        end.cancel()
    finally:
        for worker in workers:
            worker.finish()
    assert set_number() == before


def product(rows, columns=None):
    columns = columns or rows
    builder = ModelBuilder()
    x = builder.add_input("x", OperandType(DataType.FLOAT32, (rows, columns)))
    w = builder.add_input("w", OperandType(DataType.FLOAT32, (columns, columns))) if rows != columns else x
    (result,) = builder.add_operation("MAT_MUL", (x, w))
    return context().compile(builder.finish([result]))


def with_torch(monkeypatch, is_loaded) -> None:
    if is_loaded:
        monkeypatch.setitem(sys.modules, "torch", sys.modules.get("torch", types.ModuleType("torch")))
    else:
        monkeypatch.delitem(sys.modules, "torch", raising=False)


def test_small_products_have_one_thread_where_other_threads_spin(monkeypatch) -> None:
    before = blas_threads()
    for is_loaded, size, expected in ((False, 128, before), (True, 128, {1}), (True, 1024, before)):
        with_torch(monkeypatch, is_loaded)
        assert seen_within(product(size), [floats(size, size)]) == expected
    assert blas_threads() == before


def seen_within(program, arrays) -> set[int]:
    """The number of threads within a run of a program."""
    seen: list[set[int]] = []

    def asked() -> bool:
        seen.append(blas_threads())
        return False

    program.create_execution().compute_within(arrays, Control(cancelled=asked))
    return seen[0]


def test_many_threads_compute_what_one_does() -> None:
    before = blas_threads()
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
    assert blas_threads() == before
    assert not blas.BLAS_THREADS.users


def test_any_thread_sets_the_number_and_puts_it_back(pool) -> None:
    """threadpoolctl lets the first thread that did so do it again, and no other as long as that is alive."""
    before = blas_threads()
    with threadpool_limits(limits=max(before), user_api="blas"):
        first, second = begun(pool, 1), begun(pool, 1)
        assert blas_threads() == {1}
        second.finish()
        first.finish()
        assert blas_threads() == before
    here = Computation(1)
    pool.begin(here)
    assert blas_threads() == {1}
    pool.users.pop(here)
    other = threading.Thread(target=pool.make_room, daemon=True)
    other.start()
    other.join(SECONDS)
    assert blas_threads() == before


def test_the_option_holds_while_a_program_runs() -> None:
    seen = []
    builder = ModelBuilder()
    x = builder.add_input("x", OperandType(DataType.FLOAT32, (3, 3)))
    (product,) = builder.add_operation("MAT_MUL", (x, x))
    execution = context(threads=1).compile(builder.finish([product])).create_execution()

    def asked() -> bool:
        seen.append(blas_threads())
        return False

    array = floats(3, 3)
    (result,) = execution.compute_within([array], Control(cancelled=asked))
    np.testing.assert_allclose(result, array @ array, rtol=1e-6)
    assert seen == [{1}]
