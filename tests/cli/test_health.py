"""Health in `nnadapter doctor` and `nnadapter devices --json`: working, wrong, failing and missing devices."""

from __future__ import annotations

from dataclasses import replace

import pytest

import nnadapter as nna
from nnadapter.cli.devices import check_health
from nnadapter.drivers import registry
from tests.trial_driver import TrialContext


def row(name):
    return next(device for device in nna.devices() if device.name == name)


@pytest.mark.parametrize("name", ["cpu", "fake_npu", "reference", "trial"])
def test_working_devices_have_times(name):
    health = check_health(row(name))
    assert (health.state, health.detail) == ("works", "")
    assert health.run_seconds > 0 and health.first_seconds > 0


@pytest.mark.parametrize(
    ("name", "state", "detail"),
    [
        ("null", "limited", "computes zeros"),
        ("missing", "unavailable", "install what is missing"),
        ("old", "unavailable", "driver interface"),
    ],
)
def test_limited_and_unavailable_devices_have_a_reason(name, state, detail):
    health = check_health(row(name))
    assert health.state == state and detail in health.detail
    assert health.first_seconds is None


def test_wrong_results_have_got_and_expected_values():
    found = row("null")
    silent = replace(found, capability=replace(found.capability, operations=()))
    assert check_health(silent).state == "wrong"
    assert "got [0.0, 0.0, 0.0, 0.0], expected [0.5, 1.5, 2.5, 3.5]" in check_health(silent).detail


@pytest.mark.parametrize(("what", "state"), [("compute", "failed"), ("refuse", "refuses")])
def test_failing_and_refusing_devices_are_distinguished(monkeypatch, what, state):
    from nnadapter.drivers import Reason, Unsupported

    if what == "refuse":
        no = Unsupported(Reason.UNSUPPORTED_OPERATION, "no sums")
        monkeypatch.setattr(TrialContext, "supported", lambda self, model: [no] * len(model.operations))
    else:
        monkeypatch.setattr(TrialContext, "compile", lambda self, model: 1 / 0)
    registry.open_device("trial")
    health = check_health(row("trial"))
    assert health.state == state and "trial" in health.detail
