from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from threading import Event

import numpy as np
import pytest

from nnadapter.drivers.isolation import IsolatedDevice, child_process, start
from nnadapter.errors import (
    DeviceLostError,
    DeviceNotFoundError,
    DeviceTimeoutError,
    IncompatibleProgramError,
    InvalidOptionError,
)
from nnadapter.ir import DataType, ModelBuilder, OperandType
from nnadapter.session import taking_ir

X = np.asarray([[-1.0, 0.5]], np.float32)


def model(type_="RELU"):
    builder = ModelBuilder()
    x = builder.add_input("x", OperandType(DataType.FLOAT32, X.shape))
    w = builder.add_constant("w", np.asarray([0.5, 1.0], np.float32))
    return builder.finish(builder.add_operation("ADD", (*builder.add_operation(type_, [x], {}), w), {}))


@pytest.mark.slow
@pytest.mark.parametrize("opened", ["reference", "cpu"], indirect=True)
def test_onnx_models_keep_their_weights(opened):
    builder = ModelBuilder()
    x = builder.add_input("x", OperandType(DataType.FLOAT32, (1, 256)))
    w = builder.add_constant("w", np.full((256, 256), 0.5, np.float32))
    large = builder.finish(builder.add_operation("FULLY_CONNECTED", (x, w)))
    context = taking_ir(opened.capability, opened.create_context({}))[1]
    execution = context.compile(large).create_execution()
    np.testing.assert_array_equal(execution.compute([np.ones((1, 256), np.float32)])[0], np.full((1, 256), 128))


@pytest.fixture
def opened(request):
    device = IsolatedDevice(getattr(request, "param", "fake_npu"))
    yield device
    device.close()


def compute(device, options, type_="RELU"):
    context = device.create_context(options)
    program = context.compile(model(type_))
    return program.create_execution().compute([X])


def test_close_during_start_ends_the_process(monkeypatch):
    is_there, started = Event(), []

    def closed_meanwhile(message):
        started.append(start(message))
        assert is_there.wait(10)
        living.end("somebody closed it", on_purpose=True)
        return started[0]

    monkeypatch.setattr(child_process, "start", closed_meanwhile)
    living = child_process.Child("fake_npu", 60.0, lambda _: None)
    is_there.set()
    with pytest.raises(DeviceLostError, match="somebody closed it"):
        living.wait_until_open()
    assert started[0].process.wait(10) == -signal.SIGKILL


def test_verdicts_programs_and_serialization_work(opened):
    context = opened.create_context({"precision": "float32"})
    assert all(context.supported(model())) and context.admit(model()).verdict
    program = context.compile(model())
    (result,) = program.create_execution().compute([X])
    np.testing.assert_array_equal(result, [[0.5, 1.5]])
    (deserialized,) = context.deserialize(program.serialize()).create_execution().compute([X])
    np.testing.assert_array_equal(deserialized, result)


def test_errors_keep_their_type(opened):
    with pytest.raises(InvalidOptionError, match="did you mean 'threads'"):
        opened.create_context({"thread": 1})
    with pytest.raises(IncompatibleProgramError):
        opened.create_context({}).deserialize(b"nothing")
    with pytest.raises(DeviceNotFoundError, match="no driver offers"):
        IsolatedDevice("no_such_device")


def test_results_of_consecutive_runs_are_separate(opened):
    execution = opened.create_context({}).compile(model()).create_execution()
    first, second = opened.compute([(execution, [X]), (execution, [X + 1])])
    np.testing.assert_array_equal(first.results[0], [[0.5, 1.5]])
    np.testing.assert_array_equal(second.results[0], [[0.5, 2.5]])
    assert first.changed_inputs == ()


def test_current_folder_is_not_imported(tmp_path, monkeypatch):
    (tmp_path / "pickle.py").write_text("raise ImportError")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder])
    with closing(IsolatedDevice("null")) as device:
        assert device.capability


@pytest.mark.parametrize("opened", ["lying"], indirect=True)
def test_a_crash_is_an_error(opened):
    with pytest.raises(DeviceLostError, match="ended during 'compute', with exit code 3"):
        compute(opened, {"lie": "crashes"}, "TANH")
    assert opened.loss_reason
    np.testing.assert_array_equal(compute(opened, {"lie": "none"})[0], [[0.5, 1.5]])
    assert not opened.loss_reason


def test_a_hang_is_an_error():
    device = IsolatedDevice("lying", time_limit_s=1.0)
    process = device.process_id
    with pytest.raises(DeviceTimeoutError, match="did not answer 'compute' within 1 s"):
        compute(device, {"lie": "hangs"}, "TANH")
    assert not alive(process)
    device.close()


def test_a_killed_process_is_an_error(opened):
    context = opened.create_context({})
    os.kill(opened.process_id, signal.SIGKILL)
    with pytest.raises(DeviceLostError, match="killed by signal 9"):
        context.compile(model())


def test_the_process_ends_with_its_host():
    script = "from nnadapter.drivers.isolation.isolated_device import IsolatedDevice as D"
    script += "; print(D('null').process_id, flush=True)"
    script += "; import os; os._exit(0)"
    host = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    for _ in range(100):
        if not alive(int(host.stdout)):
            return
        time.sleep(0.1)
    pytest.fail("the process outlives its host")


def alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True
