"""Consecutive steps on a device with streams: enqueued, one wait; failures, deadlines, interrupts, memory."""

from __future__ import annotations

import gc
import signal
import threading

import numpy as np
import onnxruntime
import pytest
from onnx.parser import parse_model

import nnadapter as nna
from nnadapter.drivers import registry
from nnadapter.drivers.tensor_copies import TENSORS
from nnadapter.errors import CancelledError, DeadlineExceededError, ExecutionError, FallbackWarning
from tests.c_compiler import compile_acme, needs_compiler
from tests.residing_driver import BEHIND, BREAKS, ENQUEUED, GATE, MOST, STREAMS

HEAD = '<ir_version: 10, opset_import: ["" : 21]>'
CHAIN = f"""{HEAD} g (float[4, 8] x) => (float[4, 8] y) {{
    a = Relu(x) b = Neg(a) c = Abs(b) y = Add(c, a)
}}"""
"""Four segments of one operation."""
FORKED = f"""{HEAD} g (float[4, 8] x) => (float[4, 8] y, float[4, 8] z) {{
    a = Relu(x) b = Neg(a) z = Sin(a) y = Abs(b)
}}"""
"""A fork: the device refuses Sin, which reads the result of its first segment."""
X = np.random.default_rng(3).standard_normal((4, 8)).astype(np.float32)


@pytest.fixture(autouse=True)
def single():
    """Limit segments to one operation; reset the driver before and after."""
    ENQUEUED.clear()
    MOST["operations"] = 1
    yield
    MOST["operations"] = 1000
    for changed in (BREAKS, STREAMS, GATE, ENQUEUED, BEHIND):
        changed.clear()


def expected_of(text, x=X):
    return onnxruntime.InferenceSession(parse_model(text).SerializeToString()).run(None, {"x": x})


def device():
    return registry.open_device("residing")


def used(name="residing"):
    gc.collect()
    TENSORS.free_orphans()
    return registry.open_device(name).memory_statistics().used_bytes


def session_of(text=CHAIN, **options):
    return nna.InferenceSession(parse_model(text), devices="residing", options=options)


def test_consecutive_steps_are_awaited_once():
    with session_of() as session:
        before, memory = device().waits, used()
        for count in range(1, 4):
            np.testing.assert_array_equal(session.run(None, {"x": X})[0], expected_of(CHAIN)[0])
            assert device().waits - before == count
            assert len(session.provenance.steps) == 4 and not session.provenance.fell_back
            assert used() == memory
        borders = session.report().boundaries
        assert borders.enqueued_segments == (0, 1, 2, 3)
        assert [(wait.segment, wait.waiting_segment) for wait in borders.host_waits] == [(3, None)]
        assert "a run waits 1 time for them: for 3 at the end" in str(session.report())
    assert len(ENQUEUED) == 12


def test_all_steps_are_enqueued_before_any_finishes():
    """The device starts only after the last step is enqueued, so an earlier wait would deadlock."""
    GATE.append(gate := threading.Event())
    with session_of() as session:
        runner = threading.Thread(target=session.run, args=(None, {"x": X}))
        runner.start()
        for _ in range(1000):
            if len(ENQUEUED) == 4:
                break
            runner.join(0.01)
        assert len(ENQUEUED) == 4 and runner.is_alive()
        gate.set()
        runner.join(10)
        assert not runner.is_alive()


def test_host_step_waits_only_for_its_inputs():
    with session_of(FORKED) as session:
        before = device().waits
        for found, expected in zip(session.run(None, {"x": X}), expected_of(FORKED), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-6)
        assert device().waits - before <= 2


@pytest.mark.parametrize("when", ["fails", "at the wait"])
@pytest.mark.parametrize("operation", ["RELU", "NEG", "ABS", "ADD"])
def test_failing_step_falls_back_and_later_steps_rerun(operation, when):
    STREAMS.update({"fails"} & {when})
    memory = used()
    with session_of() as session:
        BREAKS.add(operation)
        with pytest.warns(FallbackWarning, match="burnt through"):
            (found,) = session.run(None, {"x": X})
        np.testing.assert_array_equal(found, expected_of(CHAIN)[0])
        failed = [each.device for each in session.provenance.steps]
        at = ["RELU", "NEG", "ABS", "ADD"].index(operation)
        assert failed == ["cpu" if each == at else "residing" for each in range(4)]
        assert "burnt through" in session.provenance.steps[at].failure
        BREAKS.clear()
        np.testing.assert_array_equal(session.run(None, {"x": 2 * X})[0], expected_of(CHAIN, 2 * X)[0])
        assert not session.provenance.fell_back
    del session
    assert used() == memory


def test_nothing_is_enqueued_after_a_concurrent_failure():
    """The device is marked as failing then, so nothing is enqueued although the first step is in flight."""
    with session_of(fallback="allow") as session:

        def fail():
            BREAKS.add("RELU")
            STREAMS.add("fails")
            session.run(None, {"x": X})
            BREAKS.clear()
            STREAMS.clear()

        BEHIND.append(fail)
        GATE.append(gate := threading.Event())
        threading.Timer(0.05, gate.set).start()
        np.testing.assert_array_equal(session.run(None, {"x": 2 * X})[0], expected_of(CHAIN, 2 * X)[0])
        assert len(ENQUEUED) == 1 and not session.provenance.fell_back


