"""Parallel steps of two devices: only if it pays, with the results of a sequential run."""

from __future__ import annotations

import signal
import threading

import numpy as np
import pytest
from onnx.parser import parse_model

import nnadapter as nna
from nnadapter.errors import CancelledError, DeadlineExceededError, ExecutionError, FallbackWarning
from tests import latency_driver

HEAD = '<ir_version: 10, opset_import: ["" : 21]>'
JOINED = f"""{HEAD} g (float[8, 8] x) => (float[8, 8] y) {{
    a = Relu(x) b = Neg(x) y = Sub(a, b)
}}"""
CHAIN = f"{HEAD} g (float[8, 8] x) => (float[8, 8] y) {{ a = Relu(x) y = Neg(a) }}"
HEADS = f"{HEAD} g (float[8, 8] x) => (float[8, 8] y, float[8, 8] z) {{ y = Relu(x) z = Neg(x) }}"
X = np.random.default_rng(1).standard_normal((8, 8)).astype(np.float32)


def session_of(text=JOINED, first=20.0, second=20.0, stops=False, **options):
    devices = [
        ("latency:1", {"operation_ms": first, "only": ["RELU"], "stops": stops}),
        ("latency:2", {"operation_ms": second, "only": ["NEG"], "stops": stops}),
    ]
    return nna.InferenceSession(parse_model(text), devices=devices, options=options)


def expected_all(text, x=X):
    return nna.InferenceSession(parse_model(text), devices="cpu").run(None, {"x": x})


def expected_of(text, x=X):
    return expected_all(text, x)[0]


@pytest.fixture(autouse=True)
def counted():
    latency_driver.OVERLAPS["most"] = 0


@pytest.mark.parametrize("text", [JOINED, HEADS])
def test_two_branches_run_in_parallel(text):
    with session_of(text) as session:
        for number in (1, 2):
            for found, expected in zip(
                session.run(None, {"x": number * X}), expected_all(text, number * X), strict=True
            ):
                np.testing.assert_array_equal(found, expected)
        assert latency_driver.OVERLAPS["most"] == 2
        segments = [step.segment for step in session.provenance.steps]
        assert segments == sorted(segments) and not session.provenance.fell_back
        borders = session.report().boundaries
        assert borders.threaded_segments == (0,) and [wait.segment for wait in borders.host_waits] == [0]
        assert "1 segment is run in threads: 0" in str(session.report())


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [(CHAIN, 20.0), (JOINED, 0.01), (JOINED.replace("float[8, 8] x", "float[n, 8] x"), 0.01)],
)
def test_cheap_steps_run_sequentially(text, milliseconds):
    before = threading.active_count()
    with session_of(text, milliseconds, milliseconds) as session:
        session.run(None, {"x": X})
        assert latency_driver.OVERLAPS["most"] == 1 and threading.active_count() == before


def test_devices_on_host_processors_run_sequentially():
    text = f"{HEAD} g (float[512, 512] x) => (float[512, 512] y, float[512, 512] z) {{ y = MatMul(x, x) z = Exp(x) }}"
    before = threading.active_count()
    with nna.InferenceSession(parse_model(text), devices=["null", ("fake_npu", {"switched_off": "Exp"})]) as session:
        session.run(None, {"x": np.ones((512, 512), np.float32)})
        assert threading.active_count() <= before


def test_failing_parallel_step_falls_back():
    latency_driver.BUSY["2"].acquire()  # makes the device report that it is busy, and fail
    try:
        with session_of() as session:
            with pytest.warns(FallbackWarning, match="latency:2"):
                (found,) = session.run(None, {"x": X})
            np.testing.assert_array_equal(found, expected_of(JOINED))
            assert [step.device for step in session.provenance.steps].count("cpu") == 2
    finally:
        latency_driver.BUSY["2"].release()


@pytest.mark.parametrize("device", ["1", "2"])
def test_error_names_the_step_if_fallback_is_forbidden(device):
    devices = [
        ("latency:1", {"operation_ms": 20.0, "only": ["RELU", "SUB"]}),
        ("latency:2", {"operation_ms": 20.0, "only": ["NEG"]}),
    ]
    latency_driver.BUSY[device].acquire()
    try:
        session = nna.InferenceSession(parse_model(JOINED), devices=devices, options={"fallback": "forbid"})
        with session, pytest.raises(ExecutionError, match=f"'latency:{device}' failed") as caught:
            session.run(None, {"x": X})
        assert caught.value.device == f"latency:{device}"
    finally:
        latency_driver.BUSY[device].release()


def test_deadline_and_terminate_stop_both_parallel_steps():
    hurried = session_of(stops=True, first=5000.0, second=5000.0, deadline_s=0.5)
    with hurried, pytest.raises(DeadlineExceededError, match="while segment"):
        hurried.run(None, {"x": X})
    with session_of(stops=True, first=5000.0, second=5000.0) as session:
        future = session.submit(None, {"x": X})
        threading.Timer(0.1, future.cancel).start()
        with pytest.raises(CancelledError):
            future.result(10)


def test_session_is_usable_after_interrupt_of_parallel_steps(interruptible):
    with session_of(first=300.0, second=300.0) as session:
        main = threading.main_thread().ident
        threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            session.run(None, {"x": X})
        assert not any(lock.locked() for lock in latency_driver.BUSY.values())
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], expected_of(JOINED))


def test_concurrent_runs_leave_no_threads():
    before = threading.active_count()
    failures = []
    with session_of() as session:

        def work(number):
            try:
                for _ in range(3):
                    np.testing.assert_array_equal(
                        session.run(None, {"x": number * X})[0], expected_of(JOINED, number * X)
                    )
            except AssertionError as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures and threading.active_count() == before


def test_stream_results_equal_run_results():
    with session_of() as session:
        feeds = [{"x": number * X} for number in range(1, 6)]
        for feed, (found,) in zip(feeds, session.stream(feeds), strict=True):
            np.testing.assert_array_equal(found, expected_of(JOINED, feed["x"]))
