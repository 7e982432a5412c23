"""Contents of a session's trace; sessions without a trace skip its code."""

from __future__ import annotations

import gc
import json
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import onnxruntime
import pytest

import nnadapter as nna
from nnadapter.drivers import Execution, Program, Threading
from nnadapter.drivers.failures import NamedCalls
from nnadapter.drivers.registry import device_lock
from nnadapter.engine import ExecutionPool, Turns, pools_of, tracing
from nnadapter.errors import CancelledError, InvalidInputError, InvalidOptionError
from nnadapter.traces import SILENT, Recorder
from tests.latency_driver import LatencyExecution
from tests.models import CHAIN, SANDWICH, numbers, parse
from tests.residing_driver import ENQUEUED, MOST
from tests.trace_checks import lanes_of, named, within

OFF = ("fake_npu", {"switched_off": "Sin"})
X = numbers(3, 4)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trace.json"


def traced(path, runs=2, devices=OFF, model=SANDWICH, feed=None, **options):
    """Run a session; return the lanes of its trace."""
    with nna.InferenceSession(parse(model), devices=devices, options=nna.Options(trace=path, **options)) as session:
        for _ in range(runs):
            session.run(None, feed or {"x": X})
    return lanes_of(path)


def test_lanes_of_a_plan_over_two_devices(path):
    lanes = traced(path)
    assert list(lanes) == ["session", "fake_npu", "cpu"]
    runs = named(lanes["session"], "run")
    assert [run["args"]["run"] for run in runs] == [1, 2]
    for device, count in (("fake_npu", 2), ("cpu", 1)):
        steps = [event for event in lanes[device] if event["cat"] == "step"]
        assert len(steps) == 2 * count
        assert all(any(within(step, run) for run in runs) for step in steps)
        assert len(named(lanes[device], "compile segment ")) == count
        assert named(lanes[device], "verdicts")[0]["args"] == {"asked": 5, "taken": 5 if device == "cpu" else 4}
    for phase in (
        "load the model",
        "prepare the model",
        "make a plan",
        "judge",
        "specialize and convert",
        "place and cut",
    ):
        assert named(lanes["session"], phase), phase


def test_step_event_lists_nodes_shapes_and_bytes(path):
    lanes = traced(path, runs=1)
    (step,) = [event for event in lanes["cpu"] if event["cat"] == "step"]
    facts = step["args"]
    assert (facts["segment"], facts["node_count"], len(facts["nodes"])) == (1, 1, 1)
    assert (facts["inputs"], facts["input_bytes"]) == (["float32[3, 4]"], 48)
    assert (facts["outputs"], facts["output_bytes"]) == (["float32[3, 4]"], 48)
    assert step["name"].startswith("segment 1: ")


def test_fake_npu_instructions_are_within_its_steps(path):
    lane = traced(path)["fake_npu"]
    instructions, steps = ([event for event in lane if event["cat"] == kind] for kind in ("engine", "step"))
    assert len(instructions) >= len(steps)
    assert all(any(within(each, step) for step in steps) for each in instructions)
    assert instructions[0]["args"]["inputs"] == ["float32[3, 4]"]


@pytest.mark.parametrize("devices", [OFF, "cpu"])
def test_onnxruntime_events_are_within_steps_of_their_segments(path, devices):
    lane = traced(path, runs=3, devices=devices)["cpu"]
    steps, runs = [event for event in lane if event["cat"] == "step"], named(lane, "model_run")
    assert len(steps) == len(runs) == 3
    assert all(within(run, step) for run, step in zip(runs, steps, strict=True))
    kernels = [event for event in lane if event["args"].get("op_name") == "Sin"]
    assert len(kernels) == 3 and all(within(kernel, run) for kernel, run in zip(kernels, runs, strict=True))
    (loading,) = [event for event in lane if event["cat"] == "compile" and "execution" not in event["name"]]
    assert within(named(lane, "session_initialization")[0], loading)


