"""Runs stopped by their caller or by a deadline."""

from __future__ import annotations

import threading
import time

import numpy as np
import onnxruntime
import pytest

import nnadapter as nna
from nnadapter.drivers import Control
from nnadapter.engine import Deadlines, RunControl, Turns
from nnadapter.errors import CancelledError, DeadlineExceededError, InvalidOptionError
from nnadapter.ir import DataType, ModelBuilder, OperandType
from tests.drivers.fake_npu.harness import context
from tests.models import CHAIN, HEAD, numbers, parse

LONG = 30_000.0
"""Milliseconds that no test waits out."""
X = {"x": numbers(2, 3)}


def session_on(*devices, **options):
    return nna.InferenceSession(parse(CHAIN), devices=list(devices), options=nna.Options(**options))


def test_deadline_is_checked_between_steps():
    slow = ("latency", {"only": ["RELU"], "operation_ms": 600.0})
    with session_on(slow, "trial", deadline_s=0.3) as session, pytest.raises(DeadlineExceededError) as caught:
        session.run(None, X)
    assert (caught.value.device, caught.value.segment) == ("trial", 1)
    assert "ended before segment 1 ran on 'trial', because it took longer than 0.3 s" in str(caught.value)


def test_deadline_stops_a_running_segment():
    slow = ("latency", {"operation_ms": LONG, "stops": True})
    with session_on(slow, deadline_s=0.5) as session, pytest.raises(DeadlineExceededError) as caught:
        session.run(None, X)
    assert caught.value.device == "latency"
    assert "while segment 0 ran on 'latency'" in str(caught.value)


@pytest.mark.parametrize("usual", [None, 60])
def test_run_options_override_the_deadline(usual):
    options, slow = onnxruntime.RunOptions(), ("latency", {"operation_ms": LONG, "stops": True})
    options.add_run_config_entry("nnadapter.deadline_s", "0.05")
    with session_on(slow, deadline_s=usual) as session:
        with pytest.raises(
            DeadlineExceededError, match=r"longer than 0\.05 s.*'nnadapter.deadline_s' of its run options"
        ):
            session.run(None, X, options)
        options.add_run_config_entry("nnadapter.deadline_s", "soon")
        with pytest.raises(InvalidOptionError, match="a positive number of seconds, got 'soon'"):
            session.run(None, X, options)


def test_run_deadline_applies_to_a_cpu_session():
    model = parse(f"""{HEAD} g (int64 n) => (float y) <float s = {{1}}> {{
        c = Constant<value = bool {{1}}>()
        y = Loop(n, c, s) <body = b (int64 i, bool g, float a) => (bool h, float d) {{ h = Identity(g) d = Add(a, a) }}>
    }}""")
    options = onnxruntime.RunOptions()
    options.add_run_config_entry("nnadapter.deadline_s", "0.05")
    with nna.InferenceSession(model, devices="cpu") as session:
        assert session.run(None, {"n": np.asarray(2)}, options) == [4.0]
        with pytest.raises(DeadlineExceededError):
            session.run(None, {"n": np.asarray(2**40)}, options)


def test_finished_run_in_time_returns_results():
    with session_on(("latency", {"operation_ms": 200.0}), deadline_s=0.3) as session:
        assert session.run(None, X)
        assert not session.provenance.fell_back


def test_deadline_does_not_change_results():
    with session_on("trial", deadline_s=60) as session, session_on("trial") as other:
        for _ in range(3):
            assert np.array_equal(session.run(None, X)[0], other.run(None, X)[0])


def run_bound(session, feed):
    binding = session.io_binding()
    for name, array in feed.items():
        binding.bind_cpu_input(name, array)
    binding.bind_output(session.get_outputs()[0].name)
    session.run_with_iobinding(binding)


def run_values(session, feed):
    session.run_with_ort_values(None, {name: nna.DeviceValue.from_numpy(array) for name, array in feed.items()})


@pytest.mark.slow
@pytest.mark.parametrize("run", [lambda session, feed: session.run(None, feed), run_bound, run_values])
def test_deadline_stops_onnxruntime_between_nodes(run):
    """Many short products: ONNX Runtime checks between nodes."""
    lines = "\n".join(f"t{index + 1} = MatMul(t{index}, t{index})" for index in range(2000))
    model = parse(f"{HEAD} g (float[300, 300] t0) => (float[300, 300] t2000) {{ {lines} }}")
    feed = {"t0": np.zeros((300, 300), np.float32)}
    with nna.InferenceSession(model, devices="cpu", options={"deadline_s": 0.3}) as session:
        with pytest.raises(DeadlineExceededError, match=r"ended early, because it took longer than 0\.3 s") as caught:
            run(session, feed)
        assert caught.value.device == "cpu"


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan"), True, "1"])
def test_invalid_deadlines_are_refused(seconds):
    with pytest.raises(InvalidOptionError, match="deadline_s"):
        nna.Options(deadline_s=seconds)


