from __future__ import annotations

import errno
import gc
import os
import signal
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

import nnadapter as nna
from nnadapter.drivers import registry
from nnadapter.drivers.isolation import channels, isolated_device
from nnadapter.engine import plan_devices
from nnadapter.errors import (
    DeadlineExceededError,
    DeviceLostError,
    DeviceNotFoundError,
    DeviceTimeoutError,
    DeviceUnavailableError,
    FallbackWarning,
    InvalidOptionError,
    OutOfMemoryError,
)

MODEL = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
add (float[N, 4] x, float[4] y) => (float[N, 4] z) { a = Mul(x, y) z = Relu(a) }""").SerializeToString()
X, Y = np.asarray([[-1, 2, 3, 4]], np.float32), np.asarray([1, 2, 3, 0.5], np.float32)
Z = np.maximum(X * Y, 0)
ISOLATED = nna.Options(isolate=True)


def faults(*rows):
    return "".join("[[fault]]\n" + "".join(f"{key} = {value!r}\n" for key, value in row.items()) for row in rows)


def opened(device="fake_npu", options=ISOLATED, **more):
    return nna.InferenceSession(MODEL, devices=(device, more), options=options)


def run(session, rows=1):
    (result,) = session.run(None, {"x": np.repeat(X, rows, 0), "y": Y})
    np.testing.assert_array_equal(result, np.repeat(Z, rows, 0))
    return session.provenance.steps[0].device


def wait_for(condition):
    for _ in range(600):
        if condition():
            return
        time.sleep(0.1)
    pytest.fail("it did not come to that within a minute")


def alive(process_id):
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    """Disable the pause before a lost device is tried again."""
    monkeypatch.setattr(plan_devices, "FIRST_PAUSE", 0.0)


@pytest.fixture(scope="module")
def session():
    with opened() as session:
        run(session)
        yield session


@pytest.fixture(scope="module")
def device(session):
    return registry.open_isolated("fake_npu")


def test_device_runs_isolated_and_report_lists_it(session):
    assert run(session) == "fake_npu"
    assert session.report().isolated == ("fake_npu",)
    assert "fake_npu (isolated), cpu" in str(session.report())


def test_shapes_may_change(session):
    assert [run(session, rows) for rows in (1, 3, 1, 2, 3)] == ["fake_npu"] * 5


@pytest.mark.parametrize("is_running", [False, True])
def test_lack_of_descriptors_is_no_device_loss(session, device, monkeypatch, is_running):
    def none_left():
        raise OSError(errno.EMFILE, "Too many open files")

    process, child = device.process_id, device.child()
    child._idle.clear()
    with monkeypatch.context() as patch:
        patch.setattr(channels, "pair", none_left)
        if is_running:
            with pytest.raises(OutOfMemoryError, match="cannot create a channel"):
                device.footprint()
        else:
            with pytest.raises(DeviceUnavailableError, match="did not start.*Too many open files"):
                isolated_device.IsolatedDevice("null")
    assert run(session) == "fake_npu" and device.process_id == process


def test_lost_device_recovers_after_one_run(session, device):
    os.kill(device.process_id, signal.SIGKILL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        assert run(session) == "cpu"
    assert "killed by signal 9" in session.provenance.steps[0].failure
    assert run(session) == "fake_npu"
    assert run(session, 3) == "fake_npu"


def test_many_threads_compute_at_once(session):
    failures = []

    def work(seed):
        random = np.random.default_rng(seed)
        try:
            for _ in range(10):
                run(session, int(random.integers(1, 4)))
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_isolated_and_local_sessions_coexist(session):
    with opened(options=nna.Options(isolate=False)) as other:
        assert run(other) == run(session) == "fake_npu"
        assert other.report().isolated == ()


@pytest.mark.parametrize("way", ["pair", "name", "limits", "environment"])
def test_isolation_by_option_or_environment(session, monkeypatch, way):
    options = {
        "name": nna.Options(isolate=["fake_npu"]),
        "limits": nna.Options(isolate={"fake_npu": {"run": 60}}),
    }.get(way, nna.Options())
    if way == "environment":
        monkeypatch.setenv("NNADAPTER_ISOLATE", "openvino, fake_npu")
    with opened(options=options, **({"isolate": True} if way == "pair" else {})) as other:
        assert other.report().isolated == ("fake_npu",)


@pytest.mark.parametrize("text", ["fake_npi", "yes", "openvino, on"])
def test_unknown_driver_name_is_an_error(monkeypatch, text):
    monkeypatch.setenv("NNADAPTER_ISOLATE", text)
    with pytest.raises(DeviceNotFoundError, match="no driver offers"):
        opened("null", nna.Options())


def test_devices_that_cannot_be_isolated_are_reported():
    with pytest.raises(InvalidOptionError, match="is the fallback of other devices"):
        opened("cpu", nna.Options(), isolate=True)
    with pytest.raises(InvalidOptionError, match="'run'"):
        opened("fake_npu", nna.Options(), isolate={"runs": 1})
    with pytest.raises(InvalidOptionError, match="above 0"):
        opened("fake_npu", nna.Options(), isolate={"run": 0})
    with pytest.raises(InvalidOptionError, match="names of devices"):
        nna.Options(isolate="fake_npu")


def test_an_interrupt_leaves_the_device_usable(session, device, interruptible):
    with opened("faulty:fake_npu", script=faults({"kind": "hang", "phase": "run", "nth": 1})) as hanging:
        process = registry.open_isolated("faulty:fake_npu").process_id
        main = threading.main_thread().ident
        timer = threading.Timer(0.3, signal.pthread_kill, (main, signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            hanging.run(None, {"x": X, "y": Y})
        assert not alive(process)
    assert run(session) == "fake_npu"


@pytest.mark.slow
def test_hang_ends_at_the_limit_and_cpu_runs_the_step():
    script = faults({"kind": "hang", "phase": "run", "nth": 1})
    limits = {"run": 0.3}
    with opened("faulty:fake_npu", nna.Options(fallback="allow"), isolate=limits, script=script) as hanging:
        began = time.monotonic()
        assert run(hanging) == "cpu"
        assert time.monotonic() - began < 6
        assert "within 0.3 s" in hanging.provenance.steps[0].failure
    options = nna.Options(fallback="forbid")
    with (
        opened("faulty:fake_npu", options, isolate=limits, script=script) as hanging,
        pytest.raises(DeviceTimeoutError) as caught,
    ):
        run(hanging)
    assert caught.value.phase == "run" and caught.value.device == "faulty:fake_npu"


@pytest.mark.slow
def test_a_run_ends_at_its_deadline():
    script = faults({"kind": "hang", "phase": "run"})
    options = nna.Options(isolate=True, deadline_s=0.5)
    with opened("faulty:fake_npu", options, script=script) as hanging:
        hanging.prepare({"x": X.shape})
        began = time.monotonic()
        with pytest.raises(DeadlineExceededError):
            run(hanging)
        assert 0.5 <= time.monotonic() - began < 10


@pytest.mark.slow
def test_device_that_keeps_crashing_is_paused(monkeypatch):
    monkeypatch.setattr(isolated_device, "_FREE_LOSSES", 1)
    monkeypatch.setattr(isolated_device, "_FIRST_PAUSE_S", 1.0)
    device = registry.open_isolated("fake_npu")
    context = device.create_context({})
    losses = 0
    for _ in range(20):
        try:
            os.kill(device.process_id, signal.SIGKILL)
            context.profile()
        except DeviceLostError as error:
            losses += 1
            if "is paused for" in str(error):
                break
    assert 2 <= losses < 20
    wait_for(lambda: _is_usable(context))
    context.close()


def _is_usable(context):
    try:
        context.profile()
    except DeviceLostError:
        return False
    return True


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_process_has_its_own_device(session, device):
    assert run(session) == "fake_npu"
    parent_process_id = device.process_id
    process = os.fork()
    if process == 0:
        code = 1
        try:
            signal.alarm(60)
            if run(session) == "fake_npu" and device.process_id != parent_process_id:
                code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    assert device.process_id == parent_process_id
    assert run(session) == "fake_npu"


def test_shared_memory_between_steps_is_not_copied(session, monkeypatch):
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[1, 32768] x) => (float[1, 32768] y) { a = Sin(x) b = Relu(a) c = Mul(b, b) y = Sin(c) }"""
    copied = []
    room = channels._Request._reserve
    monkeypatch.setattr(channels._Request, "_reserve", lambda self, nbytes: copied.append(nbytes) or room(self, nbytes))
    feed = {"x": np.linspace(-3, 3, 32768, dtype=np.float32)[None]}
    contents = onnx.parser.parse_model(text).SerializeToString()
    devices = ("fake_npu", {"switched_off": "Sin"})
    with nna.InferenceSession(contents, devices=devices, options=ISOLATED) as other:
        for _ in range(2):
            (result,) = other.run(None, feed)
            np.testing.assert_allclose(result, np.sin(np.maximum(np.sin(feed["x"]), 0) ** 2), atol=1e-5)
        assert [step.device for step in other.provenance.steps] == ["cpu", "fake_npu", "cpu"]
    assert copied == []


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="there is no other way here")
def test_works_with_an_unnamed_file(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    with opened() as other:
        assert [run(other, rows) for rows in (1, 500)] == ["fake_npu"] * 2


def test_cached_and_compiled_programs_are_shared_with_local_sessions(session, tmp_path):
    plain = nna.Options(cache_dir=tmp_path, isolate=False)
    isolated_device = nna.Options(cache_dir=tmp_path, isolate=True)
    for options in (isolated_device, isolated_device, plain):
        with opened(options=options) as other:
            assert run(other) == "fake_npu"
    file = tmp_path / "compiled"
    nna.compile(MODEL, file, devices="fake_npu", input_shapes={"x": (1, 4)}, options=nna.Options(isolate=True))
    with nna.InferenceSession(str(file), options=nna.Options(isolate=True)) as other:
        assert run(other) == "fake_npu"
    with nna.InferenceSession(str(file), options=nna.Options(isolate=False)) as other:
        assert run(other) == "fake_npu"


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in the way of Linux")
def test_dropped_sessions_close_their_descriptors(session):
    def handles():
        gc.collect()
        return len(list(Path("/proc/self/fd").iterdir()))

    for _ in range(2):
        run(opened())
    wait_for(lambda: handles() > 0)
    initial = handles()
    for _ in range(8):
        run(opened())
    wait_for(lambda: handles() <= initial + 2)


@pytest.mark.slow
def test_the_process_ends_with_its_last_session():
    other = opened("null")
    process = registry.open_isolated("null").process_id
    other.close()
    wait_for(lambda: not alive(process))


def test_session_limits_the_time_to_open(monkeypatch):
    with (
        pytest.warns(FallbackWarning, match=r"did not answer 'open' within 0\.01 s"),
        opened("null", isolate={"open": 0.01}) as other,
    ):
        assert run(other) == "cpu"
    monkeypatch.setattr(isolated_device, "PHASES", {**isolated_device.PHASES, "open": 0.01})
    device = registry.open_isolated("null", 60.0)
    context = device.create_context({}, {"open": 60.0})
    os.kill(device.process_id, signal.SIGKILL)
    wait_for(lambda: _is_usable(context))
    context.close()
