"""Invalid models of every family: `verify` finds the defect, and drivers raise typed errors."""

from __future__ import annotations

import os
from contextlib import suppress
from random import Random

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from nnadapter.drivers import Context
from nnadapter.drivers.null import NullContext
from nnadapter.errors import InvalidModelError, NNAdapterError
from nnadapter.ir import Model, verify
from nnadapter.testing.mutations import MUTATIONS
from tests.random_models.laws import new_context
from tests.random_models.models import varied

_FEW = 8
_MANY = int(os.environ.get("NNADAPTER_FUZZ_EXAMPLES", "2000"))
_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
_SAYS = r"expected|did you mean|known: "


def refused(family: str, model: Model, random: Random) -> None:
    """Check that the model is valid, and that its mutation is refused everywhere."""
    verify(model)
    mutated = MUTATIONS[family](random, model)
    assume(mutated is not None)
    spoilt, pattern = mutated
    with pytest.raises(InvalidModelError, match=pattern) as caught:
        verify(spoilt)
    assert caught.match(_SAYS)
    for context in (new_context(), NullContext()):
        drivers_refuse(context, spoilt)


def drivers_refuse(context: Context, model: Model) -> None:
    """Check that compiling an invalid model always raises; asking for verdicts may raise."""
    with suppress(NNAdapterError):
        context.supported(model)
    with pytest.raises(InvalidModelError):
        context.compile(model)


def _hold(family: str, examples: int, derandomize: bool) -> None:
    @settings(max_examples=examples, derandomize=derandomize, deadline=None, suppress_health_check=_SLOW)
    @given(st.integers(0, 1 << 32))
    def holds(seed):
        random = Random(seed)
        refused(family, varied(random), random)

    holds()


@pytest.mark.parametrize("family", MUTATIONS)
def test_mutations_are_refused(family: str) -> None:
    _hold(family, _FEW, derandomize=True)


@pytest.mark.fuzz
@pytest.mark.parametrize("family", MUTATIONS)
def test_many_mutations_are_refused(family: str) -> None:
    _hold(family, _MANY, derandomize=False)


def test_every_mutation_applies_to_some_model() -> None:
    for family in MUTATIONS.values():
        assert any(family(Random(seed), varied(Random(seed))) for seed in range(8)), family.__name__
