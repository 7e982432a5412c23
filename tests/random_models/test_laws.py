"""Every law for a few random models; with the marker `fuzz`, for many."""

from __future__ import annotations

import os
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.random_models.laws import LAWS, Law
from tests.random_models.models import cases

pytestmark = pytest.mark.slow

_FEW = 60
_MANY = int(os.environ.get("NNADAPTER_FUZZ_EXAMPLES", "2000"))
_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


def _holds(law: Law, examples: int, derandomize: bool) -> None:
    @settings(max_examples=examples, derandomize=derandomize, deadline=None, suppress_health_check=_SLOW)
    @given(cases(LAWS[law]), st.integers(0, 1 << 16))
    def holds(case, seed):
        law(case, Random(seed))

    holds()


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_laws_hold_for_a_few_models(law: Law) -> None:
    _holds(law, _FEW, derandomize=True)


@pytest.mark.fuzz
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_laws_hold_for_many_models(law: Law) -> None:
    _holds(law, _MANY, derandomize=False)
