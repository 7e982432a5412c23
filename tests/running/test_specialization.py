"""Specialization for devices without dynamic shapes: sharing between shapes, and refusals."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from itertools import count, permutations

import numpy as np
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nnadapter as nna
from benchmarks.models.language_models import language_model
from nnadapter.errors import FallbackWarning
from tests.interrupting import interrupt
from tests.models import numbers, parse, run_whole
from tests.planning.test_dynamic_shapes import SIZES, grown
from tests.planning.test_dynamic_shapes_in_ir import BROADCAST, HEAD, IMAGES, SHIFTED, SMALL, agree, decoded, session
from tests.trial_driver import COUNTS


@pytest.fixture(autouse=True)
def counts():
    COUNTS.clear()
    return COUNTS


@pytest.mark.slow
def test_language_model_recompiles_only_cache_readers(counts):
    model = language_model(SMALL)
    alone = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    with session(model, "trial", only=("MAT_MUL", "FULLY_CONNECTED", "ADD")) as opened:
        for prompt in ((1, 2, 3), (4, 5)):
            steps = decoded(lambda feed: opened.run(None, feed), SMALL, prompt, 12)
            expected_steps = decoded(lambda feed: alone.run(None, feed), SMALL, prompt, 12)
            for got, expected in zip(steps, expected_steps, strict=True):
                np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
            assert not opened.provenance.fell_back
        segments = len([segment for segment in opened.report().segments if segment.device == "trial"])
        of_cache = 2 * SMALL.layers  # products with queries and with scores
        assert counts["compile"] <= 3 * segments + 2 * 12 * of_cache


def test_fully_supported_language_model_is_one_segment():
    model = language_model(SMALL)
    alone = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    with session(model, "trial") as opened:
        steps = decoded(lambda feed: opened.run(None, feed), SMALL, (1, 2, 3), 6)
        expected_steps = decoded(lambda feed: alone.run(None, feed), SMALL, (1, 2, 3), 6)
        for got, expected in zip(steps, expected_steps, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
        assert len(opened.report().segments) == 1 and opened.report().coverage.nodes == 1.0


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(0, 5)), min_size=2, max_size=6))
def test_results_equal_onnxruntime_in_any_order(orders):
    model = parse(SIZES)
    with session(model, "trial") as opened:
        for rows, length, past in orders:
            agree(opened, model, grown(rows, length, past))


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from([1, 2, 5]), st.booleans(), st.booleans()), min_size=2, max_size=6))
def test_equal_sizes_are_another_guarded_shape_set(orders):
    model = parse(BROADCAST)
    with session(model, "trial") as opened:
        for rows, one, other in orders:
            agree(opened, model, {"x": numbers(1 if one else rows, 4), "w": numbers(1 if other else rows, 4)})


@pytest.mark.parametrize("only", [(), ("CONV_2D",), ("RELU", "MAX_POOL_2D")])
def test_images_of_any_size(only):
    model = parse(IMAGES)
    with session(model, "trial", only=only) as opened:
        for height, width in ((8, 8), (9, 12), (32, 17), (40, 64), (10, 11), (9, 12)):
            agree(opened, model, {"x": numbers(1, 3, height, width)})


def test_shapes_outside_all_guards_get_static_plans():
    model = parse(SHIFTED)
    with session(model, "trial") as opened:
        for rows, columns in ((3, 2), (4, 2), (1, 2), (1, 3), (1, 4), (5, 7), (1, 7), (6, 8)):
            agree(opened, model, {"x": numbers(rows, columns)})


ADDED = f"{HEAD} g (float[n, 4] x) => (float[n, 4] y, float[n, 4] z) {{ a = Neg (x) y = Add (a, x) z = Sin (y) }}"


@pytest.mark.slow
@pytest.mark.parametrize("order", [*permutations([1, 5, 20, 2])])
def test_node_refused_at_a_size_runs_elsewhere(order):
    model = parse(ADDED)
    with session(model, "trial", largest=40, only=("NEG", "ADD")) as opened:
        for rows in (*order, 20, 5):
            agree(opened, model, {"x": numbers(rows, 4)})
            devices = {step.device for step in opened.provenance.steps}
            assert devices == ({"cpu"} if rows * 4 > 40 else {"trial", "cpu"})


def test_size_refusal_is_cached(counts):
    model = parse(ADDED)
    with session(model, "trial", largest=40, only=("NEG", "ADD")) as opened:
        for rows in (1, 2, 20, 3, 20, 2, 20):
            agree(opened, model, {"x": numbers(rows, 4)})
        made = opened.report().plans.compiled
    assert counts["compile"] == 3 and made == 4


def test_compile_failure_warns_and_falls_back():
    model = parse(ADDED)
    with session(model, "trial", options=nna.Options(), fails_on="ADD") as opened, pytest.warns(FallbackWarning):
        for rows in (1, 2, 3):
            feed = {"x": numbers(rows, 4)}
            for got, expected in zip(opened.run(None, feed), run_whole(model, feed), strict=True):
                np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_failing_run_falls_back_to_the_cpu():
    model = parse(ADDED)
    with session(model, "trial", fault="compute") as opened:
        for rows in (1, 2, 3, 2):
            feed = {"x": numbers(rows, 4)}
            for got, expected in zip(opened.run(None, feed), run_whole(model, feed), strict=True):
                np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
            assert opened.provenance.fell_back


MIXED = f"""{HEAD} g (float[n, 4] x, float[m, 4] w) => (float[n, 4] y, float[m, 4] z) {{
    a = Neg (x) b = Sin (a) y = Exp (b)
    c = Neg (w) d = Sin (c) z = Exp (d)
}}"""


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1, 2, 3, 64])
def test_programs_without_plans_are_closed(counts, limit):
    model = parse(MIXED)
    chosen = random.Random(0)
    with session(model, "trial", options=nna.Options(fallback="allow", max_plans=limit), only=("NEG", "EXP")) as opened:
        for _ in range(40):
            agree(opened, model, {"x": numbers(chosen.randint(1, 5), 4), "w": numbers(chosen.randint(1, 5), 4)})
            plans = opened.report().plans
            assert plans.in_cache <= limit
            assert counts["compile"] - counts.get("closed", 0) <= 4 * limit
        held = 1000 * (counts["compile"] - counts.get("closed", 0))
        assert plans.memory_bytes >= held  # and the CPU's share
    assert counts["compile"] == counts["closed"]


def test_interrupts_leak_no_programs(counts):
    model, sizes = parse(MIXED), count(8)
    options = nna.Options(fallback="allow", max_plans=2)
    with session(model, "trial", options=options, only=("NEG", "EXP")) as opened:
        for rows in range(2, 5):
            agree(opened, model, {"x": numbers(rows, 4), "w": numbers(rows, 4)})
        at_most = counts["compile"] - counts["closed"]
        for step in count(1):
            feed = {"x": numbers(rows := next(sizes), 4), "w": numbers(rows, 4)}
            if interrupt(lambda feed=feed: opened.run(None, feed), step, ("nnadapter.engine.specialization",)) is None:
                break
            if not step % 8:  # after interrupts, new plans close the leftovers
                for rows in (next(sizes), next(sizes)):
                    agree(opened, model, {"x": numbers(rows, 4), "w": numbers(rows, 4)})
                assert counts["compile"] - counts["closed"] <= at_most, step
        assert step > 100
    assert counts["compile"] == counts["closed"]


@pytest.mark.sweep
def test_growing_cache_does_not_evict_recurring_shapes(counts):
    model, back = parse(SIZES), grown(2, 3, 4)
    with session(model, "trial", options=nna.Options(fallback="allow", max_plans=8)) as opened:
        agree(opened, model, back)
        agree(opened, model, back)
        for step in range(200):
            agree(opened, model, grown(1, 1, step + 1))
            if step % 20 == 19:
                before = counts["compile"]
                agree(opened, model, back)
                assert counts["compile"] == before
        plans = opened.report().plans
    assert (
        plans.in_cache <= 8
        and "sets of guarded shapes" in plans.served_shapes_text
        and "one more when" not in plans.served_shapes_text.partition("then")[2]
    )
    assert counts["compile"] == counts["closed"] <= 204


def test_concurrent_threads_with_different_sizes(counts):
    model = parse(MIXED)
    with session(model, "trial", options=nna.Options(fallback="allow", max_plans=4), only=("NEG", "EXP")) as opened:

        def work(seed):
            chosen = random.Random(seed)
            for _ in range(20):
                agree(opened, model, {"x": numbers(chosen.randint(1, 5), 4), "w": numbers(chosen.randint(1, 5), 4)})

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
    assert counts["compile"] == counts["closed"]
