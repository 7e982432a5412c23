import operator
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnadapter.ir import SymbolicNumber, substitute_sizes
from nnadapter.ir.structure import broken
from nnadapter.ir.symbolic_numbers import SymbolicTrace, guard_value, replay_of, symbolic_max, symbolic_min

STEPS = (
    operator.add,
    operator.sub,
    operator.mul,
    operator.floordiv,
    operator.truediv,
    operator.mod,
    symbolic_min,
    symbolic_max,
    operator.eq,
    operator.ne,
    operator.lt,
    lambda one, _: guard_value(one),
    lambda one, _: bool(one),
)
"""The last five record guards."""
SIZES = st.tuples(*[st.integers(0, 3)] * 3)
PROGRAM = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 30), st.integers(0, 30)), max_size=25)


def computed(program: Sequence[tuple[Any, int, int]], variables: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return the numbers, and the values read under guards."""
    numbers, decided = [*variables, 0, 1, 2, 1.0], []
    for function, first, second in program:
        result = function(numbers[first % len(numbers)], numbers[second % len(numbers)])
        if isinstance(result, (bool, int, float)) and function in STEPS[-5:]:
            decided.append(result)
        else:
            numbers.append(result)
    return numbers, decided


def outcome(program: Sequence[tuple[Any, int, int]], variables: Sequence[Any]) -> Any:
    try:
        return computed(program, variables)
    except ArithmeticError:
        return None


def typed_text(numbers: Sequence[Any]) -> list[tuple[type, str]]:
    return [(type(number), repr(number)) for number in numbers]


@pytest.mark.slow
@given(program=PROGRAM, first=SIZES, second=SIZES)
def test_replay_equals_computation_under_equal_guards(
    program: list[tuple[Any, int, int]], first: tuple[int, ...], second: tuple[int, ...]
) -> None:
    here, there = outcome(program, first), outcome(program, second)
    if here is None:
        return
    trace = SymbolicTrace()
    traced, _ = computed(program, [trace.variable(size) for size in first])
    assert substitute_sizes(tuple(traced), trace.replay(first) or ()) == tuple(here[0])
    replayed = trace.replay(second)
    if there is None or typed_text(there[1]) != typed_text(here[1]):
        assert replayed is None
    else:
        assert replayed is not None
        assert typed_text(substitute_sizes(tuple(traced), replayed)) == typed_text(there[0])


@given(program=PROGRAM, first=SIZES, second=SIZES)
def test_numbers_with_one_representative_are_equal(
    program: list[tuple[Any, int, int]], first: tuple[int, ...], second: tuple[int, ...]
) -> None:
    if outcome(program, first) is None:
        return
    trace = SymbolicTrace()
    traced, _ = computed(program, [trace.variable(size) for size in first])
    replayed = trace.replay(second)
    numbers = [each.number for each in traced if isinstance(each, SymbolicNumber)]
    for one in numbers if replayed is not None else ():
        for other in numbers:
            if trace.representative(one) == trace.representative(other):
                assert typed_text([replayed[one]]) == typed_text([replayed[other]])


def test_results_of_guarded_equal_numbers_merge() -> None:
    trace = SymbolicTrace()
    lengths = [trace.variable(3) for _ in range(24)]
    sums = [length + 1 for length in lengths]
    assert all(each == sums[0] for each in sums)
    products = [(each * 64, each) for each in sums]
    assert len({trace.representative(product.number) for product, _ in products}) == 1
    assert trace.replay([7] * 24) is not None
    assert trace.replay([7] * 23 + [8]) is None


def test_terms_of_equal_sums_are_equal() -> None:
    trace = SymbolicTrace()
    words, lengths = trace.variable(3), [trace.variable(5) for _ in range(24)]
    longest = symbolic_max(abs(lengths[0] + words), 0)
    assert all((0 + length) + words == longest for length in lengths)
    assert len({trace.representative((length * 64).number) for length in lengths}) == 1
    assert trace.replay([2, *[7] * 24]) is not None
    assert trace.replay([2, *[7] * 23, 8]) is None


def test_equalities_are_checked_once() -> None:
    """48 lengths have 1,128 pairs, but equality is transitive."""
    trace = SymbolicTrace()
    words, lengths = trace.variable(3), [trace.variable(5) for _ in range(48)]
    for one, other in pairwise([length + words for length in lengths]):
        assert one == other
        assert other == one
        assert lengths[0] + words == one
    values = [trace.hint(number) for number in range(trace.count)]
    replay = replay_of(len(trace.variables), trace.steps, trace.answers, values)
    assert len(replay.checked(range(trace.count))) < 3 * len(lengths)
    assert trace.replay([3, *[6] * 48]) is not None
    for place in range(48):
        assert trace.replay([3, *[6] * place, 7, *[6] * (47 - place)]) is None


def test_terms_of_equal_sums_are_equal_without_a_constant() -> None:
    trace = SymbolicTrace()
    words, length, other = (trace.variable(size) for size in (3, 5, 5))
    assert (0 + length) + words == other + words
    assert trace.representative((length * 64).number) == trace.representative((other * 64).number)


def test_equal_sums_of_different_terms_imply_nothing() -> None:
    trace = SymbolicTrace()
    words, length, other = (trace.variable(size) for size in (3, 6, 5))
    assert (length + 1) + words == (other + 2) + words
    assert trace.replay([3, 9, 8]) is not None
    assert trace.replay([3, 9, 9]) is None


@pytest.mark.parametrize("decide", [lambda number: number == 1, lambda number: guard_value(number) == 1])
def test_number_guarded_to_be_one_is_a_constant(decide: Any) -> None:
    trace = SymbolicTrace()
    batch, length = trace.variable(1), trace.variable(5)
    assert decide(batch)
    assert trace.representative((batch * length).number) == trace.representative(length.number)
    assert trace.replay([1, 9]) is not None
    assert trace.replay([2, 9]) is None


@pytest.mark.parametrize("chosen", [symbolic_min, symbolic_max])
def test_replayed_numbers_keep_their_type(chosen: Any) -> None:
    """1 equals 1.0, so a guard on the value would not distinguish their types."""
    trace = SymbolicTrace()
    number = chosen(trace.variable(1), 1.0)
    assert typed_text([guard_value(number)]) == [(float, "1.0")]
    for size in range(3):
        replayed = trace.replay([size])
        assert replayed is None or typed_text([replayed[number.number]]) == typed_text([chosen(size, 1.0)])
    assert trace.replay([2 if chosen is symbolic_min else 0]) is not None


@pytest.mark.parametrize(
    "function", [lambda one: one // 1, lambda one: one * 1, lambda one: (one - 2.5) * -1.0 + 0], ids=["//", "*", "+"]
)
def test_integer_identities_may_change_floats(function: Any) -> None:
    """2.5 // 1 is 2.0, and -0.0 + 0 is 0.0."""
    trace = SymbolicTrace()
    number = function(trace.variable(3) / 2)
    for size in range(6):
        replayed = trace.replay([size])
        assert replayed is not None
        assert typed_text([replayed[number.number]]) == typed_text([function(size / 2)])


def test_guard_on_zero_excludes_minus_zero() -> None:
    trace = SymbolicTrace()
    number = (trace.variable(1) - 1) * 0.0
    assert typed_text([guard_value(number)]) == [(float, "0.0")]
    assert trace.replay([2]) is not None
    assert trace.replay([0]) is None
    assert broken(trace, [0], ["rows"]) == "(rows - 1) * 0.0 is -0.0 instead of 0.0"