def test_terminate_stops_a_running_run():
    options = onnxruntime.RunOptions()
    with session_on(("latency", {"operation_ms": LONG, "stops": True})) as session:
        timer = threading.Timer(0.05, setattr, (options, "terminate", True))
        timer.start()
        with pytest.raises(CancelledError, match="while segment 0 ran on 'latency', because its run options"):
            session.run(None, X, options)
        timer.join()
        assert options.terminate


def test_deadline_does_not_set_the_callers_terminate_flag():
    options = onnxruntime.RunOptions()
    slow = ("latency", {"operation_ms": LONG, "stops": True})
    with session_on(slow, deadline_s=0.3) as session, pytest.raises(DeadlineExceededError):
        session.run(None, X, options)
    assert not options.terminate


PRODUCTS = "\n".join(f"t{index + 1} = MatMul(t{index}, t{index})" for index in range(400))
SQUARE = {"t0": np.zeros((600, 600), np.float32)}


@pytest.mark.parametrize(("deadline_s", "kind"), [(0.15, DeadlineExceededError), (None, CancelledError)])
def test_stop_during_cpu_substitute_is_reported(deadline_s, kind):
    model = parse(f"{HEAD} g (float[600, 600] t0) => (float[600, 600] t400) {{ {PRODUCTS} }}")
    device = ("trial", {"fault": "compute"})
    with nna.InferenceSession(
        model, devices=device, options={"deadline_s": deadline_s, "fallback": "allow"}
    ) as session:
        options = onnxruntime.RunOptions()
        stop_soon(options, deadline_s)
        with pytest.raises(CancelledError, match="while segment 0 ran on 'cpu'") as caught:
            session.run(None, SQUARE, options)
    assert type(caught.value) is kind
    assert (caught.value.device, caught.value.segment) == ("cpu", 0)


@pytest.mark.slow
@pytest.mark.parametrize(("deadline_s", "kind"), [(0.15, DeadlineExceededError), (None, CancelledError)])
def test_stop_during_full_cpu_fallback_is_reported(deadline_s, kind):
    """The planned shape of `p` is wrong, so the run falls back to the CPU for the entire model."""
    model = parse(f"""<ir_version: 10, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[N, 600] x, float[600, 600] t) => (float[600, 600] t400) {{
            p = com.microsoft.Trilu(x)
            q = Neg(p)
            total = ReduceSum <keepdims = 0> (q)
            t0 = Add(total, t)
            {PRODUCTS}
        }}""")
    infer = lambda types, attributes: OperandType(DataType.FLOAT32, (2, 600))  # noqa: E731
    kernel = nna.register_kernel("fake_npu", "Trilu", np.negative, domain="com.microsoft", infer=infer)
    rules = nna.Rules(pins=(nna.Pin(device="cpu", op_type="Trilu"), nna.Pin(device="cpu", op_type="MatMul")))
    given = nna.Options(deadline_s=deadline_s, fallback="allow", rules=rules)
    feed = {"x": np.zeros((1, 600), np.float32), "t": SQUARE["t0"]}
    try:
        with nna.InferenceSession(model, devices="fake_npu", options=given) as session:
            session.prepare({"x": (1, 600), "t": (600, 600)})
            for _ in range(2):
                options = onnxruntime.RunOptions()
                stop_soon(options, deadline_s)
                with pytest.raises(CancelledError) as caught:
                    session.run(None, feed, options)
                assert type(caught.value) is kind
                assert caught.value.device == "cpu"
    finally:
        nna.unregister_kernel(kernel)


def stop_soon(options, deadline_s):
    """Set `terminate` on the run options soon, unless there is a deadline."""
    if deadline_s is None:
        threading.Timer(0.15, setattr, (options, "terminate", True)).start()


@pytest.mark.parametrize(("deadlines", "is_held"), [(Deadlines(3600.0), False), (None, True)])
def test_stopping_spares_runs_with_the_same_options(deadlines, is_held):
    options = onnxruntime.RunOptions()
    options.logid = "a run"
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    one, other = RunControl(has_holder=is_held), RunControl(has_holder=is_held)
    given, others = one.begin(options, deadlines), other.begin(options, deadlines)
    assert (given.logid, given.get_run_config_entry("memory.enable_memory_arena_shrinkage")) == ("a run", "cpu:0")
    one.stop()
    assert one.is_over
    assert given.terminate
    assert not (other.is_over or others.terminate or options.terminate)
    options.terminate = True
    while not others.terminate:
        time.sleep(0.001)
    assert other.is_over
    for each in (one, other):
        each.end()
    if deadlines is not None:
        deadlines.close()


