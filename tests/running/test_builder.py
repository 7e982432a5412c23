"""Plans at new sizes: segments that differ only in names share a program; similar ones are judged separately."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

import nnadapter as nna
from tests.models import numbers, parse
from tests.planning.test_open_ir import HEAD, agree, session
from tests.trace_checks import lanes_of
from tests.trial_driver import COUNTS

LAYERS = f"""{HEAD} layers (float[n, 3] x) => (float[n, 3] y)
    <float[3] p = {{1, 2, 3}}, float[3] q = {{4, 5, 6}}, float[3] r = {{7, 8, 9}}, float[3] s = {{1, 3, 5}}> {{
    a = Add (x, p) b = Sin (a) c = Mul (b, q) d = Sin (c) e = Add (d, r) f = Sin (e) g = Add (f, s) y = Sin (g)
}}"""
"""Three similar additions on the device, and a product."""
SAME = f"""{HEAD} g (float[n, 3] x) => (float[n, 3] y) <float[3] p = {{1, 2, 3}}> {{
    a = Add (x, p) b = Sin (a) e = Add (b, b) f = Sin (e) h = Add (f, f) k = Sin (h) l = Add (k, x) y = Sin (l)
}}"""
"""An addition of a constant, two of a value to itself, and one of two values."""


@pytest.fixture(autouse=True)
def counts():
    COUNTS.clear()
    return COUNTS


@pytest.mark.parametrize(("binds", "bound"), [(True, 2), (False, 0)])
def test_each_of_those_that_are_alike_is_asked_about(binds, bound, counts):
    model = parse(LAYERS)
    with session(model, "trial", only=("ADD", "MUL"), binds=binds) as opened:
        for rows in (2, 4, 5):
            agree(opened, model, {"x": numbers(rows, 3)})
        counts.clear()
        agree(opened, model, {"x": numbers(9, 3)})
    assert counts["admit"] == 4 and counts.get("bind", 0) == bound and counts["compile"] == 4 - bound


def test_a_size_that_is_refused_is_refused_for_all_that_are_alike():
    model = parse(LAYERS)
    with session(model, "trial", only=("ADD", "MUL"), binds=True, largest=15) as opened:
        for rows in (2, 4, 5, 6, 3, 5):
            agree(opened, model, {"x": numbers(rows, 3)})


@pytest.mark.parametrize("binds", [True, False])
def test_what_is_refused_for_its_contents_at_some_size_is_not_made_of_one_that_is_alike(binds, counts):
    model = parse(LAYERS)
    with session(model, "trial", only=("ADD", "MUL"), binds=binds, shuns_rows=True) as opened:
        for rows in (2, 3, 5, 7, 6, 1, 4, 7):
            agree(opened, model, {"x": numbers(rows, 3)})
            shunned = sum(rows == first for first in (1, 4, 7, 1))
            assert [step.device for step in opened.provenance.steps].count("trial") == 4 - shunned
    assert counts["shunned"] and "forced" not in counts


def test_segments_that_are_the_same_but_for_names_have_one_program(counts):
    model = parse(SAME)
    with session(model, "trial", only=("ADD",)) as opened:
        for rows in (2, 4, 5):
            agree(opened, model, {"x": numbers(rows, 3)})
        counts.clear()
        for _ in range(2):
            agree(opened, model, {"x": numbers(7, 3)})
            assert [step.device for step in opened.provenance.steps].count("trial") == 4
        assert counts["admit"] == counts["compile"] == 3 and counts["execution"] == 4
        counts.clear()
    assert counts["closed"] == 4 + 3 * 3, "each once: four of the plan made first, three at each sizes"


def test_each_step_is_traced_as_its_own_segment_whoever_has_its_program(tmp_path):
    model, path = parse(SAME), tmp_path / "trace.json"
    options = nna.Options(fallback="allow", trace=path)
    with session(model, "trial", options=options, only=("ADD",)) as opened:
        for rows in (2, 4, 5):
            agree(opened, model, {"x": numbers(rows, 3)})
        segments = {step.segment for step in opened.provenance.steps if step.device == "trial"}
    ran = [each["args"]["segment"] for each in lanes_of(path)["trial"] if each.get("cat") == "step"]
    assert len(segments) == 4 and sorted(ran) == sorted([*segments] * 3)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1, 2, 64])
def test_programs_that_segments_have_together_serve_many_threads_and_are_closed_once(limit, counts):
    model = parse(SAME)
    options = nna.Options(fallback="allow", max_plans=limit)
    with session(model, "trial", options=options, only=("ADD",)) as opened:

        def work(seed):
            chosen = random.Random(seed)
            for _ in range(15):
                agree(opened, model, {"x": numbers(chosen.randrange(1, 6), 3)})

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
        assert opened.report().plans.in_cache <= limit
    assert counts["closed"] == counts["compile"]
