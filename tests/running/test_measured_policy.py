"""Policy `measured`: the timed candidates and the conditions."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import onnx.numpy_helper
import onnx.parser
import onnxruntime
import pytest

import nnadapter as nna
from nnadapter.costs import Stopwatch
from nnadapter.drivers.onnxruntime import open_session, pool_permit
from nnadapter.engine import BLOCK, BLOCKS, MOST_AGAIN, Compiler, FixedSizesError, Measurer, PastChoices, TimedPlacement
from nnadapter.planning import Planner, Setting, open_setting, partition_dynamic, prepare_for
from partition.by_cost.pricing import Origin, OriginKind, all_on
from tests import metered_driver
from tests.models import numbers
from tests.watching import watched

DEVICE = ("fake_npu", {"clock": "simulated", "switched_off": "Sin"})


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NNADAPTER_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def stack():
    metered_driver.STATE.update(metered_driver.NEW)
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def one_pool():
    """Leave one thread pool free; record which sessions got one: those of entire models (they spin) and others."""
    gc.collect()
    permits = list(iter(pool_permit, None))
    permits.pop()
    with watched(open_session, lambda given, _: (given["spins"], given["has_pool"])) as opened:
        yield opened
    permits.clear()


@pytest.mark.slow
def test_each_candidate_is_timed_with_its_thread_pool(one_pool):
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 20]>
    g (float[1, 64, 64, 64] x) => (float[1, 64, 64, 64] y) {
        a = Conv <pads = [1, 1, 1, 1]> (x, w)
        b = Sin (a)
        y = Conv <pads = [1, 1, 1, 1]> (b, w)
    }""")
    weights = np.random.default_rng(1).random((64, 64, 3, 3), np.float32) - 0.5
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    cheapest = nna.partition_report(model, DEVICE, options={"policy": "latency"}).cost.candidates[0].name
    assert cheapest != "all on cpu"  # so it was not first by itself
    with nna.InferenceSession(model, devices=DEVICE, options=nna.Options(policy="measured")) as session:
        session.run(None, {"x": numbers(1, 64, 64, 64)})
        names = {each.name for each in session.report().cost.candidates}
    assert names >= {"all on cpu", "everything supported"}
    # each candidate has the threads that it would have without the others
    assert set(one_pool) == {(True, True), (False, True)}


def test_choice_measured_without_thread_pools_is_not_stored(stack):
    """All thread pools are in use; later sessions may get some."""
    gc.collect()
    permits = list(iter(pool_permit, None))
    measured = Measured(stack)
    assert "thread pools" in measured.choose().chosen
    assert measured.past.recall(measured.judgment) == (None, "")
    permits.clear()
    assert "not stored" not in measured.choose().chosen


def test_small_cpu_steps_need_no_thread_pool(stack):
    gc.collect()
    permits = list(iter(pool_permit, None))
    permits.pop()
    chosen = Measured(stack, ("metered", {"off": "SIN"}), text=LITTLE).choose()
    permits.clear()
    assert [str(each.origin) for each in chosen.timed] == ["all on cpu", "everything supported"]
    assert "not stored" not in chosen.chosen


LITTLE = """<ir_version: 10, opset_import: ["" : 20]>
g (float[512, 512] x) => (float[1, 1] y) {
    a = ReduceMean (x)
    b = Sin (a)
    c = Tanh (b)
    d = Sin (c)
    y = Tanh (d)
}"""
SMALL = """<ir_version: 10, opset_import: ["" : 20]>
g (float[512, 512] x) => (float[512, 512] y) { y = Tanh (x) }"""
FEED = {"x": numbers(512, 512)}
MEASURED = nna.Options(policy="measured", fallback="allow")


class Measured:
    """Devices and a model as in a session; only the metered device's computations advance the clock."""

    def __init__(self, stack, devices="metered", session_options=None, text=None):
        setting = open_setting(devices, MEASURED)
        stack.callback(setting.close)
        self.planner = Planner(prepare_for(onnx.parser.parse_model(text or SMALL), setting), setting)
        self.judgment = self.planner.judge({"x": (512, 512)})
        self.past = PastChoices(setting, session_options)
        busy = metered_driver.now
        watch = Stopwatch(clock=metered_driver.now, busy=busy, sleep=lambda _: None)
        self.measurer = Measurer(Compiler(setting), session_options, watch)

    def choose(self):
        """Return the choice, closed."""
        compiled = self.measurer.choose(self.planner, self.judgment, FEED, made_up=False)
        compiled.close()
        return compiled

    def keep(self, seconds, rival_seconds):
        """Store a measurement in which everything supported is on the device and beats the CPU."""
        origins = (Origin(OriginKind.EVERYTHING_SUPPORTED), all_on("cpu"))
        timed = [
            TimedPlacement(origin=origin, predicted=None, measured=each)
            for origin, each in zip(origins, (seconds, rival_seconds), strict=True)
        ]
        by_order = Setting(self.planner_setting.devices)
        plan = Planner(prepare_for(onnx.parser.parse_model(SMALL), by_order), by_order).settle(self.judgment).plan
        assert [step.device for step in plan.steps] == ["fake_npu"]
        assert self.past.keep(self.judgment, plan, timed) == ""

    @property
    def planner_setting(self):
        return self.measurer._compiler.setting


def test_choice_confirmed_by_two_measurements_is_stored(stack):
    first = Measured(stack).choose()
    assert [str(each.origin) for each in first.timed] == ["all on cpu", "everything supported"]
    assert first.timed[0].measured == 0.0 < first.timed[1].measured
    assert first.chosen == "measured here with the input of the first run"
    again = Measured(stack).choose()
    assert again.chosen == "measured in an earlier session"
    assert [each.measured for each in again.timed] == [each.measured for each in first.timed]


