"""The backend as ONNX's interface has it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx.backend.base import Backend, BackendRep

import nnadapter as nna
from nnadapter.errors import DeviceNotFoundError, InvalidInputError
from tests.models import CHAIN, numbers, parse, run_whole

X = numbers(2, 3)


def test_module_and_class_are_backends():
    assert issubclass(nna.backend.Backend, Backend)
    assert isinstance(nna.backend.prepare(parse(CHAIN)), BackendRep)
    assert nna.backend.is_compatible(parse(CHAIN))


@pytest.mark.parametrize(
    ("device", "used"),
    [
        ("CPU", "cpu"),
        ("cpu", "cpu"),
        ("fake_npu", "fake_npu"),
        ("fake_npu, cpu", "fake_npu"),
        ("reference", "reference"),
    ],
)
def test_devices_are_chosen_by_name(device, used):
    prepared = nna.backend.prepare(parse(CHAIN), device)
    (result,) = prepared.run([X])
    np.testing.assert_allclose(result, run_whole(parse(CHAIN), {"x": X})[0], rtol=1e-6)
    assert {step.device for step in prepared.session.provenance.steps} == {used}


def test_cpu_is_the_default_of_the_process(monkeypatch):
    monkeypatch.setenv("NNADAPTER_DEVICES", "fake_npu")
    assert nna.backend.prepare(parse(CHAIN)).session.devices == ("fake_npu", "cpu")


@pytest.mark.parametrize(
    ("device", "known"), [("CPU", True), ("CPU:0", True), ("fake_npu,cpu", True), ("CUDA", False), ("missing", False)]
)
def test_devices_that_are_supported(device, known):
    assert nna.backend.supports_device(device) is known


def test_a_device_that_does_not_exist():
    with pytest.raises(DeviceNotFoundError, match="CUDA"):
        nna.backend.prepare(parse(CHAIN), "CUDA")


@pytest.mark.parametrize("inputs", [[X], (X,), X, {"x": X}])
def test_ways_to_give_inputs(inputs):
    expected = run_whole(parse(CHAIN), {"x": X})[0]
    np.testing.assert_array_equal(nna.backend.run_model(parse(CHAIN), inputs)[0], expected)


def test_too_many_inputs():
    with pytest.raises(InvalidInputError, match="1 inputs, got 2"):
        nna.backend.prepare(parse(CHAIN)).run([X, X])


@pytest.mark.parametrize("device", ["CPU", "fake_npu"])
def test_one_node(device):
    node = onnx.helper.make_node("Clip", ["x", "", "high"], ["y"])
    high = np.array(0.5, np.float32)
    (result,) = nna.backend.run_node(node, [X, high], device)
    np.testing.assert_array_equal(result, np.minimum(X, high))
    info = [(X.dtype, X.shape)]
    (same,) = nna.backend.run_node(node, [X, high], device, info, opset_version=13)
    np.testing.assert_array_equal(same, result)


def test_a_node_of_texts():
    node = onnx.helper.make_node("StringConcat", ["a", "b"], ["c"])
    given = [np.array(["x", "y"], object), np.array(["1", "2"], object)]
    assert nna.backend.run_node(node, given)[0].tolist() == ["x1", "y2"]
