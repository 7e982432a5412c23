"""Traces replayed with other arrays: the results of the computation, or a refusal."""

import operator
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnadapter.ir import Array
from nnadapter.ir.derived import ArrayTrace, TracedArray, applied, decided, derived, group_key
from nnadapter.ir.operand import freeze

VECTORS = st.lists(st.lists(st.integers(0, 2), min_size=3, max_size=3), min_size=2, max_size=2)


def doubled(array: Array) -> Array:
    return array * 2


def split(array: Array, *, at: int) -> tuple[Array, Array | None]:
    return array[:at].copy(), array[at:].copy() if array.any() else None


def is_zero(array: Array) -> bool:
    return not array.any()


def contents(array: Array) -> bytes:
    return array.tobytes()


def arrays(rows: list[list[int]]) -> list[Array]:
    return [freeze(np.array(row, np.float32)) for row in rows]


COMPUTATIONS: dict[str, Callable[..., object]] = {
    "derived": lambda x, y: derived(doubled, derived(doubled, x)),
    "applied": lambda x, y: applied(doubled, y),
    "two results": lambda x, y: derived(split, x, at=1)[0],
    "a result or none": lambda x, y: derived(split, x, at=1)[1],
    "decided": lambda x, y: x if decided(is_zero, y) else derived(doubled, x),
    "looked at": lambda x, y: x if float(y[0]) == 1 else derived(doubled, y),
    "told apart": lambda x, y: x if group_key(contents, x) == group_key(contents, y) else derived(doubled, x),
    "beside a plain one": lambda x, y: derived(operator.add, x, freeze(np.ones(3, np.float32))),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPUTATIONS)
@given(VECTORS, VECTORS)
def test_replays_equal_computations(name: str, first: list[list[int]], second: list[list[int]]) -> None:
    computation = COMPUTATIONS[name]
    trace = ArrayTrace(arrays(first))
    result = computation(*trace.variables())
    trace.finish()
    for rows, known in ((first, True), (second, first == second)):
        values = trace.replay(arrays(rows))
        assert values is not None or not known, "what it was made of is always taken"
        if values is not None:
            expected = computation(*arrays(rows))
            assert (result is None) == (expected is None)
            assert result is None or np.array_equal(values[result.number], expected)


def test_unread_array_needs_no_guard() -> None:
    trace = ArrayTrace(arrays([[1, 2, 3]]))
    result = derived(doubled, trace.variables()[0])
    values = trace.replay(arrays([[7, 8, 9]]))
    assert values is not None
    assert values[result.number].tolist() == [14, 16, 18]


@pytest.mark.parametrize(
    "look",
    [
        np.asarray,
        np.sum,
        list,
        lambda x: float(x[0]),
        lambda x: x == 1,
        lambda x: 1 - x,
        lambda x: x.astype(np.int32),
        lambda x: x.tolist(),
        lambda x: bool(x[1:2]),
        lambda x: 2.0 in x,
        lambda x: x.reshape(1, 3),
        lambda x: memoryview(np.ascontiguousarray(x)),
    ],
)
def test_reading_guards_the_contents(look: Callable[[TracedArray], object]) -> None:
    trace = ArrayTrace(arrays([[1, 2, 3]]))
    look(trace.variables()[0])
    assert trace.replay(arrays([[1, 2, 3]])) is not None
    assert trace.replay(arrays([[1, 2, 4]])) is None


def test_type_and_dimensions_need_no_guard_on_contents() -> None:
    trace = ArrayTrace(arrays([[1, 2, 3]]))
    (x,) = trace.variables()
    assert (x.shape, x.ndim, x.size, x.nbytes, x.dtype) == ((3,), 1, 3, 12, np.float32)
    assert trace.replay(arrays([[4, 5, 6]])) is not None
    assert trace.replay([freeze(np.zeros((1, 3), np.float32))]) is None
    assert trace.replay([freeze(np.zeros(3, np.float64))]) is None


def test_finished_trace_frees_array_contents() -> None:
    import weakref

    array = freeze(np.random.default_rng(0).random(5))
    gone = weakref.ref(array)
    trace = ArrayTrace([array])
    derived(doubled, *trace.variables())
    trace.finish()
    del array
    assert gone() is None
