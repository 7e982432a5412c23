"""The executor and the threading that a device declares."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from nnadapter.drivers import Execution, Program, Threading
from nnadapter.drivers.failures import NamedCalls
from nnadapter.engine import ExecutionPool


class Watched(Program, Execution):
    """Program that records concurrent computations and the number of executions."""

    def __init__(self, together):
        self.together = threading.Barrier(together)
        self.at_once = self.most = self.made = 0
        self.lock = threading.Lock()

    def create_execution(self):
        self.made += 1
        return self

    def compute(self, inputs):
        with self.lock:
            self.at_once += 1
            self.most = max(self.most, self.at_once)
        self.together.wait(60)
        time.sleep(0.02)  # long enough for a forbidden second computation to show
        with self.lock:
            self.at_once -= 1
        return inputs


@pytest.mark.parametrize(("kind", "most"), [(Threading.SERIAL, 1), (Threading.EXCLUSIVE, 4), (Threading.REENTRANT, 4)])
def test_concurrent_computations_follow_the_declared_threading(kind, most):
    program = Watched(most)
    pools = [ExecutionPool(program, kind, NamedCalls("watched")) for _ in range(2)]  # as in two sessions
    with ThreadPoolExecutor(4) as workers:
        list(workers.map(lambda index: pools[index % 2].compute([index]), range(8)))
    assert program.most == most
    assert kind is not Threading.EXCLUSIVE or program.made >= most
