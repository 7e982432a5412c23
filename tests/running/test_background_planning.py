from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import weakref
from contextlib import contextmanager

import numpy as np
import onnx.parser
import pytest

import nnadapter as nna
from benchmarks.models.language_models import Sizes, first_feed, language_model
from nnadapter.engine import ModelPlanSource
from nnadapter.errors import ClosedError, DeadlineExceededError, InvalidModelError, InvalidOptionError, NNAdapterError
from tests.drivers.fake_npu.harness import context
from tests.models import CHAIN, HEAD, numbers, parse, run_whole

OPEN = f"{HEAD} g (float[n, 4] x) => (float[n, 4] y) {{ a = Exp(x) b = Softmax(a) y = Neg(b) }}"
CHOOSING = f"""{HEAD} g (float[n, 4] x, bool c) => (float[n, 4] y) {{
    y = If(c) <then_branch = t () => (float[n, 4] p) {{ p = Neg(x) }},
               else_branch = e () => (float[n, 4] q) {{ q = Exp(x) }}>
}}"""
BACKGROUND = nna.Options(background=True)


class Gate:
    """Gate that blocks fake_npu's compilations until it is open, and counts them."""

    def __init__(self):
        self.open, self.entered, self.compiled = threading.Event(), threading.Event(), 0


@pytest.fixture
def gate(monkeypatch):
    kind, gate = type(context()), Gate()
    compile_now = kind.compile

    def compile_then(self, model):
        gate.entered.set()
        assert gate.open.wait(30)
        gate.compiled += 1
        return compile_now(self, model)

    monkeypatch.setattr(kind, "compile", compile_then)
    yield gate
    gate.open.set()
    wait_for(lambda: not making())


def making():
    return [thread for thread in threading.enumerate() if thread.name == "nnadapter: plans"]


def wait_for(is_so):
    end = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.005)


def devices_of(session):
    return [step.device for step in session.provenance.steps]


