"""Conformance suite against a driver with sixteen selectable bugs."""

from __future__ import annotations

import pytest

from nnadapter.testing import Settings, run_conformance
from nnadapter.testing.subjects import OutcomeKind
from tests.lying_driver import ABOUT_BINDING, LIES

pytestmark = pytest.mark.slow

FOUND_AS = {
    "wrong_axis": ("operations/SOFTMAX", OutcomeKind.WRONG_VALUES),
    "off_by_one": ("operations/ARG_MAX", OutcomeKind.WRONG_VALUES),
    "not_a_number": ("operations/EXP", OutcomeKind.NOT_A_NUMBER),
    "wrong_dtype": ("operations/EQUAL", OutcomeKind.WRONG_TYPE),
    "wrong_count": ("operations/SPLIT", OutcomeKind.WRONG_COUNT),
    "mutates_inputs": ("operations/RELU", OutcomeKind.CHANGED_INPUTS),
    "crashes": ("operations/TANH", OutcomeKind.CRASHED),
    "leaks": ("programs/leaks", OutcomeKind.LEAKS),
    "hangs": ("operations/TANH", OutcomeKind.HUNG),
    "claims": ("operations/ABS", OutcomeKind.DOES_NOT_COMPILE),
    "stale_constants": ("programs/bound/*", OutcomeKind.WRONG_VALUES),
    "takes_any_bytes": ("programs/judged/*", OutcomeKind.ACCEPTS_DAMAGED),
    "fails_to_judge": ("programs/judged/*", OutcomeKind.WRONG_ANSWER),
    "gives_inputs_back": ("programs/memory/*", OutcomeKind.WRONG_ANSWER),
    "stays_at_its_size": ("sizes/RELU/*", OutcomeKind.DOES_NOT_RUN),
    "computes_nothing_ahead": ("programs/streams/*", OutcomeKind.WRONG_VALUES),
}
"""Expected group and outcome of each bug."""


def settings(lie: str, **options) -> Settings:
    return Settings(device="lying", options={"lie": lie}, time_limit_s=1.0 if lie == "hangs" else 30.0, **options)


def test_every_lie_has_an_expectation():
    assert {"none", *FOUND_AS, *ABOUT_BINDING} == set(LIES) and len(FOUND_AS) == 16


@pytest.mark.parametrize("lie", FOUND_AS)
def test_lie_is_found(lie):
    where, kind = FOUND_AS[lie]
    card = run_conformance(settings(lie), pattern=where)
    assert not card.all_passed
    assert kind in {failed.kind for _, failed in card.failures}, card.failures


@pytest.mark.parametrize("where", ["operations", "programs", "sizes"])
def test_correct_driver_passes_everything(where):
    card = run_conformance(settings("none", short=True), pattern=f"{where}/*")
    assert card.all_passed, card.failures


def test_programs_are_bound_to_other_constants():
    card = run_conformance(settings("none"), pattern="programs/bound/*")
    assert card.all_passed and card.groups["programs"].passed


def test_other_cases_run_after_a_crash():
    card = run_conformance(settings("crashes", short=True), pattern="operations/*")
    assert [row.name for row, _ in card.failures] == ["operations/TANH/0"]
    assert card.groups["operations"].passed > 100


@pytest.mark.parametrize("call", ["judged", "memory", "streams"])
def test_programs_are_judged_and_computed_on_the_device(call):
    card = run_conformance(settings("none"), pattern=f"programs/{call}/*")
    assert card.all_passed and card.groups["programs"].passed == 3
