"""How many threads BLAS has, alone and in company."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from nnadapter.drivers import Control
from nnadapter.drivers.fake_npu import threads as blas
from nnadapter.drivers.fake_npu.threads import BlasThreads, Computation
from nnadapter.ir.builder import ModelBuilder
from nnadapter.ir.operand import DataType, OperandType
from tests.drivers.fake_npu.harness import context, floats


def blas_threads() -> set[int]:
    np.ones((2, 2)) @ np.ones((2, 2))
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


@pytest.fixture
def pool() -> BlasThreads:
    return BlasThreads(cores=4)


class Worker(threading.Thread):
    """A computation that goes on by one instruction when it is told to."""

    def __init__(self, pool, limit=0):
        super().__init__()
        self.pool, self.one = pool, Computation(limit, pool)
        self.instructions, self.steps, self.began = 0, threading.Semaphore(0), threading.Event()
        self.start()

    def run(self):
        try:
            self.one.begin()
            self.began.set()
            while True:
                self.steps.acquire()
                if self.instructions is None:
                    return
                if self.pool.is_asked:
                    self.one.make_room()
                self.instructions += 1
        finally:
            self.pool.users.pop(self.one, None)
            self.one.end()

    def finish(self):
        self.instructions = None
        self.steps.release()
        self.join()


def until(done) -> None:
    while not done():
        time.sleep(0.001)


def test_alone_the_number_is_what_was_asked_for(pool) -> None:
    before = blas_threads()
    for limit, expected in ((1, {1}), (0, before)):
        worker = Worker(pool, limit)
        worker.began.wait()
        assert blas_threads() == expected
        worker.finish()
        assert blas_threads() == before


def test_in_company_each_has_one_from_the_next_instruction_of_all_on(pool) -> None:
    before = blas_threads()
    first, second = Worker(pool), Worker(pool)
    first.began.wait()
    second.began.wait()
    assert blas_threads() == before, "half of the processors are free"
    third = Worker(pool)
    until(lambda: pool.is_asked)
    first.steps.release()
    until(lambda: not first.one.computes)
    assert not third.began.is_set() and blas_threads() == before, "the second is in the middle of an instruction"
    second.steps.release()
    third.began.wait()
    assert blas_threads() == {1}
    until(lambda: first.instructions == second.instructions == 1)
    for worker in (first, third):
        worker.finish()
    assert blas_threads() == {1}, "one still computes"
    second.finish()
    assert blas_threads() == before


def test_who_ends_makes_room_as_well(pool) -> None:
    workers = [Worker(pool), Worker(pool)]
    for worker in workers:
        worker.began.wait()
    third = Worker(pool)
    until(lambda: pool.is_asked)
    for worker in workers:
        worker.finish()
    third.began.wait()
    third.finish()
    assert not pool.users and not pool.is_asked


def test_as_many_compute_as_there_are_processors_and_the_others_in_their_order() -> None:
    pool = BlasThreads(cores=2)
    workers = [Worker(pool)]
    workers[0].began.wait()
    workers.append(Worker(pool))
    until(lambda: pool.is_asked)
    workers[0].steps.release()
    workers[1].began.wait()
    for _ in range(2):
        workers.append(Worker(pool))
        until(lambda: len(pool.users) == len(workers))
    assert not pool.is_asked, "nobody has to stop for those who wait"
    workers[0].finish()
    workers[2].began.wait()
    assert not workers[3].began.is_set()
    workers[1].finish()
    workers[3].began.wait()
    for worker in workers[2:]:
        worker.finish()
    assert not pool.users and not pool.is_asked


def test_a_computation_that_never_began_ends(pool) -> None:
    Computation(1, pool).end()
    worker = Worker(pool)
    worker.began.wait()
    worker.finish()


def test_a_number_that_an_interrupt_left_is_set_by_who_waits(pool) -> None:
    """The one that computes is gone, and nobody was told."""
    gone = Computation(1, pool)
    gone.begin()
    waiting = Worker(pool, 2)
    until(lambda: pool.is_asked or waiting.began.is_set())
    pool.users.pop(gone)
    waiting.began.wait()
    waiting.finish()


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

    workers = [threading.Thread(target=work) for _ in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(results) == 60
    for result in results:
        np.testing.assert_allclose(result, expected, rtol=1e-5)
    assert blas_threads() == before
    assert not blas.BLAS_THREADS.users


def test_any_thread_sets_the_number_and_puts_it_back(pool) -> None:
    """threadpoolctl lets the first thread that did so do it again, and no other as long as that is alive."""
    before = blas_threads()
    first, second = Worker(pool, 1), Worker(pool, 1)
    first.began.wait()
    second.began.wait()
    second.finish()
    first.finish()
    alive = Worker(pool, 1)
    alive.began.wait()
    later = Worker(pool, 2)
    until(lambda: pool.is_asked or later.began.is_set())
    later.finish()
    alive.finish()
    Worker(pool, 0).finish()
    assert blas_threads() == before
    with_option = Computation(1, pool)
    with_option.begin()
    assert blas_threads() == {1}
    pool.users.pop(with_option)
    other = threading.Thread(target=with_option.end)
    other.start()
    other.join()
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
