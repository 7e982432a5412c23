"""Copies between host and device memory when drivers fail."""

from __future__ import annotations

import numpy as np
import pytest

import nnadapter as nna
from nnadapter.drivers.fake_npu import FakeNpuDevice, FakeNpuMemory
from nnadapter.drivers.tensor_copies import Copies
from nnadapter.errors import DeviceLostError, ExecutionError
from tests.models import HEAD, parse

X = np.asarray([-1, 2, 3], np.float32)


def broken(error):
    def work(*_):
        raise error

    return work


def on_device():
    return Copies(None, {"fake_npu": Copies(X).on("fake_npu")})


@pytest.mark.parametrize("call", ["allocate", "copy_in"])
def test_driver_errors_of_copy_in_are_translated(call, monkeypatch):
    monkeypatch.setattr(FakeNpuDevice if call == "allocate" else FakeNpuMemory, call, broken(OSError("no bus")))
    with pytest.raises(ExecutionError, match=f"{call} of device 'fake_npu' failed: OSError: no bus") as raised:
        Copies(X).on("fake_npu")
    assert (raised.value.device, raised.value.phase) == ("fake_npu", "run")


def test_driver_errors_of_copy_out_are_translated(monkeypatch):
    copies = on_device()
    monkeypatch.setattr(FakeNpuMemory, "copy_out", broken(OSError("no bus")))
    with pytest.raises(ExecutionError, match="copy_out of device 'fake_npu' failed: OSError: no bus"):
        copies.host()


def test_our_errors_keep_their_type_and_name_the_device(monkeypatch):
    copies = on_device()
    monkeypatch.setattr(FakeNpuMemory, "copy_out", broken(DeviceLostError("gone")))
    with pytest.raises(DeviceLostError, match="gone") as raised:
        copies.own_array()
    assert raised.value.device == "fake_npu"


@pytest.mark.slow
def test_values_and_bindings_translate_driver_errors(monkeypatch):
    model = parse(f"{HEAD} g (float[3] x) => (float[3] y) {{ y = Relu(x) }}")
    value = nna.DeviceValue.from_numpy(X, "fake_npu")
    with nna.InferenceSession(model, devices="fake_npu") as session:
        binding = session.io_binding()
        binding.bind_cpu_input("x", X)
        binding.bind_output("y", "fake_npu")
        session.run_with_iobinding(binding)
        monkeypatch.setattr(FakeNpuMemory, "copy_out", broken(OSError("no bus")))
        for read in (binding.copy_outputs_to_cpu, value.numpy):
            with pytest.raises(ExecutionError, match="no bus"):
                read()
