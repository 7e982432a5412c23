from __future__ import annotations

import os
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings

from nnadapter.drivers import Supported
from nnadapter.testing.random_models import check
from tests.drivers.xla.harness import context
from tests.random_models.models import cases
from tests.random_models.running import in_parts, run

_MANY = int(os.environ.get("NNADAPTER_FUZZ_EXAMPLES", "300"))
_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


def is_supported(model):
    """Return whether the device supports the model's last operation."""
    return isinstance(context().supported(model)[-1], Supported)


@pytest.mark.fuzz
@pytest.mark.parametrize("cut", [False, True], ids=["whole", "in parts"])
def test_random_models_equal_the_definition(cut):
    @settings(max_examples=_MANY, deadline=None, suppress_health_check=_SLOW)
    @given(cases(is_supported))
    def holds(case):
        outcome = (
            in_parts(Random(0), context(), case.model, case.feeds) if cut else run(context(), case.model, case.feeds)
        )
        check(case.model, case.feeds, outcome)

    holds()