def test_futures_are_cancellable_before_and_during_the_run():
    with session_on(("latency", {"operation_ms": LONG, "stops": True})) as session:
        running = [session.submit(None, X) for _ in range(8)]
        while not running[0].running():
            time.sleep(0.001)
        assert [future.cancel() for future in reversed(running)].count(False) >= 1
        with pytest.raises(CancelledError, match="its caller stopped it"):
            running[0].result()
        assert running[0].provenance is None


def test_unrequested_cancellation_by_a_driver_is_a_failure():
    with session_on(("trial", {"fault": "compute_cancelled"}), fallback="allow", deadline_s=60) as session:
        session.run(None, X)
        assert session.provenance.fell_back


def test_fake_npu_stops_between_instructions():
    builder = ModelBuilder()
    x = builder.add_input("x", OperandType(DataType.FLOAT32, (4, 4)))
    for _ in range(5):
        (x,) = builder.add_operation("MAT_MUL", (x, x))
    execution = context().compile(builder.finish([x])).create_execution()
    asked = []

    def cancelled():
        asked.append(1)
        return len(asked) > 3

    ones = np.ones((4, 4), np.float32)
    with pytest.raises(CancelledError, match="before instruction 3"):
        execution.compute_within([ones], Control(cancelled=cancelled))
    (result,) = execution.compute_within([ones], Control(cancelled=lambda: False))
    assert np.array_equal(result, execution.compute([ones])[0])


@pytest.mark.sweep
def test_openvino_stops_during_inference():
    pytest.importorskip("openvino")
    lines = "\n".join(f"t{index + 1} = MatMul(t{index}, x)" for index in range(200))
    model = parse(f"{HEAD} g (float[800, 800] x) => (float[800, 800] y) {{ t0 = Relu(x) {lines} y = Relu(t200) }}")
    feed = {"x": np.zeros((800, 800), np.float32)}
    late, in_time = (
        nna.InferenceSession(model, devices="openvino:CPU", options={"deadline_s": seconds}) for seconds in (0.3, 60)
    )
    with late, pytest.raises(DeadlineExceededError, match="while segment 0 ran on"):
        late.run(None, feed)
    with in_time:
        assert not in_time.run(None, feed)[0].any()


@pytest.mark.slow
def test_deadline_excludes_time_queued_for_a_device():
    turns, deadlines = Turns(), Deadlines(1.0)
    first, control = RunControl(turns, 0), RunControl(turns, 1)
    first.before("a", shared=True)
    given = control.begin(None, deadlines)
    began = time.monotonic()
    thread = threading.Thread(target=control.before, args=("a",), kwargs={"shared": True}, daemon=True)
    thread.start()
    while time.monotonic() < began + 1.2:
        time.sleep(0.01)
    first.end()
    thread.join(30)
    assert not (control.is_over or given.terminate)
    while not control.is_over:
        time.sleep(0.001)
    while not given.terminate:
        time.sleep(0.001)
    control.end()
    deadlines.close()
    assert turns.take_free("a")


def test_stopped_run_does_not_queue_for_a_device():
    turns = Turns()
    first, control = RunControl(turns, 0), RunControl(turns, 1)
    first.before("a", shared=True)
    thread = threading.Thread(target=control.before, args=("a",), kwargs={"shared": True}, daemon=True)
    thread.start()
    control.stop()
    thread.join(30)
    assert not thread.is_alive()
    control.end()
    first.end()
    assert turns.take_free("a")


def test_deadline_stops_only_unfinished_runs():
    told = []
    deadlines = Deadlines(0.02)
    deadlines.watch(late := lambda: told.append("late"))
    deadlines.watch(done := lambda: told.append("done"))
    deadlines.forget(done)
    while not told:
        time.sleep(0.001)
    deadlines.forget(late)
    while any(each.name == "nnadapter deadlines" for each in threading.enumerate()):
        time.sleep(0.001)
    assert told == ["late"]


def test_closing_ends_the_deadline_thread():
    deadlines = Deadlines(3600.0)
    deadlines.watch(lambda: None)
    deadlines.close()
    deadlines.close()
    while any(each.name == "nnadapter deadlines" for each in threading.enumerate()):
        time.sleep(0.001)
