"""The conformance kit: a few cases of each kind, and all of them in the long form."""

from __future__ import annotations

import pytest

from nnadapter.testing import Settings, run_conformance
from tests.drivers.xla.harness import DEVICE


@pytest.mark.parametrize(
    ("short", "limit"), [(True, 12), pytest.param(False, None, marks=pytest.mark.sweep, id="all of them")]
)
def test_full_marks(short, limit):
    card = run_conformance(Settings(device=DEVICE, short=short), limit=limit)
    assert card.full_marks, str(card)
