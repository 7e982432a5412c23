"""The conformance kit: a few cases of each kind, and all of them in the long form."""

from __future__ import annotations

import pytest

from nnadapter.testing import Settings, run_conformance
from nnadapter.testing.bench import Bench
from nnadapter.testing.kit import cases_of, run_cases
from tests.drivers.xla.harness import DEVICE


def test_a_few_of_each_kind():
    """Without the search for leaks: in its short form the heap that XLA compiles in has not settled yet."""
    bench = Bench(Settings(device=DEVICE, short=True))
    try:
        cases = [case for pattern in ("[!p]*/*", "programs/[!l]*") for case in cases_of(bench, pattern, 6)]
        card = run_cases(bench, cases)
    finally:
        bench.close()
    assert card.full_marks, str(card)


@pytest.mark.sweep
def test_full_marks():
    card = run_conformance(Settings(device=DEVICE))
    assert card.full_marks, str(card)