def test_error_names_the_step_if_fallback_is_forbidden():
    with session_of(fallback="forbid") as session:
        BREAKS.add("ABS")
        with pytest.raises(ExecutionError, match=r"'residing' failed while it ran segment 2 .*burnt through") as caught:
            session.run(None, {"x": X})
        assert (caught.value.device, caught.value.segment) == ("residing", 2)
        BREAKS.clear()
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], expected_of(CHAIN)[0])


def test_driver_that_refuses_to_enqueue_computes_synchronously():
    STREAMS.add("refused")
    with session_of() as session:
        before = device().waits
        for _ in range(2):
            np.testing.assert_array_equal(session.run(None, {"x": X})[0], expected_of(CHAIN)[0])
        assert device().waits == before and len(session.provenance.transfers) == 2


def test_full_memory_waits_for_enqueued_steps():
    with session_of() as session:
        statistics = device().memory_statistics()
        filler = device().allocate(statistics.total_bytes - statistics.used_bytes - 3 * X.nbytes)
        try:
            np.testing.assert_array_equal(session.run(None, {"x": X})[0], expected_of(CHAIN)[0])
            assert not session.provenance.fell_back
        finally:
            filler.free()


def test_deadline_names_the_step_and_frees_memory():
    memory = used()
    with session_of(deadline_s=0.05) as session, pytest.raises(DeadlineExceededError, match="on 'residing'"):
        GATE.append(gate := threading.Event())
        threading.Timer(0.2, gate.set).start()
        session.run(None, {"x": X})
    del session
    assert used() == memory


def test_interrupted_work_finishes_before_the_next_run(interruptible):
    """The interrupt arrives while the host waits."""
    GATE.append(gate := threading.Event())
    with session_of() as session:
        main = threading.main_thread().ident
        threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            session.run(None, {"x": X})
        held = used()
        GATE.clear()
        threading.Timer(0.1, gate.set).start()
        np.testing.assert_array_equal(session.run(None, {"x": 2 * X})[0], expected_of(CHAIN, 2 * X)[0])
        assert used() < held
    assert not session_is_busy()


def session_is_busy():
    return any(thread.name == "fake_npu stream" and thread.is_alive() for thread in threading.enumerate())


def test_concurrent_runs_leave_no_stream_threads():
    failures = []
    with session_of() as session:

        def work(number):
            try:
                for _ in range(20):
                    np.testing.assert_array_equal(
                        session.run(None, {"x": number * X})[0], expected_of(CHAIN, number * X)[0]
                    )
            except AssertionError as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures and not session_is_busy()


def test_stream_results_equal_run_results():
    with session_of(FORKED) as session:
        feeds = [{"x": number * X} for number in range(1, 6)]
        serial = [session.run(None, feed) for feed in feeds]
        for found, expected in zip(session.stream(feeds), serial, strict=True):
            np.testing.assert_array_equal(found, expected)


def test_resident_outputs_are_complete_after_the_run():
    with session_of() as session:
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", nna.DeviceValue.from_numpy(X, "residing"))
        binding.bind_output("y", "residing")
        before = device().waits
        session.run_with_iobinding(binding)
        assert device().waits == before + 1
        np.testing.assert_array_equal(binding.get_outputs()[0].numpy(), expected_of(CHAIN)[0])


@pytest.fixture
def acme(tmp_path, monkeypatch):
    monkeypatch.setenv("NNADAPTER_DRIVER_PATH", str(compile_acme(tmp_path).parent))
    registry.refresh()
    yield
    registry.refresh()


@pytest.mark.slow
@needs_compiler
def test_streams_of_a_c_driver(acme):
    memory = used("acme_c")
    lines = " ".join(f"t{at + 1} = Conv(t{at}, w{at})" for at in range(3))
    weights = ", ".join(f"float[8, 8, 1, 1] w{at} = {{{', '.join(['0.5', '-1.25'] * 32)}}}" for at in range(3))
    model = parse_model(f"{HEAD} g (float[1, 8, 40, 40] t0) => (float[1, 8, 40, 40] t3) <{weights}> {{ {lines} }}")
    x = np.random.default_rng(0).standard_normal((1, 8, 40, 40)).astype(np.float32)
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"t0": x})
    with nna.InferenceSession(model, devices=("acme_c", {"memory_bytes": 160000})) as session:
        for options in (None, onnxruntime.RunOptions()):
            np.testing.assert_allclose(session.run(None, {"t0": x}, options)[0], expected, rtol=1e-4, atol=1e-4)
            assert [step.device for step in session.provenance.steps] == ["acme_c"] * 2
            assert [way.value for way in session.provenance.transfers] == ["t0", "t3"]
    assert used("acme_c") == memory


def test_terminate_stops_enqueued_steps():
    options = onnxruntime.RunOptions()
    GATE.append(gate := threading.Event())
    with session_of() as session:

        def stop():
            options.terminate = True
            gate.set()

        threading.Timer(0.1, stop).start()
        with pytest.raises(CancelledError, match="its run options stopped it"):
            session.run(None, {"x": X}, options)
        options.terminate = False
        GATE.clear()
        np.testing.assert_array_equal(session.run(None, {"x": X}, options)[0], expected_of(CHAIN)[0])