def test_only_sequential_runs_share_trace_rows(path):
    barrier = threading.Barrier(2)

    def run(session):
        barrier.wait(60)
        for _ in range(30):
            session.run(None, {"x": numbers(64, 4)})

    with nna.InferenceSession(parse(SANDWICH), devices=OFF, options=nna.Options(trace=path)) as session:
        for _ in range(3):
            thread = threading.Thread(target=session.run, args=(None, {"x": X}))
            thread.start()
            thread.join()
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(run, [session] * 2))
    lanes = lanes_of(path)
    assert set(lanes) <= {"session", "session (2)", "fake_npu", "fake_npu (2)", "cpu", "cpu (2)"}
    assert sum(len(named(lanes.get(name, []), "run")) for name in ("session", "session (2)")) == 63


@pytest.mark.parametrize("fault", ["compute", "compile"])
def test_fallback_event_gives_the_reason(path, fault):
    lanes = traced(path, devices=("trial", {"fault": fault}), model=CHAIN, feed={"x": numbers(2, 3)}, fallback="allow")
    marks = named(lanes["trial"], "fall back")
    assert len(marks) == (2 if fault == "compute" else 1)
    mark = marks[0]
    assert mark["ph"] == "i" and mark["args"]["segment"] == 0
    assert ("hung up" if fault == "compute" else "compile") in mark["args"]["reason"]
    assert [event for event in lanes["cpu"] if event["cat"] == "step"]
    failed = [event for event in lanes["trial"] if "error" in event["args"]]
    assert len(failed) == (2 if fault == "compute" else 1)
    assert [run["args"].get("fell_back") for run in named(lanes["session"], "run")] == [fault == "compute"] * 2


def test_transfer_events_match_provenance(path):
    with nna.InferenceSession(parse(SANDWICH), devices=OFF, options=nna.Options(trace=path)) as session:
        session.run(None, {"x": X})
        first = session.provenance.transfers
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", nna.DeviceValue.from_numpy(X, "fake_npu"))
        binding.bind_output("y", "fake_npu")
        session.run_with_iobinding(binding)
        told = (*first, *session.provenance.transfers)
    lanes = lanes_of(path)
    assert len(named(lanes["session"], "run")) == 2
    events = [event for event in lanes["fake_npu"] if event["cat"] == "transfer"]
    shown = [(event["name"], event["args"]["value"], event["args"]["bytes"]) for event in events]
    assert shown == [(f"{each.source} to {each.target}", each.value, each.nbytes) for each in told] and told


def test_binding_runs_on_the_cpu_are_no_fallback(path):
    with nna.InferenceSession(parse(SANDWICH), devices="cpu", options=nna.Options(trace=path)) as session:
        binding = session.io_binding()
        binding.bind_cpu_input("x", X)
        binding.bind_output("y")
        for _ in range(2):
            session.run_with_iobinding(binding)
    runs = named(lanes_of(path)["session"], "run")
    assert [(run["args"]["run"], run["args"]["fell_back"]) for run in runs] == [(1, False), (2, False)]


def test_failed_and_cancelled_runs_are_recorded(path):
    stop = onnxruntime.RunOptions()
    stop.terminate = True
    with nna.InferenceSession(parse(SANDWICH), devices=OFF, options=nna.Options(trace=path)) as session:
        with pytest.raises(InvalidInputError):
            session.run(None, {"y": X})
        with pytest.raises(CancelledError):
            session.run(None, {"x": X}, stop)
    session_lane = lanes_of(path)["session"]
    assert "are missing" in named(session_lane, "run (failed)")[0]["args"]["error"]
    assert named(session_lane, "run (cancelled)")[0]["args"]["error"]


def test_trace_does_not_change_results(path):
    for devices in (OFF, "cpu", "null", ("fake_npu", {"switched_off": "Sin,Cos,Relu,Neg,Add"})):
        results = []
        for trace in (None, path):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", nna.errors.FallbackWarning)
                options = nna.Options(trace=trace)
                with nna.InferenceSession(parse(SANDWICH), devices=devices, options=options) as session:
                    results.append([session.run(None, {"x": X})[0] for _ in range(3)])
        np.testing.assert_array_equal(*results)


