from __future__ import annotations

import json
import sys
from itertools import chain

import onnxruntime
import pytest

from nnadapter.drivers import (
    Capability,
    Device,
    DeviceInfo,
    DimensionBounds,
    DynamicShapes,
    ModelForm,
    Option,
    registry,
)
from nnadapter.drivers.providers import SUPPLIERS
from nnadapter.drivers.registry import COMMON_NAMES
from nnadapter.errors import DeviceNotFoundError, DeviceUnavailableError


def rows():
    return {row.name: row for row in registry.devices()}


def test_built_in_and_installed_drivers_are_listed_sorted():
    names = [row.name for row in registry.devices()]
    assert names == sorted(names) and {"cpu", "fake_npu", "null", "trial"} <= set(names)
    assert rows()["trial"].available and rows()["trial"].distribution == "trial 1.0"
    assert all(row.available for name, row in rows().items() if name in ("cpu", "fake_npu", "null"))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("old", "driver interface 0.9"),
        ("abstract", "lacks the required methods open"),
        ("notadriver", "expected a sub-class"),
        ("missing", "trial_driver_that_is_not_there"),
        ("noclass", "NoSuchClass"),
        ("twice", "two drivers are named 'twice'.*trial.*rival"),
    ],
)
def test_unusable_driver_is_listed_with_its_reason(name, words):
    row = rows()[name]
    assert not row.available
    with pytest.raises(DeviceUnavailableError, match=words) as caught:
        registry.open_device(name)
    assert row.reason in str(caught.value)


def test_a_plug_in_cannot_take_a_built_in_name():
    assert registry.sources()["cpu"].distribution == "nnadapter"
    assert rows()["cpu"].available
    shadowed = rows()["cpu of rival 1.0"]
    assert not shadowed.available and "is named 'cpu', which is built in" in shadowed.reason


def test_unknown_devices_get_close_names():
    with pytest.raises(DeviceNotFoundError, match=r"'fake_mpu'; did you mean 'fake_npu'\?"):
        registry.open_device("fake_mpu")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("cuda", "'ort:CUDA'"),
        ("cuda:0", "'ort:CUDA'"),
        ("CUDAExecutionProvider", "'ort:CUDA'"),
        ("gpu", "'ort:CUDA'.* 'openvino:GPU'"),
        ("tensorrt", "'ort:Tensorrt'"),
        ("rocm", "'ort:MIGraphX'"),
        ("directml", "'ort:Dml'"),
        ("coreml", "'ort:CoreML'"),
        ("npu", "'openvino:NPU'.* 'qnn'"),
    ],
)
def test_common_names_suggest_the_device_and_package(name, meant):
    with pytest.raises(DeviceNotFoundError, match=f"named '{name.partition(':')[0]}'; it may be.*{meant}") as caught:
        registry.open_device(name)
    available = {row.name for row in registry.devices() if row.available}
    assert "ort:CUDA" in available or "ort:CUDA" not in meant or "pip install 'onnxruntime-gpu[" in str(caught.value)


def test_suggestion_states_availability(monkeypatch):
    with pytest.raises(DeviceNotFoundError, match=r"it may be 'cpu' \(which is here\)\. Run"):
        registry.open_device("host")
    monkeypatch.setitem(sys.modules, "openvino", None)  # simulates a missing package
    with pytest.raises(DeviceNotFoundError, match=r"'openvino:GPU' \(.* pip install 'nnadapter\[openvino\]'\)"):
        registry.open_device("gpu")


@pytest.mark.parametrize("name", sorted(set(chain.from_iterable(COMMON_NAMES.values()))))
def test_suggested_devices_exist(name):
    driver, _, suffix = name.partition(":")
    assert driver in registry.sources()
    assert driver != "ort" or f"{suffix}ExecutionProvider" in {*SUPPLIERS, *onnxruntime.get_all_providers()}


def test_a_device_that_does_not_open_blames_its_driver():
    with pytest.raises(DeviceUnavailableError, match="slot 9 is empty"):
        registry.open_device("trial:9")


def test_devices_are_opened_once():
    first = registry.open_device("trial:1")
    assert isinstance(first, Device) and registry.open_device("trial:1") is first


@pytest.mark.parametrize("name", ["cpu:1", "null:7", "fake_npu:99"])
def test_unknown_device_ids(name):
    with pytest.raises((DeviceNotFoundError, DeviceUnavailableError)):
        registry.open_device(name)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"dynamic_shapes": DynamicShapes.BOUNDED}, "only one of .*BOUNDED and dimension_bounds"),
        ({"dimension_bounds": DimensionBounds(largest=8)}, "only one of"),
        (
            {
                "form": ModelForm.ONNX,
                "dynamic_shapes": DynamicShapes.BOUNDED,
                "dimension_bounds": DimensionBounds(largest=8),
            },
            "expected form=ModelForm.IR",
        ),
    ],
)
def test_contradictory_capabilities_are_refused(fields, words):
    with pytest.raises(TypeError, match=words):
        registry.check_capability(Capability(**{"form": ModelForm.IR, **fields}))


def test_capability_and_row_as_plain_data():
    capability = Capability(
        form=ModelForm.IR,
        dynamic_shapes=DynamicShapes.BOUNDED,
        dimension_bounds=DimensionBounds(largest=8),
        domains=("com.acme",),
        options=(Option(name="fast", default=True, help="Compute fast."),),
    )
    option = {"name": "fast", "type": "bool", "default": True, "choices": [], "minimum": None, "help": "Compute fast."}
    precision = {"precision": "float32", "per_channel": True, "asymmetric": True, "full_graph": False}
    plain = json.loads(json.dumps(capability.to_dict()))
    assert not plain.keys() & {"operations", "limits", "profile"}
    assert plain == plain | {
        "form": "ir", "threading": "device serial", "role": "accelerator", "dynamic_shapes": "bounded",
        "dimension_bounds": {"smallest": 0, "largest": 8, "largest_elements": None}, "checks_indices": False,
        "supports_external_initializers": False, "domains": ["com.acme"], "memory_bytes": None,
        "precisions": [precision], "default_precision": "float32", "options": [option],
    }  # fmt: skip
    assert DeviceInfo(name="acme", capability=capability).to_dict() == {
        "name": "acme", "vendor": "", "type": "accelerator", "sub_type": "", "version": "", "available": True,
        "reason": "", "installable": True, "distribution": "",
    }  # fmt: skip
