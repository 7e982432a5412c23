"""Predicted savings below the error of the costs, which do not count."""

from __future__ import annotations

import functools

import pytest
from msgspec.structs import replace

import nnadapter as nna
from nnadapter.costs import MeasuredNetwork, calibrate, keep_calibration
from tests import metered_driver
from tests.planning.test_latency_placement import LARGE, model_of

BY_COSTS = {"policy": "latency"}


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NNADAPTER_CACHE_DIR", str(tmp_path / "cache"))


@functools.cache
def measured():
    return calibrate("metered", stopwatch=metered_driver.STOPWATCH)


def keep(device, speed, off_by):
    """Store a calibration of `device` with this relative speed and this error."""
    result = measured()
    lines = {
        each: replace(
            line,
            seconds=line.seconds / speed,
            seconds_per_flop=line.seconds_per_flop / speed,
            seconds_per_byte=line.seconds_per_byte / speed,
        )
        for each, line in result.lines.items()
    }
    riding = {carrier: {each: lines[each] for each in behind} for carrier, behind in result.fused_lines.items()}
    keep_calibration(replace(
        result, device=device, driver_version=version(device), options=options(device), lines=lines, fused_lines=riding,
        networks={"one": MeasuredNetwork(seconds=1.0, predicted=1 + off_by)}, sole_launch_seconds=0.0,
        launch_seconds=0.0, transfer_seconds=0.0, transfer_seconds_per_byte=0.0,
    ))  # fmt: skip


def version(device):
    from nnadapter.costs import driver_version

    return driver_version(device)


def options(device):
    from nnadapter.costs import speed_options
    from nnadapter.drivers.boundary import open_context
    from nnadapter.drivers.selection import select_one

    selected = select_one(device, {})
    return speed_options(open_context(selected)[0].capability.options, selected.options)


def report(**given):
    return nna.partition_report(model_of(LARGE), "fake_npu", options=BY_COSTS | given)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("speed", "cpu_off", "device_off", "away"),
    [
        (1.1, 0.0, 0.0, True),
        (1.1, 0.4, 0.0, True),
        (1.1, 0.6, 0.0, False),
        (1.1, 0.0, 0.6, False),
        (1.1, 0.6, 0.6, True),  # an error common to both cancels in the quotient
        (1.25, 0.3, 0.0, True),
        (3.0, 5.0, 0.0, False),
    ],
)
def test_doubtful_saving_keeps_the_cpu(speed, cpu_off, device_off, away):
    keep("cpu", 1.0, cpu_off)
    keep("fake_npu", speed, device_off)
    result = report()
    assert ({node.device for node in result.nodes} == {"fake_npu"}) == away
    assert ("less than the error of the costs" in result.cost.note) != away
    if not away:
        assert {node.device for node in result.nodes} == {"cpu"}
        assert result.cost.seconds == pytest.approx(result.cost.all_cpu_seconds) and result.cost.gap > 0
        assert result.cost.candidates[0].name == "all on cpu"
        assert result.cost.candidates[0].seconds > result.cost.candidates[1].seconds


@pytest.mark.slow
def test_note_names_saving_and_error():
    keep("cpu", 1.0, 0.0)
    keep("fake_npu", 1.25, 2.0)
    # the saving is a fifth less the session's overhead; 0.18 of 2.0 is in doubt
    assert "saves 19 %, less than the error of the costs (36 %), so everything runs on the CPU" in report().cost.note


def test_forbidden_fallback_disables_doubt():
    keep("cpu", 1.0, 0.5)
    keep("fake_npu", 1.1, 0.5)
    result = report(fallback="forbid")
    assert {node.device for node in result.nodes} == {"fake_npu"} and "in doubt" not in result.cost.note
    pinned = report(rules=nna.Rules(pins=(nna.Pin(device="fake_npu", op_type="Sin"),)))
    assert {node.device for node in pinned.nodes if node.op_type == "Sin"} == {"fake_npu"}
    assert "in doubt" not in pinned.cost.note
