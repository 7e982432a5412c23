"""Weak cache of values derived from constants."""

import numpy as np

from nnadapter.drivers.fake_npu import BoundConstants


def test_lookup_compares_array_identity() -> None:
    bound, (first, second, derived) = BoundConstants(), np.ones((3, 2))
    bound.keep([first, second], [derived])
    result = bound.look_up([first, second])
    assert result is not None
    assert result[0] is derived
    assert bound.look_up([second, first]) is None
    assert bound.look_up([first, second.copy()]) is None


def test_cache_holds_weak_references() -> None:
    bound, constant = BoundConstants(), np.ones(3)
    bound.keep([constant], [np.ones(3)])
    assert bound.look_up([constant]) is None, "what was made has gone"


def test_new_array_at_the_same_address_is_not_found() -> None:
    bound, derived = BoundConstants(), np.ones(3)
    for _ in range(200):
        constant = np.empty(3)
        assert bound.look_up([constant]) is None
        bound.keep([constant], [derived])
        del constant


def test_without_constants() -> None:
    bound = BoundConstants()
    assert bound.look_up([]) is None
    bound.keep([], [])
    assert bound.look_up([]) == []
