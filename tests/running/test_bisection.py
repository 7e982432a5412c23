"""Search for the atoms that a device fails to compile, with known faults."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnadapter.engine import NOT_FOUND, Budget, Culprits, culprits_of


def search(count, fails, budget=None):
    asked = []

    def compiles(atoms):
        asked.append(tuple(atoms))
        return not fails(set(atoms))

    return culprits_of(range(count), compiles, budget or Budget()), asked


@given(st.integers(2, 300), st.data())
def test_every_atom_that_fails_alone_is_found(count, data):
    bad = data.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=min(3, count - 1)))
    found, asked = search(count, lambda atoms: atoms & bad)
    assert found == Culprits(alone=tuple(sorted(bad)))
    assert len(asked) <= 2 * len(bad) * (count.bit_length() + 1)


@given(st.integers(3, 200), st.data())
def test_two_atoms_that_fail_only_together_are_found(count, data):
    pair = data.draw(st.sets(st.integers(0, count - 1), min_size=2, max_size=2))
    found, _ = search(count, lambda atoms: pair <= atoms)
    assert found == Culprits(beside=(tuple(sorted(pair)),))


@pytest.mark.parametrize("room", [3, 7, 20])
def test_oversized_segment_is_recognized(room):
    assert search(40, lambda atoms: len(atoms) > room)[0].is_too_large
    assert search(room + 1, lambda atoms: len(atoms) > room)[0] == Culprits(is_too_large=True)


def test_segments_of_one_or_two_failing_atoms():
    assert search(2, lambda atoms: len(atoms) == 2)[0] == Culprits(beside=((0, 1),))
    assert search(1, lambda _: True)[0] == Culprits(alone=(0,))


def test_search_ends_early_if_nothing_compiles():
    found, asked = search(1000, lambda _: True)
    assert found == NOT_FOUND and len(asked) == 8


def test_search_is_bounded_in_compilations_and_time():
    found, asked = search(300, lambda atoms: any(each % 3 == 0 for each in atoms))
    assert found == NOT_FOUND and len(asked) <= 128
    now = [0.0]
    budget = Budget(seconds=5, clock=lambda: now[0])

    def slow(atoms):
        now[0] += 1
        return 9 in atoms

    found, asked = search(100, slow, budget)
    assert found == NOT_FOUND and len(asked) == 5 and not budget.left()


def test_interrupt_is_propagated():
    def interrupted(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        culprits_of(range(4), interrupted, Budget())
