"""One engine in many threads whose first plans all fail."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest

import nnadapter as nna
from tests.models import numbers, parse

KNOWN_CONDITION = """<ir_version: 10, opset_import: ["" : 17]> g (float[n, 4] x) => (float[n, 4] y) <bool c = {1}> {
    a = Relu(x)
    y = If(c) <
        then_branch = t () => (float[n, 4] p) { p = Neg(a) },
        else_branch = e () => (float[n, 4] q) { q = Abs(a) }
    >
}"""
THREADS = 8


@pytest.fixture
def eager_switches():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("eager_switches")
@pytest.mark.parametrize("_", range(5))
def test_failed_branch_expansion_is_undone_in_every_thread(_):
    """The device fails on the node in the branch, which is an error; the unexpanded branch runs on the CPU."""
    devices, forbid = [("trial", {"fails_on": "NEG"}), "cpu"], nna.Options(fallback="forbid")
    barrier = Barrier(THREADS)
    with nna.InferenceSession(parse(KNOWN_CONDITION), devices=devices, options=forbid) as session:

        def run(rows):
            feed = {"x": numbers(rows, 4)}
            barrier.wait()
            np.testing.assert_array_equal(session.run(None, feed)[0], -np.maximum(feed["x"], 0))

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(run, range(1, THREADS + 1)))
        assert {node.op_type for node in session.report().nodes} == {"Relu", "If"}
