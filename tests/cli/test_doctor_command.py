"""`nnadapter doctor`."""

from __future__ import annotations

import json
import re
import sys
from importlib import import_module

import pytest

import nnadapter as nna
from nnadapter.cli.devices import Health
from tests.optional import needs


def lines(done):
    return re.sub(" +", " ", done.stdout)  # the longest name sets the width of the second column


def test_every_device_is_listed_with_a_remedy(call):
    out = lines(call("doctor", 1))
    assert "+ fake_npu works: first result after" in out
    assert "- missing unavailable: driver 'missing' of trial 1.0 did not load" in out
    assert "! metered wrong: got [0.0, 0.0, 0.0, 0.0], expected [0.5, 1.5, 2.5, 3.5]; ask its vendor" in out
    assert out.startswith("python 3.")


def test_devices_for_other_machines_share_a_line(call):
    rows = {device.name: device for device in nna.devices()}
    said = lines(call("doctor", 1)).splitlines()
    (rest,) = [line for line in said if line.startswith("- not for this machine: ")]
    assert "ort:Js" in rest and rest.endswith("; `nnadapter devices` shows the reasons")
    for name, row in rows.items():
        own = [line for line in said if line[1:].startswith(f" {name} ")]
        assert bool(own) == (row.available or row.installable) != (name in re.findall(r"[\w:]+", rest))
    assert rows["missing"].installable


def test_json_lists_devices_with_health(call, monkeypatch):
    monkeypatch.setenv("NNADAPTER_CACHE_DIR", "kept")
    data = json.loads(call("doctor --json", 1).stdout)
    assert [row["name"] for row in data["devices"]] == [device.name for device in nna.devices()]
    assert data["versions"]["onnxruntime"] and data["environment"].keys() == {"NNADAPTER_CACHE_DIR"}
    assert {row["name"]: row["installable"] for row in data["devices"]}["ort:Js"] is False
    assert {row["name"]: row["health"]["state"] for row in data["devices"]}["cpu"] == "works"


@pytest.mark.parametrize(("state", "mark", "code"), [("failed", "!", 1), ("refuses", "+", 0), ("limited", "+", 0)])
def test_only_failing_devices_exit_with_1(call, monkeypatch, state, mark, code):
    monkeypatch.setattr(
        import_module("nnadapter.cli.devices"), "check_health", lambda _: Health(state=state, detail="why")
    )
    assert f"{mark} fake_npu {state}: why" in lines(call("doctor", code))


@needs("PIL")
def test_missing_extras_are_listed_with_the_pip_command(call, monkeypatch):
    assert json.loads(call("doctor --json", 1).stdout)["extras"] == {"latency": True, "demo": True}
    monkeypatch.setitem(sys.modules, "scipy", None)
    said = call("doctor", 1).stdout
    assert "- extra latency: a policy that uses costs needs" in said and "pip install 'nnadapter[latency]'" in said
    assert "- extra demo" not in said
