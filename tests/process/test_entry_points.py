from __future__ import annotations

import math

import pytest

from nnadapter.process import named


@pytest.mark.parametrize(
    ("target", "value"),
    [("math", math), ("math:sqrt", math.sqrt), ("math:sqrt [fast,more]", math.sqrt), ("math:pi.real[fast]", math.pi)],
)
def test_targets_of_entry_points(target, value):
    assert named(target) == value
