"""`nnadapter devices` and `nnadapter ops`."""

from __future__ import annotations

import json
import re

import pytest

import nnadapter as nna


def test_devices_lists_good_and_broken_drivers(call):
    out = re.sub(" +", " ", call("devices").stdout)  # the longest name sets the width of the first column
    assert "fake_npu accelerator nnadapter numpy 1.0, available" in out
    assert "missing not available: driver 'missing' of trial 1.0 did not load: ModuleNotFoundError" in out
    assert "precision:" not in out
    assert len(out.splitlines()) == len(nna.devices())


def test_named_device_is_listed_with_its_options(call):
    out = re.sub(r"\s+", " ", call("devices fake_npu").stdout)
    assert out.startswith("fake_npu accelerator") and "openvino" not in out
    assert "precision: With float16" in out and "[float32|float16; default: float32]" in out
    assert [row["name"] for row in json.loads(call("devices fake_npu --json").stdout)] == ["fake_npu"]
    refused = call("devices no_npu", exit_code=2)
    assert "there is no device 'no_npu'; the devices are" in refused.stderr


def test_named_device_is_listed_with_its_precisions(call):
    assert "computes in float32, float16, w8a8, w8a16" in call("devices fake_npu").stdout
    (row,) = json.loads(call("devices fake_npu --json").stdout)
    assert row["default_precision"] == "float32"
    assert {"precision": "w8a8", "per_channel": True, "asymmetric": True, "full_graph": False} in row["precisions"]


def test_devices_as_json(call):
    rows = {row["name"]: row for row in json.loads(call("devices --json").stdout)}
    assert list(rows) == [device.name for device in nna.devices()]
    assert rows["cpu"]["available"] and rows["cpu"]["type"] == "cpu"
    assert not rows["old"]["available"] and rows["old"]["reason"]
    options = {option["name"]: option for option in rows["fake_npu"]["options"]}
    assert options["switched_off"]["type"] == "list" and options["switched_off"]["default"] == []
    assert options["memory_bytes"]["minimum"] == 0
    assert rows["cpu"].keys() == rows["old"].keys()  # scripts need not check availability to read rows
    assert (rows["cpu"]["role"], rows["fake_npu"]["role"]) == ("host", "accelerator")
    assert rows["fake_npu"]["health"]["state"] == "works" and rows["fake_npu"]["memory"]["total_bytes"] == 4 << 30
    assert rows["null"]["memory"] is None


def test_ops_lists_the_table_of_the_driver(call):
    data = json.loads(call("ops fake_npu --json").stdout)
    capability = next(device.capability for device in nna.devices() if device.name == "fake_npu")
    assert [row["type"] for row in data["operations"]] == [row.type for row in capability.operations]
    convolution = next(row for row in data["operations"] if row["type"] == "CONV_2D")
    assert convolution == {
        "type": "CONV_2D", "dtypes": ["float16", "float32"], "ranks": [4, 4],
        "limits": "also quantized int16, int8, uint16, uint8",
    }  # fmt: skip


def test_ops_has_the_limits_of_every_operation(call):
    limits = "every operand: tensors with at least one element, rank at most 6"
    assert json.loads(call("ops fake_npu --json").stdout)["limits"] == limits
    assert call("ops fake_npu").stdout.splitlines()[-1] == limits
    assert json.loads(call("ops null --json").stdout)["limits"] == ""


def test_ops_as_text(call):
    lines = call("ops fake_npu").stdout.splitlines()
    words = "CONV_2D 4 float16, float32; also quantized int16, int8, uint16, uint8"
    assert words in " ".join(" ".join(lines).split())  # long rows wrap
    assert max(map(len, lines)) <= 100
    assert "any; computes zeros" in call("ops null").stdout


@pytest.mark.parametrize(("device", "text"), [("cpu", "no other device runs"), ("trial", "no table of operations")])
def test_ops_of_devices_without_a_table(call, device, text):
    assert text in call(f"ops {device}").stdout
    assert json.loads(call(f"ops {device} --json").stdout)["operations"] == []


@pytest.mark.parametrize(("device", "text"), [("fake_np", "did you mean 'fake_npu'"), ("missing", "cannot be used")])
def test_ops_of_devices_that_cannot_be_used(call, device, text):
    result = call(f"ops {device}", 2)
    assert text in result.stderr and not result.stdout
