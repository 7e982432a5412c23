"""Evicted dynamic-shape plans that are made again."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import nnadapter as nna
from tests.models import HEAD, numbers, parse, run_whole
from tests.open_ir_driver import DOINGS, Doings, Gate

RELU = f"{HEAD} g (float[n, 4] x) => (float[n, 4] y) {{ y = Relu (x) }}"
SMALL, LARGE = 3, 20
"""Row counts on both sides of the guard."""


@pytest.fixture
def doings():
    DOINGS.append(Doings())
    yield DOINGS[-1]
    DOINGS.pop()


@pytest.fixture
def session(doings):
    """Yield a session with room for one plan: the plan for large sizes, which replaced that for small ones."""
    options = nna.Options(max_plan_bytes=1, fallback="allow")
    with nna.InferenceSession(parse(RELU), devices="openir", options=options) as session:
        for rows in (1, SMALL, SMALL + 1, LARGE):
            agrees(session, rows)
        yield session


def agrees(session, rows):
    feed = {"x": numbers(rows, 4, seed=rows)}
    np.testing.assert_array_equal(session.run(None, feed)[0], np.maximum(feed["x"], 0))
    assert not session.provenance.fell_back


def test_sizes_far_from_costed_ones_get_another_plan():
    options = nna.Options(policy="latency", fallback="allow")
    with nna.InferenceSession(parse(RELU), devices=("fake_npu", {"clock": "simulated"}), options=options) as session:
        for rows, made in ((3, 1), (4, 2), (5, 2), (300, 3), (4, 3), (301, 3)):
            agrees(session, rows)
            assert session.report().plans.compiled == made


def test_evicted_plan_is_rebuilt_for_concurrent_threads(session, doings):
    gate = Gate()
    agrees(session, SMALL)
    doings.closing = gate
    agrees(session, LARGE)
    with ThreadPoolExecutor(1) as pool:
        again = pool.submit(agrees, session, SMALL)  # evicts the plan for large sizes, whose closing blocks
        assert gate.reached.wait(10)
        agrees(session, SMALL + 1)
        gate.opened.set()
        again.result()


def test_static_plan_replaces_a_dynamic_plan_that_fails(session, doings):
    doings.fails = True
    agrees(session, SMALL)
    made = session.report().plans.compiled
    agrees(session, SMALL)
    assert session.report().plans.compiled == made
    assert session.report().coverage.nodes == 1.0


@pytest.mark.parametrize(("rows", "judged"), [((3, 5, 7), 1), ((1, 5, 7), 2)])
def test_first_dynamic_plan_generalizes_the_static_plan(tmp_path, rows, judged):
    """The first plan is generalized, unless it has a size of 1, which decides more than other sizes."""
    trace = tmp_path / "trace.json"
    with nna.InferenceSession(parse(RELU), devices="openir", options=nna.Options(trace=trace)) as session:
        for count in rows:
            agrees(session, count)
    events = json.loads(trace.read_text())["traceEvents"]
    assert [event["name"] for event in events].count("judge") == judged


CACHE = f"""{HEAD} g (float[n, 4] x, float[p, 4] past) => (float[q, 4] present, float[n, q] y) {{
    present = Concat<axis = 0> (past, x)
    turned = Transpose (present)
    y = MatMul (x, turned)
}}"""


def test_prompts_share_plans_on_onnx_and_ir_devices():
    """A plan for a grown cache excludes an empty one; each prompt would then be planned separately."""
    pytest.importorskip("openvino")
    model = parse(CACHE)
    options = nna.Options(fallback="allow")
    with nna.InferenceSession(model, devices=["openvino", "fake_npu"], options=options) as session:
        for prompt in (7, 5, 7, 6, 9, 8):
            past = np.zeros((0, 4), np.float32)
            for length in (prompt, 1, 1):
                feed = {"x": numbers(length, 4, seed=length), "past": past}
                got, wanted = session.run(None, feed), run_whole(model, feed)
                for one, other in zip(got, wanted, strict=True):
                    np.testing.assert_allclose(one, other, atol=1e-5)
                past = got[0]
        assert session.report().plans.compiled <= 3


def test_nodes_refused_statically_and_dynamically_run_elsewhere(doings):
    """The refusal holds below eight rows; a guard on the rows separates the shapes."""
    text = f"{HEAD} g (float[n, 4] x) => (float[n, 4] y) {{ a = Relu (x)  b = Softmax (a)  y = Relu (b) }}"
    doings.refuses = lambda operation, model: (
        operation.type == "SOFTMAX" and bool(model.operands[operation.inputs[0]].type.dimensions[0] < 8)
    )
    model = parse(text)
    with nna.InferenceSession(model, devices="openir", options=nna.Options(fallback="allow")) as session:
        for rows in (2, 3, 4, 5, 6):
            feed = {"x": numbers(rows, 4, seed=rows)}
            np.testing.assert_allclose(session.run(None, feed)[0], run_whole(model, feed)[0], rtol=1e-6)
        plans = session.report().plans
        assert (plans.compiled, plans.served_shapes_text) == (2, "one plan for all input shapes")
        assert [segment.device for segment in session.report().segments] == ["openir", "cpu", "openir"]
