"""Outputs, copied if small and written in place if large: no caller's results are overwritten."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from benchmarks.harness import anonymous_bytes
from nnadapter.drivers import Control
from tests.drivers.openvino.harness import context, model_of, read_only

BOTH = (
    "(float[1,200] x) => (float[1,200] small, float[200,200] large) {{ small = Neg(x)  t = Transpose(x)  large = {} }}"
)
MODELS = {"both": BOTH.format("Mul(t, x)"), "small": "(float[1,200] x) => (float[1,200] small) { small = Neg(x) }"}


def plainly(execution, x):
    return execution.compute([x])


def unless_stopped(execution, x):
    return execution.compute_within([x], Control())


def if_wanted(execution, x):
    return execution.compute_within([x], Control(cancelled=lambda: False))


def into_given(execution, x):
    large = np.empty((x.size, x.size), np.float32)
    buffers = [np.empty_like(x), large]
    return execution.compute_into([x], buffers[: len(execution.compute([x]))])


def expected(x):
    return [-x, x.T * x]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("ways", [(plainly,), (if_wanted, plainly), (plainly, into_given, unless_stopped, plainly)])
def test_results_are_not_overwritten_by_later_runs(name, ways):
    opened = context()
    program = opened.compile(model_of(MODELS[name]))
    execution = program.create_execution()
    inputs = [read_only(np.random.default_rng(seed).random((1, 200), np.float32)) for seed in range(6)]
    all_results = [ways[index % len(ways)](execution, x) for index, x in enumerate(inputs)]
    for x, results in zip(inputs, all_results, strict=True):
        for result, right in zip(results, expected(x), strict=False):
            np.testing.assert_array_equal(result, right)
    execution.close()
    program.close()


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux what the process holds")
def test_outputs_count_once():
    """Compared with the system's count, for programs without intermediate tensors."""
    opened = context()
    model = model_of("(float[1024,1024] x) => (float[1024,1024] y) { y = Relu(x) }")
    programs = []
    for _ in range(12):
        program = opened.compile(model)
        programs.append((program, program.create_execution()))
        if len(programs) == 2:  # memory of the first programs is shared by all
            initial_bytes, counted_before = anonymous_bytes(), sum(compiled.memory_bytes for compiled, _ in programs)
    counted = sum(compiled.memory_bytes for compiled, _ in programs) - counted_before
    grown_bytes = anonymous_bytes() - initial_bytes
    for program, execution in programs:
        execution.close()
        program.close()
    assert grown_bytes - (10 << 20) <= counted <= 10 * (6 << 20), "each has an output of 4 MiB"