def test_waits_for_a_plan_are_recorded(path):
    barrier = threading.Barrier(4)

    def run(session):
        for size in (3, 4, 5):
            barrier.wait(60)
            session.run(None, {"x": numbers(size, 4)})

    session = nna.InferenceSession(parse(SANDWICH), devices=OFF, options=nna.Options(trace=path))
    with session, ThreadPoolExecutor(4) as pool:
        list(pool.map(run, [session] * 4))
    events = [event for lane in lanes_of(path).values() for event in lane]
    assert 1 <= len(named(events, "make a plan")) <= 3
    assert all(event["cat"] == "wait" for event in named(events, "wait for a plan"))


def test_stream_waits_for_a_device_are_recorded(path):
    slow = ("latency:0", {"only": ["RELU"], "operation_ms": 5.0})  # so that later runs arrive while it computes
    with nna.InferenceSession(parse(SANDWICH), devices=slow, options=nna.Options(trace=path)) as session:
        assert len(list(session.stream(({"x": numbers(256, 4)} for _ in range(10)), depth=3))) == 10
    events = [event for lane in lanes_of(path).values() for event in lane]
    assert named(events, "wait for its turn") and len([each for each in events if each["name"] == "run"]) == 10


@pytest.fixture
def in_step(monkeypatch):
    """Make the runs of a stream reach latency:0 and latency:1 in the order of their feeds.

    Return a generator of eight feeds, which yields a feed when latency:0 computes the feed before it.
    """
    began = {device: [threading.Event() for _ in range(8)] for device in ("0", "1")}
    counts, asked, compute, take = {"0": 0, "1": 0}, threading.Event(), LatencyExecution.compute, Turns.take

    def compute_in_step(execution, inputs):
        at = counts[execution.device]
        counts[execution.device] += 1  # a device computes one thing at a time
        began[execution.device][at].set()
        if execution.device == "0":
            assert asked.wait(60)  # the second run waits for this device
            assert at == 0 or began["1"][at - 1].wait(60)  # otherwise this run could overtake the previous one
        return compute(execution, inputs)

    def take_and_tell(*arguments):
        asked.set()
        return take(*arguments)

    def feeds():
        for seed in range(8):
            assert seed == 0 or began["0"][seed - 1].wait(60)
            yield {"x": numbers(8, 4, seed=seed)}

    monkeypatch.setattr(LatencyExecution, "compute", compute_in_step)
    monkeypatch.setattr(Turns, "take", take_and_tell)
    return feeds


def test_stream_steps_do_not_overlap_on_one_device(path, in_step):
    devices = (("latency:0", {"only": ["RELU"], "operation_ms": 0.0}), ("latency:1", {"operation_ms": 0.0}))
    with nna.InferenceSession(parse(SANDWICH), devices=devices, options=nna.Options(trace=path)) as session:
        assert len(list(session.stream(in_step(), depth=3))) == 8
    rows = lanes_of(path)
    lanes = {name: [event for row in rows if row.split(" (")[0] == name for event in rows[row]] for name in rows}
    runs = sorted(named(lanes["session"], "run"), key=lambda run: run["args"]["run"])
    assert [run["args"]["run"] for run in runs] == list(range(1, 9))
    steps = {name: [each for each in lanes[name] if each["cat"] == "step"] for name in ("latency", "latency:1")}
    for of_device in steps.values():
        of_device.sort(key=lambda step: step["ts"])
        assert all(before["ts"] + before["dur"] <= after["ts"] for before, after in pairwise(of_device))
    for run, *pair in zip(runs, *steps.values(), strict=True):  # each belongs to the run whose turn it was
        assert all(within(step, run) for step in pair) and pair[0]["ts"] + pair[0]["dur"] <= pair[1]["ts"]
    waits = [each for name in steps for each in named(lanes[name], "wait for its turn")]
    assert waits and all(any(within(wait, run) for run in runs) for wait in waits)


