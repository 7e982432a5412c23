from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest

from nnadapter.ir import derived as derived_module
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
    assert CALLS == [2, 3]


def test_results_depend_on_type_and_sign_of_parameters():
    array = freeze(np.ones(3))
    CALLS.clear()
    results = [derived(scaled, array, by=by) for by in (0.0, -0.0, 0, False, (0.0,), (-0.0,))]
    assert list(map(repr, CALLS)) == ["0.0", "-0.0", "0", "False", "(0.0,)", "(-0.0,)"]
    assert np.signbit(results[1]).all() and not np.signbit(results[0]).any()


def test_equal_arrays_share_results():
    array, twin = freeze(np.ones((3, 500))), freeze(np.ones((3, 500)))
    CALLS.clear()
    first = derived(scaled, array, by=2)
    assert derived(scaled, twin, by=2) is first
    del array
    gc.collect()
    assert derived(scaled, twin, by=2) is first and derived(scaled, freeze(np.ones((3, 500))), by=2) is first
    assert CALLS == [2]
    kept = weakref.ref(first)
    del first, twin
    gc.collect()
    assert kept() is None


def other_than(array):
    changed = array.copy()
    changed.reshape(-1)[-2] = 7
    return changed


@pytest.mark.parametrize(
    "change",
    [
        other_than,
        lambda array: array.astype(np.float32),
        lambda array: array.reshape(500, 3),
        lambda array: np.where(np.arange(1500).reshape(3, 500) == 1498, -0.0, array),
    ],
    ids=["one element", "data type", "dimensions", "sign of zero"],
)
def test_different_arrays_share_no_results(change):
    array = freeze(np.zeros((3, 500)))
    changed = freeze(np.array(change(array)))
    assert derived(scaled, array, by=2) is not derived(scaled, changed, by=2)
    np.testing.assert_array_equal(derived(scaled, changed, by=2), changed * 2)
    assert derived(scaled, changed, by=2) is derived(scaled, changed, by=2)


def test_result_equal_to_its_source_is_freed():
    array = freeze(np.eye(30))
    turned = derived(np.transpose, array)
    kept = weakref.ref(derived(scaled, turned, by=2))
    del array, turned
    gc.collect()
    assert kept() is None


def test_arrays_of_a_changed_buffer_share_no_results():
    buffer = np.zeros((30, 500))
    first = derived(scaled, freeze(buffer), by=2)
    held = freeze(buffer)
    assert derived(scaled, held, by=2) is not None
    buffer[7, 7] = 1
    changed = freeze(buffer)
    assert derived(scaled, changed, by=2)[7, 7] == 2 and first[7, 7] == 0


def test_concurrent_use_and_garbage_collection():
    """Equal and nearly equal arrays are created and collected in reference cycles, by several threads."""
    wrong = []

    def work(number):
        for step in range(300):
            values = np.zeros(300)
            values[7] = (number + step) % 5
            cycle = [freeze(values)]
            cycle.append(cycle)
            if derived(scaled, cycle[0], by=2)[7] != 2 * values[7]:
                wrong.append((number, step))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    gc.collect()
    assert not [key for key in derived_module._results if key[0] is scaled]
    assert not [key for key in derived_module._living if key[0] == "float64" and key[1] == (300,)]


def test_nan_equals_itself():
    first, second = freeze(np.full(9, np.nan)), freeze(np.full(9, np.nan))
    assert derived(scaled, first, by=2) is derived(scaled, second, by=2)


def test_cached_view_does_not_keep_its_array_alive():
    array = np.ones((3, 4))
    array.flags.writeable = False
    kept = weakref.ref(array)
    derived(np.transpose, array)
    del array
    gc.collect()
    assert kept() is None


def test_scalar_results_remain_arrays():
    array = freeze(np.array(3.0))
    result = derived(scaled, array, by=2)
    assert isinstance(result, np.ndarray) and result.shape == () and result == 6
