"""`nnadapter calibrate`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nnadapter.costs.calibration_files import read_calibration
from tests import metered_driver


@pytest.fixture(autouse=True)
def cache(folder, monkeypatch):
    monkeypatch.setenv("NNADAPTER_CACHE_DIR", "kept")
    monkeypatch.setattr("nnadapter.costs.calibrating.time.perf_counter", metered_driver.now)
    return Path("kept")


def test_it_measures_prints_and_keeps(call, cache):
    lines = call("calibrate null -o copy.json").stdout.splitlines()
    assert lines[0] == "device     null 1.0"
    (file,) = (cache / "calibrations").iterdir()
    assert lines[-1] == f"kept in    {file}"
    assert read_calibration(file) == read_calibration(Path("copy.json"))


def test_a_device_that_does_nothing_is_said_to(call):
    assert (
        "this device does nothing with it" in call("calibrate null").stdout
        and "off by" not in call("calibrate null").stdout
    )


def test_json_is_the_file(call, cache):
    printed = json.loads(call("calibrate null --json").stdout)
    (file,) = (cache / "calibrations").iterdir()
    assert printed == json.loads(file.read_text())


@pytest.mark.parametrize(
    ("words", "exit_code", "why"),
    [
        ("calibrate nope", 2, "no driver offers a device named 'nope'"),
        ("calibrate null --option fake_npu.threads=1", 2, "which is not among null"),
        ("calibrate fake_npu --option fake_npu.clock=simulated", 2, "without the simulated clock"),
        ("calibrate trial --option trial.only=RESHAPE", 1, "can run none of the programs"),
        ("calibrate null -o nowhere/copy.json", 2, "cannot be written"),
    ],
)
def test_errors_are_one_line(call, words, exit_code, why):
    result = call(words, exit_code)
    assert why in result.stderr and "Traceback" not in result.stderr


def test_a_damaged_cache_is_written_anew(call, cache):
    call("calibrate null")
    (file,) = (cache / "calibrations").iterdir()
    file.write_text("{")
    call("calibrate null")
    assert read_calibration(file).device == "null"


def test_a_cache_that_cannot_be_written_is_one_line(call, cache):
    cache.write_text("a file")
    result = call("calibrate null", 2)
    assert "set NNADAPTER_CACHE_DIR to a folder" in result.stderr and len(result.stderr.strip().splitlines()) <= 2
