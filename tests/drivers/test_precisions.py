"""Precisions that devices declare."""

from __future__ import annotations

import pytest

from nnadapter.drivers import Capability, ComputePrecision, ModelForm, Option, Precision
from nnadapter.drivers.registry import check_capability, open_device, open_isolated

HALF = (ComputePrecision(precision=Precision.FLOAT32), ComputePrecision(precision=Precision.FLOAT16))


def names(capability):
    return [str(row.precision) for row in capability.precisions]


def test_a_device_that_declares_nothing_computes_in_float32():
    capability = check_capability(Capability(form=ModelForm.IR))
    assert names(capability) == ["float32"] and capability.default_precision is Precision.FLOAT32


def test_only_floating_precisions_are_those_of_a_device():
    assert [precision for precision in Precision if precision.is_floating] == ["float32", "bfloat16", "float16"]


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ({"precisions": ("float32",)}, "hold 'float32', expected nnadapter.drivers.ComputePrecision"),
        ({"precisions": ()}, "precisions of the capability are empty"),
        ({"precisions": (HALF[0], HALF[0])}, "expected distinct ones"),
        ({"precisions": HALF[1:]}, "with its default_precision, float32"),
        ({"default_precision": "float16"}, "default_precision of the capability is 'float16', expected Precision"),
        ({"precisions": HALF}, "expected an option 'precision' with the choices float32, float16"),
    ],
)
def test_invalid_declarations(declared, words):
    with pytest.raises(TypeError, match=words):
        check_capability(Capability(form=ModelForm.IR, **declared))


def test_an_option_chooses_between_several_floating_precisions():
    option = Option(name="precision", default="float32", choices=("float32", "float16"), help="Of floats.")
    capability = check_capability(Capability(form=ModelForm.IR, precisions=HALF, options=(option,)))
    assert capability.precision_of({"precision": "float16"}) is Precision.FLOAT16
    assert capability.precision_of({}) is Precision.FLOAT32


@pytest.mark.parametrize(
    ("device", "expected", "default"),
    [
        ("cpu", ["float32", "w8a8", "w8", "w4a16"], "float32"),
        ("reference", ["float32"], "float32"),
        ("fake_npu", ["float32", "float16", "w8a8", "w8a16"], "float32"),
        ("faulty:fake_npu", ["float32", "float16", "w8a8", "w8a16"], "float32"),
        ("trial", ["float32"], "float32"),
    ],
)
def test_precisions_of_devices(device, expected, default):
    capability = open_device(device).capability
    assert names(capability) == expected and capability.default_precision == default


def test_precisions_reach_the_host_of_an_isolated_device():
    isolated, here = open_isolated("fake_npu").capability, open_device("fake_npu").capability
    assert isolated.precisions == here.precisions and isolated.default_precision is here.default_precision


@pytest.mark.parametrize("device", ["qnn"])
def test_qnn_computes_in_integers_as_a_whole(device):
    capability = open_device(device).capability
    assert [row.precision for row in capability.precisions if row.full_graph] == ["w8a8", "w8a16"]
    assert capability.floating_precisions == ("float16",) and capability.default_precision == "float16"


@pytest.mark.parametrize("device", ["openvino:CPU"])
def test_openvino_declares_what_the_engine_reports(device):
    import openvino

    core = openvino.Core()
    abilities = core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    capability = open_device(device).capability
    assert ("bfloat16" in capability.floating_precisions) == ("BF16" in abilities)
    hint = core.get_property("CPU", "INFERENCE_PRECISION_HINT").get_type_name()
    assert {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}[capability.default_precision] == hint