def test_failing_stream_item_is_recorded_with_its_error(path):
    feeds = [{"x": numbers(8, 4)}, {"x": numbers(8, 5)}, {"x": numbers(8, 4)}]
    with nna.InferenceSession(parse(SANDWICH), devices=OFF, options=nna.Options(trace=path)) as session:
        results = session.stream(iter(feeds), depth=2)
        next(results)
        with pytest.raises(InvalidInputError):
            next(results)
        next(results)
    runs = [event for row, events in lanes_of(path).items() if row.startswith("session") for event in events]
    assert len(named(runs, "run (failed)")) == 1 and len([each for each in runs if each["name"] == "run"]) == 2


def test_run_beyond_its_deadline_is_recorded_as_cancelled(path):
    devices, options = ("fake_npu", {"switched_off": "Sin"}), nna.Options(trace=path, deadline_s=1e-9)
    session = nna.InferenceSession(parse(SANDWICH), devices=devices, options=options)
    with session, pytest.raises(nna.errors.DeadlineExceededError):
        session.run(None, {"x": X})
    assert "took longer than" in named(lanes_of(path)["session"], "run (cancelled)")[0]["args"]["error"]


class Slow(Program, Execution):
    """Program that blocks until released."""

    def __init__(self):
        self.computing, self.let = threading.Event(), threading.Event()

    def create_execution(self):
        return self

    def compute(self, inputs):
        self.computing.set()
        self.let.wait(60)
        return inputs


def test_waits_for_a_device_are_recorded(path):
    recorder, program = Recorder(path), Slow()
    pool = pools_of(recorder, Threading.SERIAL, NamedCalls("slow device", 0, ["a"]))(program)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(pool.compute, [X])
        program.computing.wait(60)
        second = threads.submit(pool.compute, [X])
        while len(pool._executions.users) < 2:
            time.sleep(0.01)
        time.sleep(0.05)  # it has an execution, and waits for the device
        program.let.set()
        assert first.result() is not None and second.result() is not None
    recorder.finish()
    rows = lanes_of(path)
    (wait,) = [event for row in rows.values() for event in row if event["cat"] == "wait"]
    assert wait["name"] == "wait for the device"
    first, second = sorted((event for row in rows.values() for event in row if event["cat"] == "step"), key=starts)
    assert first["ts"] <= wait["ts"] <= first["ts"] + first["dur"] <= wait["ts"] + wait["dur"] <= second["ts"]


def test_programs_are_specialized_under_the_device_lock(path):
    """Sizes are set at the same moment as without a trace."""
    lock, held = device_lock("sized device"), []

    class Sized(Slow):
        def specialize(self, sizes):
            held.append(lock.locked())
            return self

    program = Sized()
    program.let.set()
    for trace in (SILENT, Recorder(path)):
        pool = pools_of(trace, Threading.SERIAL, NamedCalls("sized device", 0, ["a"]))(program)
        assert pool.compute([X], None, [3]) is not None
    assert held == [True, True] and not lock.locked()


def starts(event):
    return event["ts"]


def test_tracing_wrappers_forward_all_driver_methods():
    for name, interface in (("_TracedProgram", Program), ("_TracedExecution", Execution)):
        written, traced = {each for each in vars(interface) if not each.startswith("_")}, getattr(tracing, name)
        assert not [each for each in written if getattr(traced, each) is getattr(interface, each)]


def test_programs_are_not_wrapped_without_a_trace():
    with nna.InferenceSession(parse(SANDWICH), devices=OFF) as session:
        session.run(None, {"x": X})
        engine = session._engine
        pools = [bound.pool for bound in engine.source.plans.newest.plan.steps]
    assert engine._recorder is None and all(type(pool) is ExecutionPool for pool in pools)
    assert not any(type(pool.program).__name__ == "_TracedProgram" for pool in pools)


