"""Weak cache of values derived from constants."""

import numpy as np

from nnadapter.drivers.fake_npu import BoundConstants


def test_found_by_the_very_same_arrays() -> None:
    bound, (first, second, made) = BoundConstants(), np.ones((3, 2))
    bound.keep([first, second], [made])
    found = bound.look_up([first, second])
    assert found is not None
    assert found[0] is made
    assert bound.look_up([second, first]) is None
    assert bound.look_up([first, second.copy()]) is None


def test_nothing_is_kept_alive() -> None:
    bound, given = BoundConstants(), np.ones(3)
    bound.keep([given], [np.ones(3)])
    assert bound.look_up([given]) is None, "what was made has gone"


def test_another_array_at_the_same_address_is_another() -> None:
    bound, made = BoundConstants(), np.ones(3)
    for _ in range(200):
        given = np.empty(3)
        assert bound.look_up([given]) is None
        bound.keep([given], [made])
        del given


def test_without_constants() -> None:
    bound = BoundConstants()
    assert bound.look_up([]) is None
    bound.keep([], [])
    assert bound.look_up([]) == []