def test_stored_choices_depend_on_thread_count(stack):
    Measured(stack).choose()
    two = onnxruntime.SessionOptions()
    two.intra_op_num_threads = 2
    assert Measured(stack, session_options=two).choose().chosen == "measured here with the input of the first run"
    assert Measured(stack).choose().chosen == "measured in an earlier session"


def test_stored_choices_depend_on_isolation(stack):
    """Isolated segments take longer: a run is a message and its reply."""
    here, apart = (Measured(stack, ("null", {"isolate": isolated})) for isolated in (False, True))
    assert here.past.key(here.judgment) != apart.past.key(apart.judgment)


def test_contradicted_choice_is_measured_again_a_few_times(stack):
    measured = Measured(stack)
    for times in range(MOST_AGAIN + 1):
        compiled = measured.choose()
        assert compiled.chosen.count("again, since runs took") == times
        assert (compiled.watch is None) == (times == MOST_AGAIN)
        if compiled.watch is not None:
            measured.measurer.contradicted(compiled, compiled.watch)
            assert measured.past.recall(measured.judgment) == (None, "")
    assert measured.past.recall(measured.judgment)[0] is not None


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [1e3, 1e-9], ids=["measured on a busy machine", "another was faster"])
def test_wrong_stored_choice_is_corrected_by_later_runs(stack, seconds):
    Measured(stack, "fake_npu").keep(seconds, 2 * seconds)
    with nna.InferenceSession(onnx.parser.parse_model(SMALL), devices="fake_npu", options=MEASURED) as session:
        session.run(None, FEED)
        assert session.report().cost.note == "Measured in an earlier session."
        for _ in range(BLOCK * BLOCKS - 1):
            session.run(None, FEED)
            assert session.provenance.steps[0].device == "fake_npu"
        session.run(None, FEED)
        report = session.report()
        assert "again, since runs took" in report.cost.note
        assert report.cost.seconds == report.cost.candidates[0].measured_seconds not in (seconds, 2 * seconds)
        assert session.provenance.steps[0].device == report.segments[0].device


def test_runs_as_fast_as_measured_keep_the_plan(stack):
    Measured(stack, "fake_npu").keep(1e-9, 1e3)  # an unbeatable measurement
    with nna.InferenceSession(onnx.parser.parse_model(SMALL), devices="fake_npu", options=MEASURED) as session:
        for _ in range(BLOCK * (BLOCKS + 1)):
            session.run(None, FEED)
        assert session.report().plans.compiled == 1


@pytest.mark.parametrize(("rival_seconds", "is_left_open"), [(1e-9, False), (1e3, True)])
def test_dynamic_plan_is_used_if_it_stays_faster(stack, rival_seconds, is_left_open):
    setting = open_setting("fake_npu", MEASURED)
    stack.callback(setting.close)
    text, shapes = SMALL.replace("[512, 512]", "[n, 4]"), {"x": (3, 4)}
    planner, compiler = Planner(prepare_for(onnx.parser.parse_model(text), setting), setting), Compiler(setting)
    fixed = compiler.compile(planner, planner.judge(shapes))
    origins = (Origin(OriginKind.EVERYTHING_SUPPORTED), all_on("cpu"))
    timed = tuple(
        TimedPlacement(origin=origin, predicted=None, measured=seconds)
        for origin, seconds in zip(origins, (rival_seconds / 2, rival_seconds), strict=True)
    )
    fastest = replace(fixed, timed=timed, chosen="measured")
    fixed.close()
    compiled = compiler.compile_dynamic(fixed.partitioning, partition_dynamic(fixed.partitioning))
    measurer = Measurer(compiler, None, Stopwatch(sleep=lambda _: None, turn_seconds=0.0))
    if is_left_open:
        made = measurer.check_dynamic(compiled, fastest, shapes, {"x": numbers(3, 4)})
        assert (made.timed, made.watch) == (timed, None)
        assert made.chosen == "measured; other sizes are not measured"
        made.close()
    else:
        with pytest.raises(FixedSizesError, match=r"with dynamic shapes, another one 1e-06 ms with static ones"):
            measurer.check_dynamic(compiled, fastest, shapes, {"x": numbers(3, 4)})


def test_first_measurement_applies_to_similar_shapes():
    """The second plan has dynamic shapes, and nothing is measured again."""
    model = onnx.parser.parse_model(SMALL.replace("[512, 512]", "[n, 512]"))
    with nna.InferenceSession(model, devices="fake_npu", options=MEASURED) as session:
        for rows in (512, 400, 300, 512, 200):
            x = numbers(rows, 512)
            np.testing.assert_allclose(session.run(None, {"x": x})[0], np.tanh(x), rtol=1e-5, atol=1e-5)
        report = session.report()
        assert report.plans.compiled == 2
        assert report.cost.note.startswith("Measured here with the input of the first run")


@pytest.mark.slow
def test_contradicted_plan_is_replaced_under_concurrent_runs(stack):
    Measured(stack, "fake_npu").keep(1e3, 2e3)
    model = onnx.parser.parse_model(SMALL)
    with nna.InferenceSession(model, devices="fake_npu", options=MEASURED) as session, ThreadPoolExecutor(4) as pool:
        expected = session.run(None, FEED)[0]
        for result in pool.map(lambda _: session.run(None, FEED)[0], range(8 * BLOCK * BLOCKS)):
            np.testing.assert_allclose(result, expected, rtol=1e-5)
