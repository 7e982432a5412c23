import math
import operator
import pickle
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnadapter.ir import SymbolicNumber, substitute_sizes
from nnadapter.ir.symbolic_numbers import (
    SymbolicTrace,
    apply_function,
    guard_value,
    size_hint,
    symbolic_max,
    symbolic_min,
)

SIZES = st.lists(st.integers(1, 50), min_size=2, max_size=2)
ARITHMETIC: list[Callable[[Any, Any], Any]] = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.floordiv,
    operator.truediv,
    operator.mod,
    symbolic_min,
    symbolic_max,
]


def traced(*values: int) -> tuple[SymbolicTrace, list[SymbolicNumber]]:
    trace = SymbolicTrace()
    return trace, [trace.variable(value) for value in values]


def test_nested_symbolic_numbers_are_substituted() -> None:
    trace, (height, width) = traced(2, 3)
    replayed = trace.replay([5, 7])
    assert replayed is not None
    attributes = {"shape": (height, 1), "pads": [width, [height]], "axis": 0, "more": MappingProxyType({"a": width})}
    expected = {"shape": (5, 1), "pads": [7, [5]], "axis": 0, "more": {"a": 7}}
    assert substitute_sizes((attributes, "none"), replayed) == (expected, "none")


@pytest.mark.slow
@pytest.mark.parametrize("function", ARITHMETIC)
@given(first=SIZES, second=SIZES)
def test_replay_equals_computation(function: Callable[[Any, Any], Any], first: list[int], second: list[int]) -> None:
    trace, (height, width) = traced(*first)
    results = [function(height, width), function(height, 3), function(7, width), function(height, width) * 2 + height]
    replayed = trace.replay(second)
    assert replayed is not None
    plain = [function(*second), function(second[0], 3), function(7, second[1]), function(*second) * 2 + second[0]]
    assert [substitute_sizes(result, replayed) for result in results] == plain


@given(first=SIZES, second=SIZES)
def test_replay_fails_when_a_guard_fails(first: list[int], second: list[int]) -> None:
    def decide(height: Any, width: Any) -> tuple[bool, ...]:
        return height == width, height < width * 2, width >= 7, bool(height % 2), math.prod((height, width)) == 12

    trace, variables = traced(*first)
    decided = decide(*variables)
    assert decided == decide(*first)
    assert (trace.replay(second) is not None) == (decide(*second) == decided)


@pytest.mark.parametrize(
    "use",
    [
        lambda size: np.zeros(size),
        lambda size: np.zeros((2, size)),
        lambda size: range(size),
        lambda size: {size: 1},
        lambda size: size in {1, 2},
        lambda size: f"{size}",
        lambda size: f"{size:04d}",
        lambda size: f"{size!r}",
        lambda size: int(size),
        lambda size: float(size),
        lambda size: [1, 2, 3][size],
        lambda size: np.array([size], np.int64),
        lambda size: [1, 2, 3][:size],
        lambda size: np.float32(2) * np.float32(size),
    ],
)
def test_conversion_to_plain_value_guards_the_number(use: Callable[[Any], object]) -> None:
    trace, (size,) = traced(2)
    use(size)
    assert trace.replay([2]) is not None
    assert trace.replay([1]) is None


def test_plain_values_of_tuples_guard_their_numbers() -> None:
    trace, (height, width) = traced(2, 3)
    decided = guard_value(((1, height), width, "none"))
    assert decided == ((1, 2), 3, "none") and type(decided[0][1]) is type(decided[1]) is int
    assert trace.replay([2, 3]) is not None
    assert trace.replay([1, 3]) is None and trace.replay([2, 4]) is None


def test_truth_test_guards_only_truth() -> None:
    trace, (size,) = traced(2)
    assert size
    assert trace.replay([3]) is not None
    assert trace.replay([0]) is None


def test_equal_steps_merge() -> None:
    _, (size,) = traced(5)
    assert (size * 2 + 1).number == (size * 2 + 1).number
    assert apply_function(math.gcd, size, 4).number == apply_function(math.gcd, size, 4).number


def test_impossible_computation_fails_the_replay() -> None:
    trace, (size,) = traced(5)
    _ = 10 // size
    assert trace.replay([0]) is None


def test_arithmetic_of_numpy_and_symbolic_numbers_is_refused() -> None:
    trace, (size,) = traced(5)
    with pytest.raises(TypeError):
        np.int64(2) * size
    assert size_hint((size * 2, 3)) == (10, 3)
    assert trace.replay([6]) is not None


def test_guards_are_rolled_back_and_restored():
    trace = SymbolicTrace()
    rows, columns = trace.variable(5), trace.variable(7)
    assert rows > 3
    known = len(trace.answers)
    str(columns * 2)
    assert rows > 4 and trace.replay([6, 8]) is None
    forgotten = trace.rollback_guards(known)
    assert trace.replay([6, 8]) is not None and trace.replay([3, 7]) is None
    assert rows > 2 and trace.replay([6, 8]) is not None
    trace.restore_guards(forgotten)
    assert trace.replay([6, 8]) is None and trace.replay([6, 7]) is not None and trace.replay([4, 7]) is None


@given(first=SIZES, second=SIZES)
def test_trace_survives_pickling(first: list[int], second: list[int]) -> None:
    trace, (height, width) = traced(*first)
    numbers = height * width + 2, height // 3, math.floor(width / 2)
    assert bool(height > 3) == (first[0] > 3)  # records a guard
    there, copies = pickle.loads(pickle.dumps((trace, numbers)))
    assert all(copy.trace is there for copy in copies)
    assert there.replay(second) == trace.replay(second) and list(map(size_hint, copies)) == list(
        map(size_hint, numbers)
    )
