"""Plans at new sizes: segments that differ only in names share a program; similar ones are judged separately."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

import nnadapter as nna
from tests.models import numbers, parse
from tests.planning.test_dynamic_shapes_in_ir import HEAD, agree, session
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
def test_similar_segments_are_judged_separately(binds, bound, counts):
    model = parse(LAYERS)
    with session(model, "trial", only=("ADD", "MUL"), binds=binds) as opened:
        for rows in (2, 4, 5):
            agree(opened, model, {"x": numbers(rows, 3)})
        counts.clear()
        agree(opened, model, {"x": numbers(9, 3)})
    assert counts["admit"] == 4 and counts.get("bind", 0) == bound and counts["compile"] == 4 - bound


def test_size_refusal_applies_to_all_similar_segments():
    model = parse(LAYERS)
    with session(model, "trial", only=("ADD", "MUL"), binds=True, largest=15) as opened:
        for rows in (2, 4, 5, 6, 3, 5):
            agree(opened, model, {"x": numbers(rows, 3)})


@pytest.mark.parametrize("binds", [True, False])
def test_refused_segment_is_not_cloned(binds, counts):
    model = parse(LAYERS)
    with session(model, "trial", only=("ADD", "MUL"), binds=binds, shuns_rows=True) as opened:
        for rows in (2, 3, 5, 7, 6, 1, 4, 7):
            agree(opened, model, {"x": numbers(rows, 3)})
            shunned = sum(rows == first for first in (1, 4, 7, 1))
            assert [step.device for step in opened.provenance.steps].count("trial") == 4 - shunned
    assert counts["shunned"] and "forced" not in counts


def test_segments_equal_except_for_names_share_a_program(counts):
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


def test_steps_with_a_shared_program_are_traced_separately(tmp_path):
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
def test_shared_programs_are_closed_once_with_many_threads(limit, counts):
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
