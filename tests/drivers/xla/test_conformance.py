from __future__ import annotations

import pytest

from nnadapter.testing import Settings, run_conformance
from tests.drivers.xla.harness import DEVICE


@pytest.mark.sweep
def test_few_cases_of_each_group_pass():
    """Skips the search for leaks, which is too short here for XLA's heap to settle."""
    for pattern in ("[!p]*/*", "programs/[!l]*"):
        card = run_conformance(Settings(device=DEVICE, short=True), pattern=pattern, limit=6)
        assert card.all_passed, str(card)


@pytest.mark.sweep
def test_all_cases_pass():
    card = run_conformance(Settings(device=DEVICE))
    assert card.all_passed, str(card)
