from __future__ import annotations

import math

import pytest

from nnadapter.process import named


@pytest.mark.parametrize(
    ("target", "value"),
    [("math", math), ("math:sqrt", math.sqrt), ("math:sqrt [fast,more]", math.sqrt), ("math:pi.real[fast]", math.pi)],
)
def test_entry_point_targets_are_imported(target, value):
    assert named(target) == value
