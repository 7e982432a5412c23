from __future__ import annotations

import numpy as np
import pytest

from nnadapter.ir.deferred_arrays import DeferredArray, contents_of, deferrable, deferral_of, transposed
from nnadapter.ir.derived import ArrayTrace, applied, decided, derived, group_key

CALLS: list[int] = []


@deferrable(lambda array: (array.dtype, array.shape))
def doubled(array):
    CALLS.append(1)
    return array * 2


def total(array):
    return float(array.sum())


@pytest.fixture
def constant():
    CALLS.clear()
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("call", [applied, derived])
def test_trace_does_not_compute_deferred_arrays(constant, call):
    trace = ArrayTrace([constant])
    result = call(doubled, call(transposed, *trace.variables()))
    assert (result.shape, result.dtype, result.nbytes, CALLS) == ((4, 3), np.float32, 48, [])
    array = trace.finish()[result.number]
    assert isinstance(array, DeferredArray) and (array.shape, array.nbytes, CALLS) == ((4, 3), 48, [])
    assert np.array_equal(contents_of(array), constant.T * 2) and CALLS == [1]


def test_replay_does_not_compute_deferred_arrays(constant):
    trace = ArrayTrace([constant])
    result = derived(doubled, *trace.variables())
    trace.finish()
    other = constant + 1
    values = trace.replay([other])
    assert isinstance(values[result.number], DeferredArray) and not CALLS
    assert np.array_equal(contents_of(values[result.number]), other * 2)
    assert trace.replay([constant.T]) is None


@pytest.mark.parametrize("ask", [lambda array: decided(total, array), lambda array: group_key(total, array), np.sum])
def test_reading_computes_the_contents(constant, ask):
    trace = ArrayTrace([constant])
    ask(derived(doubled, *trace.variables()))
    assert CALLS
    trace.finish()
    assert trace.replay([constant]) is not None


def test_function_without_a_rule_gets_computed_contents(constant):
    trace = ArrayTrace([constant])
    result = applied(np.negative, derived(doubled, *trace.variables()))
    assert deferral_of(np.negative) is None and CALLS == [1]
    assert np.array_equal(trace.finish()[result.number], -2 * constant)


@pytest.mark.parametrize("shape", [(1, 1), (0, 3), (3, 0), (64, 5), (65, 129), (200, 64)])
@pytest.mark.parametrize("dtype", ["float32", "int8", "float64"])
def test_matrices_are_transposed_in_strips(shape, dtype):
    matrix = np.random.default_rng(0).integers(0, 99, shape).astype(dtype)
    result = transposed(matrix)
    assert result.flags.c_contiguous and result.dtype == matrix.dtype and np.array_equal(result, matrix.T)
    assert deferral_of(transposed).form(matrix) == (result.dtype, result.shape)