def test_number_of_inner_engine_events_is_bounded(path):
    with nna.InferenceSession(parse(SANDWICH), devices=OFF, options=nna.Options(trace=path, max_plans=2)) as session:
        recorder = session._engine._recorder
        recorder._foreign = 49_950  # close to the limit of ONNX Runtime's events
        for size in range(1, 40):
            session.run(None, {"x": numbers(size, 4)})
    lanes = lanes_of(path)
    lane = lanes["cpu"]
    assert len(named(lane, "model_run")) < 39 and named(lanes["session"], "no more events of inner engines")
    assert len([event for event in lane if event["cat"] == "step"]) == 39


@pytest.mark.parametrize("devices", [OFF, ("fake_npu", {"switched_off": "Relu,Neg"})])
def test_dropped_events_are_counted(path, devices, monkeypatch):
    def engine_events():
        lanes = traced(path, runs=30, devices=devices)
        dropped = json.loads(path.read_text())["otherData"]["dropped_events"]
        return sum(event["cat"] == "engine" for events in lanes.values() for event in events), dropped

    every, none = engine_events()
    monkeypatch.setattr("nnadapter.traces.recorder._MOST_FOREIGN", 40)
    kept, dropped = engine_events()
    assert none == 0 and kept < every / 2
    # ONNX Runtime also records events that are no nodes, at session creation and around each run.
    assert 0.8 * (every - kept) <= dropped <= 1.2 * (every - kept)


def test_unwritable_trace_path_is_refused(tmp_path):
    for wrong in (tmp_path, tmp_path / "gone" / "trace.json"):
        with pytest.raises(InvalidOptionError, match="cannot be written"):
            nna.InferenceSession(parse(SANDWICH), devices=OFF, options=nna.Options(trace=wrong))
    with pytest.raises(InvalidOptionError, match="option 'trace' must be the path of a file to write, got 3"):
        nna.Options(trace=3)


def test_trace_is_written_when_session_is_garbage_collected(path):
    for devices in (OFF, "cpu"):
        session = nna.InferenceSession(parse(SANDWICH), devices=devices, options=nna.Options(trace=path))
        session.run(None, {"x": X})
        del session
        gc.collect()
        assert named(lanes_of(path)["cpu"], "model_run")
        path.unlink()


def test_trace_of_a_failed_session_creation_is_written(path):
    with pytest.raises(nna.errors.NNAdapterError):
        nna.InferenceSession(b"no model", devices=OFF, options=nna.Options(trace=path))
    assert named(lanes_of(path)["session"], "load the model (failed)")


def test_partition_report_is_traced(path):
    nna.partition_report(parse(SANDWICH), OFF, {"x": (3, 4)}, nna.Options(trace=path))
    assert named(lanes_of(path)["session"], "place and cut")


def test_comparison_traces_the_device_session(path):
    nna.compare(parse(SANDWICH), "fake_npu", {"x": X}, options=nna.Options(trace=path), layers=True)
    assert named(lanes_of(path)["session"], "run")


def test_policy_measured_is_traced(path, tmp_path, monkeypatch):
    monkeypatch.setenv("NNADAPTER_CACHE_DIR", str(tmp_path))
    lanes = traced(path, policy="measured")
    assert named(lanes["session"], "make a plan") and json.loads(path.read_text())


def test_enqueued_steps_are_recorded_at_device_times(path):
    """Sequential device times are shown, although the host enqueued all and waited once."""
    head = '<ir_version: 10, opset_import: ["" : 21]>'
    model = f"{head} g (float[3, 4] x) => (float[3, 4] c) {{ a = Relu(x) b = Neg(a) c = Abs(b) }}"
    MOST["operations"] = 1
    try:
        lanes = traced(path, runs=2, devices="residing", model=model)
    finally:
        MOST["operations"] = 1000
        ENQUEUED.clear()
    events = [each for name, row in lanes.items() if name.startswith("residing") for each in row]
    steps = sorted((each for each in events if each["cat"] == "step"), key=lambda each: each["ts"])
    assert [each["args"]["segment"] for each in steps] == [0, 1, 2, 0, 1, 2]
    for first, second in pairwise(steps):
        assert first["ts"] + first["dur"] <= second["ts"] + 1e-3
    assert [each["name"] for each in events if each["cat"] == "wait"] == ["wait for segment 2"] * 2
