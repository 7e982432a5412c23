"""`nnadapter calibrate`."""

from __future__ import annotations

import importlib
import itertools
import json
from pathlib import Path

import pytest

from nnadapter.costs import keep_calibration, read_calibration

# `nnadapter.cli.calibrate` is a command, not this module
calibrate_module = importlib.import_module("nnadapter.cli.devices")


@pytest.fixture(autouse=True)
def cache(folder, monkeypatch):
    monkeypatch.setenv("NNADAPTER_CACHE_DIR", "kept")
    ticks = itertools.count()
    monkeypatch.setattr("time.perf_counter", lambda: next(ticks) * 0.01)
    monkeypatch.setattr("time.process_time", lambda: 0.0)
    monkeypatch.setattr("time.sleep", lambda _: None)
    return Path("kept")


@pytest.fixture
def with_the_cpu(cache, of_the_cpu):
    """Store a calibration of the CPU; return its path."""
    return keep_calibration(of_the_cpu)


def files(cache, device):
    return [*(cache / "calibrations").glob(f"{device}-*.json")]


@pytest.mark.slow
@pytest.mark.usefixtures("with_the_cpu")
def test_calibration_is_printed_and_stored(call, cache):
    lines = call("calibrate null -o copy.json").stdout.splitlines()
    assert lines[0] == "device     null 1.0"
    (file,) = files(cache, "null")
    assert lines[-1] == f"stored in  {file}"
    assert read_calibration(file) == read_calibration(Path("copy.json"))


@pytest.mark.sweep
@pytest.mark.usefixtures("with_the_cpu")
@pytest.mark.parametrize("crowded", [True, False])
def test_crowded_processors_are_reported(call, cache, monkeypatch, crowded):
    monkeypatch.setattr("nnadapter.costs.calibrator.is_crowded", lambda *_: crowded)
    said = call("calibrate null").stdout
    (file,) = files(cache, "null")
    assert ("other programs used the processors meanwhile" in said) is crowded is read_calibration(file).crowded


@pytest.fixture(params=["before", pytest.param("anew", marks=pytest.mark.sweep)])
def measured_before(request, monkeypatch, of_the_cpu):
    """Replace the measurement of the CPU, which takes seconds, by the stored one; measure in the long form."""
    if request.param == "anew":
        return
    measure = calibrate_module.measure

    def known(device, options, **others):
        return of_the_cpu if device == "cpu" else measure(device, options, **others)

    monkeypatch.setattr(calibrate_module, "measure", known)


@pytest.mark.slow
@pytest.mark.usefixtures("measured_before")
def test_uncalibrated_cpu_is_measured_too(call, cache):
    """A device is compared with the CPU, so a guessed CPU would make its calibration useless."""
    result = call("calibrate null")
    (file,) = files(cache, "cpu")
    assert read_calibration(file).device == "cpu"
    assert f"cpu was not calibrated yet and was measured too: stored in {file}" in result.stderr


@pytest.mark.sweep
@pytest.mark.parametrize(
    "damage",
    [
        None,
        lambda file: file.write_text(file.read_text().replace('"driver_version": "', '"driver_version": "0')),
    ],
    ids=["none", "of another version"],
)
@pytest.mark.usefixtures("measured_before")
def test_cpu_is_measured_once_per_version(call, cache, with_the_cpu, damage):
    if damage is not None:
        damage(with_the_cpu)
    before = with_the_cpu.read_text()
    assert ("cpu was not calibrated" in call("calibrate null").stderr) == (damage is not None)
    assert (with_the_cpu.read_text() == before) == (damage is None)


@pytest.mark.sweep
@pytest.mark.usefixtures("with_the_cpu")
def test_device_that_computes_nothing_is_reported(call):
    assert (
        "this device computes nothing" in call("calibrate null").stdout and "error" not in call("calibrate null").stdout
    )


@pytest.mark.slow
@pytest.mark.usefixtures("with_the_cpu")
def test_json_equals_the_stored_file(call, cache):
    printed = json.loads(call("calibrate null --json").stdout)
    (file,) = files(cache, "null")
    assert printed == json.loads(file.read_text())


@pytest.mark.slow
@pytest.mark.usefixtures("with_the_cpu")
@pytest.mark.parametrize(
    ("words", "exit_code", "why"),
    [
        ("calibrate nope", 2, "no driver offers a device named 'nope'"),
        ("calibrate null --option fake_npu.threads=1", 2, "which is not among null"),
        ("calibrate fake_npu --option fake_npu.clock=simulated", 2, "without the simulated clock"),
        ("calibrate trial --option trial.only=RESHAPE", 1, "can run none of the timed programs"),
        ("calibrate null -o nowhere/copy.json", 2, "cannot be written"),
    ],
)
def test_errors_have_no_traceback(call, words, exit_code, why):
    result = call(words, exit_code)
    assert why in result.stderr and "Traceback" not in result.stderr


@pytest.mark.sweep
@pytest.mark.usefixtures("with_the_cpu")
def test_damaged_calibration_is_replaced(call, cache):
    call("calibrate null")
    (file,) = files(cache, "null")
    file.write_text("{")
    call("calibrate null")
    assert read_calibration(file).device == "null"


def test_unwritable_cache_folder_is_a_short_error(call, cache):
    cache.write_text("a file")
    result = call("calibrate null", 2)
    assert (
        "set NNADAPTER_CACHE_DIR to a writable folder" in result.stderr and len(result.stderr.strip().splitlines()) <= 2
    )


@pytest.mark.parametrize("words", ["calibrate null -o nowhere/copy.json", "calibrate null -o ."])
def test_unwritable_output_is_refused_before_measuring(call, cache, words):
    assert "cannot be written" in call(words, 2).stderr
    assert not cache.exists()
