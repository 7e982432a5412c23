"""Every operation in the schema table: export, import, and ONNX Runtime's results."""

from __future__ import annotations

import pytest

from nnadapter.ir import SCHEMAS
from tests.exporting.otherwise import LOST, OTHERWISE
from tests.exporting.round_trip import back, case_of, computed, hold, written

UNCOMPUTED = {"MAX_ROI_POOL": "neither ONNX Runtime 1.32 nor onnx's reference has version 22, which differs in types"}
"""Operations that no other engine computes in ONNX; only their import is checked."""


def trip(type_, seeds):
    """Return how many cases matched the definition after the import, and how many in other engines."""
    came_back = held = 0
    for seed in seeds:
        case = case_of(type_, seed)
        model = None if case is None else written(case)
        if case is None or isinstance(model, str):
            continue
        try:
            again = back(model, case)
            if again is not None:
                hold(case, again)
                came_back += 1
        except AssertionError:
            if type_ not in LOST or not LOST[type_].explains(case, []):
                raise
        got = computed(model, case)
        if got is None:
            continue
        try:
            hold(case, got)
        except AssertionError:
            if type_ not in OTHERWISE or not OTHERWISE[type_].explains(case, got):
                raise
            continue
        held += 1
    return came_back, held


@pytest.mark.parametrize("type_", [type_ for type_ in SCHEMAS if type_ != "CUSTOM"])
def test_operation_survives_export_and_import(type_):
    seeds = range(6)
    came_back, held = trip(type_, seeds)
    if not came_back or not (held or type_ in UNCOMPUTED):  # a rare form: draw more
        came_back, held = trip(type_, range(6, 40))
    assert came_back
    assert held or type_ in UNCOMPUTED


@pytest.mark.sweep
@pytest.mark.parametrize("type_", [type_ for type_ in SCHEMAS if type_ != "CUSTOM"])
def test_many_forms_of_an_operation(type_):
    trip(type_, range(100, 300))
