"""Coverage of random models: every operation in the schema table, except those listed with a reason."""

from __future__ import annotations

from random import Random

import pytest

from nnadapter.drivers.fake_npu import OPERATIONS
from nnadapter.ir import SCHEMAS, verify
from nnadapter.testing.random_models import RECIPES, UNREACHED
from tests.every import for_every
from tests.random_models.models import anything, attempt, maker_of, taken

_ATTEMPTS = 400


@for_every(type_=SCHEMAS)
def test_random_models_reach_every_operation(type_: str) -> None:
    if type_ in UNREACHED:
        return
    accept = taken if type_ in OPERATIONS else anything
    refusals = []
    for seed in range(_ATTEMPTS):
        maker = maker_of(Random(seed), accept)
        if attempt(maker, type_, accept):
            verify(maker.finish().model)
            return
        refusals.append(maker.refusals[-1])
    pytest.fail(
        f"{type_} was never reached in {_ATTEMPTS} attempts; its schema alone does not say enough. Add a recipe for it "
        f"to RECIPES in nnadapter/testing/random_models/recipes.py, or a reason to UNREACHED there. "
        f"Refusals: {set(refusals[-40:])}"
    )


def test_the_tables_name_operations() -> None:
    assert RECIPES.keys() | UNREACHED.keys() <= SCHEMAS.keys()
    assert not RECIPES.keys() & UNREACHED.keys()
