"""Lanes: devices at one floating precision, such as `fake_npu@float16`."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnxruntime
import pytest

import nnadapter as nna
from nnadapter.costs import calibration
from nnadapter.drivers import registry
from nnadapter.drivers.registry import device_info, device_lock, inside, open_device, open_isolated
from nnadapter.drivers.selection import canonical, select, select_one
from nnadapter.errors import DeviceNotFoundError, InvalidOptionError

MODEL = onnx.parser.parse_model(
    """<ir_version: 10, opset_import: ["" : 17]>
    lanes (float[4,4] x, float[4,4] y) => (float[4,4] z) {
        a = MatMul(x, y)
        b = Relu(a)
        c = Softmax(b)
        z = Add(c, x)
    }"""
)
GENERATOR = np.random.default_rng(0)
FEED = {name: GENERATOR.normal(size=(4, 4)).astype(np.float32) for name in "xy"}
PIN = nna.Rules(pins=(nna.Pin(device="fake_npu", op_type="Softmax"),))


@pytest.fixture(scope="module")
def expected():
    (result,) = onnxruntime.InferenceSession(MODEL.SerializeToString()).run(None, FEED)
    return result


def steps_of(session):
    return [step.device for step in session.provenance.steps]


def off_by(result, expected):
    return float(np.abs(result - expected).max())


@pytest.mark.parametrize(
    ("device", "pinned", "tolerance"),
    [
        ("fake_npu@float16", "fake_npu", 5e-3),
        ("rounding@bfloat16", "rounding", 5e-2),
        ("openvino:CPU@float32", "openvino", 1e-5),
    ],
)
def test_a_lane_and_its_device_share_a_model(device, pinned, tolerance, expected):
    rules = nna.Rules(pins=(nna.Pin(device=pinned, op_type="Softmax"),))
    with nna.InferenceSession(MODEL, devices=[device, pinned], options={"rules": rules}) as session:
        (result,) = session.run(None, FEED)
        assert session.devices == (device, pinned, "cpu")
        assert steps_of(session) == [device, pinned, device]
        assert [segment.device for segment in session.report().segments] == [device, pinned, device]
        assert device in str(session.report()) and off_by(result, expected) < tolerance


def test_a_lane_computes_in_its_precision(expected):
    (half,) = nna.InferenceSession(MODEL, devices="rounding@float16").run(None, FEED)
    np.testing.assert_array_equal(half, half.astype(np.float16).astype(np.float32))
    assert 0 < off_by(half, expected) < 5e-3
    (by_option,) = nna.InferenceSession(MODEL, devices=("rounding", {"precision": "float16"})).run(None, FEED)
    np.testing.assert_array_equal(half, by_option)


def test_names_of_lanes():
    expected = {
        "fake_npu:0@float16": "fake_npu@float16",
        "fake_npu@float16": "fake_npu@float16",
        "openvino:CPU@bfloat16": "openvino:CPU@bfloat16",
        "cpu@float32": "cpu",
        "fake_npu:0": "fake_npu",
    }
    assert {name: canonical(name) for name in expected} == expected
    assert [selected.name for selected in select(["null@float32", "cpu@float32"])] == ["null@float32", "cpu"]


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("fake_npu@int8", "device 'fake_npu' has no precision 'int8'; it computes in float32, float16$"),
        ("fake_npu@flaot16", "did you mean 'float16'"),
        ("fake_npu@", "has no precision ''; it computes in float32, float16$"),
        ("fake_npu@bfloat16", "it computes in float32, float16$"),
        ("rounding@w8a8", "w8a8 is for quantized models: use `nnadapter quantize` first"),
        ("null@float16", "device 'null' has no precision 'float16'; it computes in float32$"),
        ("cpu@float16", "device 'cpu' has no precision 'float16'; it computes in float32$"),
        (("fake_npu@float16", {"precision": "float32"}), "is 'float32', which contradicts the device's name"),
        (["rounding@float16", "rounding@float16"], "is named twice"),
    ],
)
def test_invalid_lanes(device, words):
    with pytest.raises(InvalidOptionError, match=words):
        nna.InferenceSession(MODEL, devices=device)


def test_lane_of_an_unknown_device():
    with pytest.raises(DeviceNotFoundError, match="no driver offers a device named 'fake_mpu'"):
        nna.InferenceSession(MODEL, devices="fake_mpu@float16")


def test_an_equal_option_is_no_contradiction():
    assert select_one("fake_npu@float16", {"precision": "float16"}).options["precision"] == "float16"


def test_lanes_are_one_device():
    assert open_device("rounding@float16") is open_device("rounding")
    assert device_lock("rounding@float16") is device_lock("rounding")
    assert inside("faulty:rounding@float16") == inside("rounding@bfloat16") == "rounding"
    assert device_info("rounding@float16").name == "rounding@float16"
    assert device_info("faulty:fake_npu@float16").available
    assert open_isolated("fake_npu@float16") is open_isolated("fake_npu")


def test_a_lane_of_a_wrapped_device(expected):
    with nna.InferenceSession(MODEL, devices=["faulty:fake_npu@float16", "fake_npu"]) as session:
        assert off_by(session.run(None, FEED)[0], expected) < 5e-3
        assert set(steps_of(session)) == {"faulty:fake_npu@float16"}


@pytest.mark.parametrize("isolate", [True, ["fake_npu"], ["fake_npu@float16"]])
def test_isolated_lane(isolate, expected):
    (here,) = nna.InferenceSession(MODEL, devices="fake_npu@float16").run(None, FEED)
    with nna.InferenceSession(MODEL, devices="fake_npu@float16", options={"isolate": isolate}) as session:
        np.testing.assert_array_equal(session.run(None, FEED)[0], here)
        assert session.report().isolated == ("fake_npu@float16",)
    assert off_by(here, expected) > 0


def test_lanes_in_compiled_files(tmp_path, expected):
    file = tmp_path / "model.nna"
    nna.compile(MODEL, file, devices=["fake_npu@float16", "fake_npu"], options=nna.Options(rules=PIN))
    with nna.InferenceSession(file) as session:
        (result,) = session.run(None, FEED)
        assert steps_of(session) == ["fake_npu@float16", "fake_npu", "fake_npu@float16"]
        assert 0 < off_by(result, expected) < 5e-3
    with pytest.raises(InvalidOptionError, match="but device 'fake_npu@float32' was requested"):
        nna.InferenceSession(file, devices="fake_npu@float32")


def test_lanes_have_their_own_cache_entries(tmp_path):
    def results(device):
        with nna.InferenceSession(MODEL, devices=device, options={"cache_dir": tmp_path}) as session:
            return session.run(None, FEED)[0], session.report().segments[0].cache.hit

    first, was_cached = results("fake_npu@float16")
    whole, other_was_cached = results("fake_npu")
    again, is_cached = results("fake_npu@float16")
    assert (was_cached, other_was_cached, is_cached) == (False, False, True)
    np.testing.assert_array_equal(first, again)
    assert off_by(first, whole) > 0


@pytest.mark.parametrize("device", ["openvino:CPU"])
def test_lanes_of_openvino_follow_the_abilities_of_the_engine(device, monkeypatch, expected):
    from nnadapter.drivers.openvino import driver

    names = driver.OpenvinoDevice._names
    monkeypatch.setattr(driver.OpenvinoDevice, "_names", lambda self, of: names(self, of) | {"BF16"})
    monkeypatch.setattr(driver, "default_precision", lambda name: "bfloat16")
    opened = driver.OpenvinoDriver().open("CPU")
    monkeypatch.setitem(registry._devices, device, opened)
    assert set(opened.capability.floating_precisions) == {"float32", "bfloat16"}
    assert opened.capability.default_precision == "bfloat16"
    rules = nna.Rules(pins=(nna.Pin(precision="float32", op_type="Softmax"),))
    with nna.InferenceSession(MODEL, devices=[f"{device}@bfloat16", device], options={"rules": rules}) as session:
        assert off_by(session.run(None, FEED)[0], expected) < 5e-2
        assert steps_of(session) == [f"{device}@bfloat16", device, f"{device}@bfloat16"]
        assert session.report().lower_defaults == {device: "bfloat16"}
        assert session.report().device_options[f"{device}@bfloat16"]["precision"] == "bfloat16"


def test_calibration_of_a_lane_is_that_of_the_option(monkeypatch):
    asked = []
    monkeypatch.setattr(
        calibration.atomic_files, "calibration_file", lambda name, options: asked.append((name, options))
    )
    monkeypatch.setattr(calibration, "read_calibration", _missing)
    table = open_device("rounding").capability.options
    for device, options in (("rounding@float16", {}), ("rounding", {"precision": "float16"})):
        calibration.find_calibration(device, table, select_one(device, options).options)
    first, second = asked
    assert first == second == ("rounding", {"precision": "float16"})


def _missing(*_):
    raise FileNotFoundError
