from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from nnadapter.ir.derived import derived
from nnadapter.ir.operand import freeze

CALLS = []


def scaled(array, *, by):
    CALLS.append(by)
    return array * by


def test_results_are_computed_once_per_array_and_parameters():
    array = freeze(np.ones(3))
    CALLS.clear()
    first = derived(scaled, array, by=2)
    assert derived(scaled, array, by=2) is first and derived(scaled, array, by=3) is not first
    assert derived(scaled, freeze(np.ones(3)), by=2) is not first
    assert CALLS == [2, 3, 2]


def test_results_cannot_be_written_to():
    with pytest.raises(ValueError, match="read-only"):
        derived(scaled, freeze(np.ones(3)), by=2)[0] = 1


def test_what_may_change_is_not_kept():
    array = np.ones(3)
    first = derived(scaled, array, by=2)
    array[:] = 5
    assert derived(scaled, array, by=2).tolist() == [10, 10, 10] and first.tolist() == [2, 2, 2]


def test_results_go_with_what_they_were_made_from():
    array = freeze(np.ones(3))
    kept = weakref.ref(derived(scaled, array, by=2))
    assert kept() is not None
    del array
    gc.collect()
    assert kept() is None
