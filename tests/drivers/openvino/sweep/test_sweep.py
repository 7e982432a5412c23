"""Forms that openvino accepts: equal to ONNX up to rounding."""

from __future__ import annotations

import os

import pytest

from nnadapter.drivers.openvino import OPERATORS, STATIC_SHAPE_OPS
from tests.drivers.openvino.harness import context
from tests.drivers.openvino.sweep.recipes import RECIPES
from tests.drivers.openvino.sweep.running import sweep, sweep_open

FEW = 4
FEW_OPEN = 1
MANY = int(os.environ.get("NNADAPTER_SWEEP_FORMS", "1000"))
SEED = int(os.environ.get("NNADAPTER_SWEEP_SEED", "0"))


@pytest.fixture(scope="module")
def opened():
    return context(threads=1)


def test_every_op_has_a_recipe():
    assert set(RECIPES) == set(OPERATORS)


@pytest.mark.sweep
def test_a_few_forms_of_each_op(opened):
    outcomes = sweep(opened, sorted(RECIPES), FEW, SEED).values()
    assert [outcome.differing for outcome in outcomes if outcome.differing] == []
    assert sum(len(outcome.agreeing) for outcome in outcomes) > len(RECIPES) * FEW / 2


@pytest.mark.sweep
def test_a_few_forms_of_each_op_with_dynamic_shapes(opened):
    outcomes = [sweep_open(opened, op_type, FEW_OPEN, SEED) for op_type in sorted(RECIPES.keys() - STATIC_SHAPE_OPS)]
    assert [outcome.differing for outcome in outcomes if outcome.differing] == []
    assert sum(len(outcome.agreeing) for outcome in outcomes) > len(outcomes) * FEW_OPEN / 3


@pytest.mark.sweep
@pytest.mark.parametrize("op_type", sorted(RECIPES.keys() - STATIC_SHAPE_OPS))
def test_many_forms_with_dynamic_shapes(opened, op_type, capsys):
    outcome = sweep_open(opened, op_type, MANY // 5, SEED)
    with capsys.disabled():
        print(f"\n{outcome}", end="")
    assert outcome.differing == {}


@pytest.mark.sweep
@pytest.mark.parametrize("op_type", sorted(RECIPES))
def test_many_forms(opened, op_type, capsys):
    outcome = sweep(opened, [op_type], MANY, SEED)[op_type]
    with capsys.disabled():
        print(f"\n{outcome}", end="")
    assert outcome.differing == {}