def run_right(session, model, feed):
    for got, expected in zip(session.run(None, feed), run_whole(model, feed), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    return devices_of(session)


@contextmanager
def background(model, devices="fake_npu", **options):
    with nna.InferenceSession(model, devices=devices, options=nna.Options(background=True, **options)) as session:
        yield session


@pytest.mark.parametrize("devices", ["fake_npu", [("fake_npu", {"memory_bytes": 1 << 20})]])
def test_cpu_runs_until_a_plan_is_ready(gate, devices):
    model = parse(OPEN)
    with background(model, devices) as session:
        for rows in (2, 3, 2):
            assert run_right(session, model, {"x": numbers(rows, 4)}) == ["cpu"]
        assert gate.entered.wait(10) and not gate.compiled
        gate.open.set()
        wait_for(lambda: not making())
        for rows in (2, 3, 5):
            run_right(session, model, {"x": numbers(rows, 4)})
            wait_for(lambda: not making())
            assert run_right(session, model, {"x": numbers(rows, 4)}) == ["fake_npu"]
        assert "runs on the CPU while a plan was made: 3" in " ".join(session.report().notes)


def test_initializer_output_while_planning_in_the_background(gate):
    model = parse(f"{HEAD} g (float[n, 4] x) => (float[n, 4] y, float[2] c) <float[2] c = {{1, 2}}> {{ y = Exp(x) }}")
    with background(model) as session:
        assert run_right(session, model, {"x": numbers(2, 4)}) == ["cpu"]
        gate.open.set()
        wait_for(lambda: not making())
        assert run_right(session, model, {"x": numbers(2, 4)}) == ["fake_npu"]


@pytest.mark.slow
def test_plans_are_made_after_the_main_thread_ends():
    program = """
import threading, time
import numpy as np
import nnadapter as nna
from tests.drivers.fake_npu.harness import context
from tests.models import CHAIN, parse

def serve():
    threading.main_thread().join()
    session = nna.InferenceSession(parse(CHAIN), devices="fake_npu", options=nna.Options(background=True))
    end, device = time.monotonic() + 20, "cpu"
    while device == "cpu" and time.monotonic() < end:
        session.run(None, {"x": np.ones((2, 3), np.float32)})
        device = session.provenance.steps[0].device
    print(device)

threading.Thread(target=serve).start()
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ran.stdout.split() == ["fake_npu"], ran.stderr


def test_static_session_opens_before_its_plan_is_ready(gate):
    model = parse(CHAIN)
    with background(model) as session:
        assert run_right(session, model, {"x": numbers(2, 3)}) == ["cpu"]
        gate.open.set()
        wait_for(lambda: not making())
        assert run_right(session, model, {"x": numbers(2, 3)}) == ["fake_npu"]
        assert gate.compiled == 1


def test_sizes_served_by_a_plan_do_not_wait(gate):
    """A language model has one plan for all lengths, so only its first tokens run on the CPU."""
    sizes = Sizes(layers=1, width=16, heads=2, words=20)
    model = language_model(sizes)
    with background(model) as session:
        gate.open.set()
        session.run(None, first_feed(sizes, (1, 2, 3)))
        wait_for(lambda: not making())
        for words in range(2, 12):
            assert set(run_right(session, model, first_feed(sizes, tuple(range(words))))) == {"fake_npu"}
        assert not making()


def test_modified_feed_does_not_change_the_planned_branch(gate):
    model = parse(CHOOSING)
    with background(model) as session:
        chosen = np.array(True)
        assert run_right(session, model, {"x": numbers(2, 4), "c": chosen}) == ["cpu"]
        chosen[()] = False
        gate.open.set()
        wait_for(lambda: not making())
        assert run_right(session, model, {"x": numbers(2, 4), "c": np.array(True)}) == ["fake_npu"]


def test_each_branch_is_planned_without_retaining_feeds(gate):
    model = parse(CHOOSING)
    with background(model) as session:
        x = numbers(2, 4)
        fed = weakref.ref(x)
        for chosen in (True, False):
            assert run_right(session, model, {"x": x, "c": np.array(chosen)}) == ["cpu"]
        del x
        gc.collect()
        assert fed() is None
        gate.open.set()
        wait_for(lambda: not making())
        for chosen in (True, False):
            assert run_right(session, model, {"x": numbers(2, 4), "c": np.array(chosen)}) == ["fake_npu"]
        assert gate.compiled == 2 and not making()


def test_many_shapes_are_planned_in_the_background(gate, monkeypatch):
    gate.open.set()
    model = parse(OPEN)
    monkeypatch.setattr(ModelPlanSource, "serves", lambda self, compiled, feed: None)
    with background(model, fallback="allow") as session:
        for _ in range(3):
            for rows in range(1, 20):
                run_right(session, model, {"x": numbers(rows, 4)})
            wait_for(lambda: not making())
        for rows in range(1, 20):
            assert run_right(session, model, {"x": numbers(rows, 4)}) == ["fake_npu"]


def test_failed_background_plan_is_made_by_the_run(gate, monkeypatch):
    gate.open.set()
    model = parse(OPEN)

    def fails(self, shapes, chosen):
        raise ValueError("not today")

    with background(model) as session:
        monkeypatch.setattr(ModelPlanSource, "make_ahead", fails)
        assert run_right(session, model, {"x": numbers(2, 4)}) == ["cpu"]
        wait_for(lambda: not making())
        assert run_right(session, model, {"x": numbers(2, 4)}) == ["fake_npu"]


def test_model_unsupported_on_the_cpu_waits_for_planning(gate, monkeypatch):
    gate.open.set()

    def refuses(self):
        raise InvalidModelError("not this one")

    monkeypatch.setattr(ModelPlanSource, "make_cpu_fallback", refuses)
    model = parse(OPEN)
    with background(model) as session:
        assert run_right(session, model, {"x": numbers(2, 4)}) == ["fake_npu"]


def test_concurrent_results_are_right_during_background_planning(gate):
    model, wrong = parse(OPEN), []

    def run(session, seed):
        for rows in (1, 2, 3, 4, 7):
            feed = {"x": numbers(rows, 4, seed=seed)}
            if not np.allclose(session.run(None, feed)[0], run_whole(model, feed)[0], atol=1e-5):
                wrong.append(rows)
            if rows == 2:
                gate.open.set()

    with background(model) as session:
        threads = [threading.Thread(target=run, args=(session, seed)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_closed_session_stops_background_planning(gate):
    model = parse(OPEN)
    with background(model) as session:
        for rows in (2, 3, 4):
            run_right(session, model, {"x": numbers(rows, 4)})
        assert gate.entered.wait(10)
    with pytest.raises(ClosedError):
        session.run(None, {"x": numbers(2, 4)})
    gate.open.set()
    wait_for(lambda: not making())
    assert gate.compiled == 1


def test_unreferenced_session_is_freed_after_background_planning(gate):
    session = nna.InferenceSession(parse(OPEN), devices="fake_npu", options=BACKGROUND)
    session.run(None, {"x": numbers(2, 4)})
    assert gate.entered.wait(10)
    engine = weakref.ref(session._engine)
    gc.disable()
    try:
        del session
        gate.open.set()
        wait_for(lambda: not making())
        assert engine() is None
    finally:
        gc.enable()


def test_forked_process_restarts_background_planning(gate):
    """The forked process lacks the planning thread."""
    model = parse(OPEN)
    with background(model) as session:
        run_right(session, model, {"x": numbers(2, 4)})
        assert gate.entered.wait(10)
        session._engine.source._background.after_fork()
        gate.open.set()
        run_right(session, model, {"x": numbers(2, 4)})
        wait_for(lambda: not making())
        assert run_right(session, model, {"x": numbers(2, 4)}) == ["fake_npu"]


def test_deadline_applies_while_planning_in_the_background(gate):
    text = f"""{HEAD} g (float[n, 4] x) => (float[n, 4] y) {{
        rounds = Constant<value = int64 {{9000000000000}}>()
        go = Constant<value = bool {{1}}>()
        a = Exp(x)
        y = Loop(rounds, go, a) <body = b (int64 i, bool c, float[n, 4] v) => (bool d, float[n, 4] w) {{
            d = Identity(c) w = Neg(v)
        }}>
    }}"""
    with background(parse(text), deadline_s=0.2) as session, pytest.raises(DeadlineExceededError):
        session.run(None, {"x": numbers(2, 4)})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"background": 1}, "True or False"),
        ({"background": True, "policy": "measured"}, "policy 'measured'"),
        ({"background": True, "fallback": "forbid"}, "stage 'compile'"),
        ({"background": True, "fallback": {"run": "forbid"}}, "stage 'run'"),
    ],
)
def test_options_incompatible_with_background_are_refused(options, says):
    with pytest.raises(InvalidOptionError, match=says):
        nna.Options(**options)


def test_compiled_file_refuses_option_background(tmp_path):
    nna.compile(parse(CHAIN), tmp_path / "m.nna", devices="fake_npu")
    with pytest.raises(InvalidOptionError, match="background"):
        nna.InferenceSession(tmp_path / "m.nna", options=BACKGROUND)


def test_compile_and_bench_wait_for_plans(gate, tmp_path):
    gate.open.set()
    model = parse(CHAIN)
    nna.compile(model, tmp_path / "m.nna", devices="fake_npu", options=BACKGROUND)
    report = nna.bench(model, devices="fake_npu", rounds=1, options=BACKGROUND)
    assert report.nodes["fake_npu"] == len(model.graph.node)
    assert gate.compiled == 2 and not making()


def test_cached_plans_are_used_immediately(tmp_path):
    model, feed = parse(CHAIN), {"x": numbers(2, 3)}
    with nna.InferenceSession(model, devices="fake_npu", options=nna.Options(cache_dir=tmp_path)) as session:
        session.run(None, feed)
    with background(model, cache_dir=tmp_path) as session:
        assert run_right(session, model, feed) == ["fake_npu"]
        assert not any("cannot be used" in note for note in session.report().notes)


def test_cpu_session_does_not_plan_in_the_background():
    model = parse(OPEN)
    with background(model, "cpu") as session:
        assert run_right(session, model, {"x": numbers(2, 4)}) == ["cpu"]
    assert not making()


def test_invalid_model_is_refused_at_the_first_run(gate):
    gate.open.set()
    text = f"{HEAD} g (float[2, 3] x, float[4, 5] z) => (float[2, 5] y) {{ y = MatMul(x, z) }}"
    with pytest.raises(NNAdapterError), background(onnx.parser.parse_model(text), fallback="allow") as session:
        session.run(None, {"x": numbers(2, 3), "z": numbers(4, 5)})
