"""Devices with bounds on dynamic dimensions: one dynamic model within them, static ones outside."""

from __future__ import annotations

import pytest

import nnadapter as nna
from tests import bounded_driver
from tests.c_compiler import acme_among_devices, needs_compiler
from tests.models import numbers, parse
from tests.planning.test_dynamic_shapes_in_ir import HEAD, agree, session

CHAIN = f"{HEAD} g (float[n, 4] x) => (float[n, 4] y) {{ a = Add (x, x) y = Relu (a) }}"
WIDE = f"{HEAD} g (float[n, m] x) => (float[n, m] y) {{ a = Add (x, x) y = Relu (a) }}"


@pytest.fixture(autouse=True)
def compiled():
    bounded_driver.COMPILED.clear()
    return bounded_driver.COMPILED


def test_only_sizes_within_bounds_share_a_program(compiled):
    model = parse(CHAIN)
    with session(model, "bounded") as opened:
        for rows in (3, 5, 2, 8, 7, 9, 12, 9, 4, 1, 12, 6):
            agree(opened, model, {"x": numbers(rows, 4)})
            assert {step.device for step in opened.provenance.steps} == {"bounded"}
    assert compiled == [[[3, 4]], [[None, 4]], [[9, 4]], [[12, 4]], [[1, 4]]]


def test_first_shape_does_not_decide_static_sizes(compiled):
    model = parse(CHAIN)
    with session(model, "bounded") as opened:
        for rows in (20, 11, 3, 10, 5, 11):
            agree(opened, model, {"x": numbers(rows, 4)})
    assert compiled == [[[20, 4]], [[11, 4]], [[None, 4]], [[10, 4]]]


def test_number_of_elements_is_bounded_separately(compiled):
    model = parse(WIDE)
    with session(model, "bounded") as opened:
        for shape in ((3, 3), (4, 8), (8, 6), (8, 8), (7, 7), (8, 7)):
            agree(opened, model, {"x": numbers(*shape)})
    assert compiled == [[[3, 3]], [[None, None]], [[8, 8]], [[8, 7]]]


@pytest.fixture
def bounded_acme(tmp_path):
    flags = ("-DACME_OPEN_SIZES=NNADAPTER_SHAPES_BOUNDED", "-DACME_LARGEST_SIZE=8")
    with acme_among_devices(tmp_path, *flags, name="bounded_acme") as name:
        yield name


@pytest.mark.slow
@needs_compiler
def test_size_bounds_of_a_c_driver(bounded_acme):
    model, made = parse(CHAIN), []
    with nna.InferenceSession(model, devices=bounded_acme, options=nna.Options(fallback="allow")) as opened:
        for rows in (3, 5, 2, 8, 9, 12, 9, 4):
            agree(opened, model, {"x": numbers(rows, 4)})
            assert {step.device for step in opened.provenance.steps} == {bounded_acme}
            made.append(opened.report().plans.compiled)
        assert (
            opened.report().plans.served_shapes_text
            == "2 plans for all input shapes; one more when x[0] > 8 is True instead of False"
        )
    assert made == [1, 2, 2, 2, 3, 4, 4, 4]
