from __future__ import annotations

import json
import re

import numpy as np
import pytest
from msgspec.structs import replace

import nnadapter as nna
from nnadapter.costs import (
    calibrate,
    device_costs,
    find_calibration,
    is_calibrated,
    keep_calibration,
    read_calibration,
    recall,
)
from nnadapter.drivers import Profile
from nnadapter.drivers.boundary import open_context
from nnadapter.drivers.selection import select_one
from nnadapter.errors import InvalidOptionError, StoredFileError
from tests import metered_driver
from tests.models import HEAD, SANDWICH, parse


@pytest.fixture(scope="module")
def measured():
    metered_driver.STATE.update(metered_driver.NEW)
    return calibrate("metered", stopwatch=metered_driver.STOPWATCH)


def costs_of(**options):
    selected = select_one("metered", options)
    device, context = open_context(selected)
    return device_costs("metered", device.capability, context, selected.options)


def table(**options):
    selected = select_one("metered", options)
    return open_context(selected)[0].capability.options, selected.options


@pytest.mark.slow
def test_stored_calibration_is_found(measured, cache):
    assert find_calibration("metered", *table()).calibration is None
    file = keep_calibration(measured)
    assert file.parent == cache / "calibrations" and [*file.parent.iterdir()] == [file]
    assert find_calibration("metered", *table()).calibration == measured
    assert costs_of().source == "calibrated" and costs_of().lines == measured.lines
    assert costs_of(off="ADD").source == "calibrated", "what is refused does not change how long the rest takes"
    other = costs_of(turbo=True)
    assert other.source == "assumed" and other.missing_cost_notes == (
        "there is a calibration of device 'metered' for turbo=False, and none for its options here",
    )


def test_the_first_device_of_a_driver_has_two_names(measured):
    metered_driver.STATE["listed"] = "metered:first"
    first = replace(measured, device="metered:first")
    keep_calibration(first)
    assert find_calibration("metered", *table()).calibration == first and is_calibrated("metered")
    assert costs_of().source == "calibrated"
    assert find_calibration("metered:second", *table()).calibration is None
    keep_calibration(measured)
    assert find_calibration("metered", *table()).calibration == measured, "its own goes before"
    assert find_calibration("metered:first", *table()).calibration == first


def test_alias_is_tried_if_the_calibration_is_outdated(measured):
    metered_driver.STATE["listed"] = "metered:first"
    keep_calibration(replace(measured, device="metered:first", driver_version="0.9"))
    assert "made with version 0.9" in find_calibration("metered:first", *table()).note
    keep_calibration(measured)
    result = find_calibration("metered:first", *table())
    assert result.calibration == measured and not result.note
    assert "for turbo=False" in find_calibration("metered:first", *table(turbo=True)).note


def test_calibration_of_another_version_is_reported_and_not_used(measured):
    keep_calibration(measured)
    metered_driver.STATE["version"] = "2.0"
    result = find_calibration("metered", *table())
    assert result.calibration is None
    assert "made with version 1.0 of its driver and interface 1.0, now 2.0 and 1.0, and is not used" in result.note
    assert costs_of().source == "assumed" and result.note in costs_of().notes


def test_calibration_of_another_machine_is_reported_and_not_used(measured, monkeypatch):
    keep_calibration(measured)
    monkeypatch.setattr("nnadapter.costs.calibration.machine_description", lambda: "riscv64 slow, 1 processors")
    result = find_calibration("metered", *table())
    assert result.calibration is None
    assert f"made on another machine ({measured.machine}; here riscv64 slow, 1 processors), and is not" in result.note
    assert costs_of().source == "assumed" and result.note in costs_of().missing_cost_notes


def test_isolated_device_has_a_separate_calibration(measured):
    """A launch there takes ten times as long: it is a message and its reply."""
    own = replace(measured, options={**measured.options, "isolate": True}, launch_seconds=1e-3)
    assert keep_calibration(own) != keep_calibration(measured)
    assert find_calibration("metered", *table()).calibration == measured
    assert find_calibration("metered", *table(), isolated=True).calibration == own


def test_calibration_is_not_used_for_an_isolated_device(measured):
    keep_calibration(measured)
    result = find_calibration("metered", *table(), isolated=True)
    assert result.calibration is None and result.note == (
        "there is a calibration of device 'metered' for isolate=False, and none for its options here; run "
        "`nnadapter calibrate metered --option metered.isolate=true`"
    )


def test_calibration_on_a_busy_machine_is_used_and_reported(measured):
    keep_calibration(replace(measured, crowded=True))
    costs = costs_of()
    assert costs.source == "calibrated" and costs.notes == (
        "the calibration of device 'metered' was made while other programs used the processors; run `nnadapter "
        "calibrate metered` again on an idle machine",
    )


def test_profile_is_used_without_calibration():
    profile = Profile(peak_flops=1.0, bandwidth=1.0, launch_seconds=0, transfer_seconds=0, transfer_bandwidth=1.0)
    metered_driver.STATE["profile"] = profile
    costs = costs_of()
    assert (costs.source, costs.profile, costs.notes) == ("modeled", profile, ())


@pytest.mark.parametrize(("how", "reason"), [("wrong", "peak_flops is -1.0, expected"), ("raises", "no such register")])
def test_invalid_profile_is_refused(how, reason):
    costs = costs_of(profile=how)
    assert costs.source == "assumed" and reason in costs.notes[0] and costs.notes[0].startswith("device 'metered': ")


@pytest.mark.sweep
def test_truncated_calibration_file_is_an_error(measured):
    file = keep_calibration(measured)
    whole = file.read_bytes()
    for end in {*range(0, len(whole) - 1, 11), *range(len(whole) - 100, len(whole) - 1)}:
        file.write_bytes(whole[:end])
        with pytest.raises(StoredFileError, match=r"cut off: .*line \d+ column \d+ .*; delete it, or run") as caught:
            read_calibration(file)
        assert str(file) in str(caught.value) and caught.value.file == str(file)
    file.write_bytes(whole[:-1])  # complete without the final line break
    assert read_calibration(file) == measured


def put(data, path, value):
    *outer, last = path.split(".")
    for name in outer:
        data = data[name]
    if value is KeyError:
        del data[last]
    else:
        data[last] = value


def spoilt(measured, path, value):
    """Change one entry of a calibration file."""
    file = keep_calibration(measured)
    data = json.loads(file.read_text())
    put(data, path, value)
    file.write_text(json.dumps(data))
    return file


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("format_version", 1, "key 'format_version': expected 6, got 1"),
        ("format_version", True, "key 'format_version': expected 6, got True"),
        ("format_version", KeyError, "it has no key 'format_version'"),
        ("launch_seconds", -1e-9, "key 'launch_seconds': expected a number >= 0.0, got -1e-09"),
        ("launch_seconds", "1", "key 'launch_seconds': expected a number, got '1'"),
        ("launch_seconds", True, "key 'launch_seconds': expected a number, got True"),
        ("launch_seconds", float("nan"), "NaN is not a finite number"),
        ("launch_seconds", float("inf"), "Infinity is not a finite number"),
        ("launch_seconds", 1e308, "key 'launch_seconds': expected a number <= 1000000.0, got 1e+308"),
        ("launch_seconds", 10**400, "key 'launch_seconds': number out of range, got one of 1329 bits"),
        ("networks", KeyError, "key 'networks': it is missing"),
        ("alone_seconds", -1, "key 'alone_seconds': expected a number >= 0.0, got -1"),
        ("lines", {}, "key 'lines': it lacks convolution, depthwise, elementwise"),
        ("lines.matrix", KeyError, "key 'lines': it lacks matrix, without a reason in 'left_out'"),
        ("transfer_seconds", None, "key 'transfer_seconds': expected a number, got nothing"),
        ("lines", [], "key 'lines': expected an object, got a list of 0"),
        ("lines.matrix", {}, "lines.matrix, key 'seconds': it is missing"),
        ("lines.matrix.error", KeyError, "lines.matrix, key 'error': it is missing"),
        ("lines.matrix.seconds", [1], "lines.matrix, key 'seconds': expected a number, got a list of 1"),
        ("lines.matrix.speed", 1, "lines.matrix, key 'speed': unknown key"),
        ("lines.juggling", {}, "lines, key 'juggling': unknown name; known: convolution"),
        ("lines.matrx", {}, "lines, key 'matrx': unknown name; did you mean 'matrix'?"),
        ("left_out", {"other": 3}, "left_out, key 'other': expected a text, got 3"),
        ("device", 1, "key 'device': expected a text, got 1"),
        ("interface_version", [1], "key 'interface_version': expected a list of length 2, got a list of 1"),
        ("interface_version", [1, -1], "interface_version 2: expected a whole number >= 0, got -1"),
        ("options", {"turbo": None}, "options, key 'turbo': expected true or false or a whole number"),
        ("extra", 1, "key 'extra': unknown key"),
        ("device", KeyError, "key 'device': it is missing"),
    ],
)
def test_entries_of_the_wrong_kind_are_named(measured, path, value, reason):
    file = spoilt(measured, path, value)
    with pytest.raises(StoredFileError) as caught:
        read_calibration(file)
    assert reason in str(caught.value) and ("calibrate" in str(caught.value) or "did you mean" in str(caught.value))


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("device", "null", "key 'device': expected 'metered', got 'null'"),
        ("options.turbo", True, "options, key 'turbo': it is True in the file, but False by its name"),
        ("options.turbo", KeyError, "options, key 'turbo': it is nothing in the file, but False by its name"),
        ("options.boost", 3, "options, key 'boost': it is 3 in the file, but nothing by its name"),
    ],
)
def test_calibration_file_of_another_device_is_named(measured, path, value, reason):
    file = spoilt(measured, path, value)
    result = find_calibration("metered", *table())
    assert result.calibration is None and reason in result.note and str(file) in result.note


def test_other_format_stops_only_policies_that_need_costs(measured):
    spoilt(measured, "format_version", 1)
    model = parse(f"{HEAD} g (float[3] x) => (float[3] y) {{ y = Abs(x) }}")
    reason = "the calibration of device 'metered' is not used: .*expected 6, got 1; delete it, or run"
    assert re.search(reason, " ".join(str(nna.partition_report(model, devices="metered")).split()))
    with pytest.raises(InvalidOptionError, match=f"needs calibrated costs.*{reason}"):
        nna.InferenceSession(model, devices="metered", options=nna.Options(policy="latency"))


@pytest.mark.sweep
def test_unmeasured_classes_are_reported():
    keep_calibration(calibrate("metered", {"off": "REDUCE_MEAN"}, stopwatch=metered_driver.STOPWATCH))
    assert any("could not be calibrated" in note and note.endswith("others: reduction") for note in costs_of().notes)


@pytest.mark.parametrize(
    ("contents", "reason"),
    [
        (b"[]", "it is not a calibration"),
        (b"\xff\xfe", "it is not UTF-8 at byte 0"),
        (b'{"a": 1, "a": 2}', "key 'a': it occurs twice"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_other_files_are_refused(tmp_path, contents, reason):
    (tmp_path / "c.json").write_bytes(contents)
    with pytest.raises(StoredFileError, match=reason):
        read_calibration(tmp_path / "c.json")


def test_unwritable_folder_is_an_error(measured, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NNADAPTER_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(StoredFileError, match="cannot be written.*NNADAPTER_CACHE_DIR"):
        keep_calibration(measured)


@pytest.fixture(params=["a file", "below a file", "/dev/null", "too long a name", "missing"])
def no_folder(request, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    places = {"a file": "file", "below a file": "file/deep", "too long a name": "n" * 300, "missing": "none"}
    folder = tmp_path / places.get(request.param, request.param)
    monkeypatch.setenv("NNADAPTER_CACHE_DIR", str(folder))
    return folder


def test_invalid_cache_folder_counts_as_empty(no_folder):
    assert recall("key") == (None, "")
    assert costs_of().source == "assumed"
    report = nna.partition_report(parse(SANDWICH), "null", {"x": (2, 4)})
    assert "NNADAPTER" not in str(report)


def test_unwritable_measured_choice_is_a_note(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NNADAPTER_CACHE_DIR", str(tmp_path / "file"))
    x = np.ones((2, 4), np.float32)
    rules = nna.Rules(bans=(nna.Ban(device="fake_npu", name="*"),))  # a sole candidate cannot be in doubt
    options = {"policy": "measured", "rules": rules, "fallback": "allow"}
    with nna.InferenceSession(parse(SANDWICH), devices="fake_npu", options=options) as session:
        session.run(None, {"x": x})
        assert "cannot be written" in session.report().cost.note and "NNADAPTER_CACHE_DIR" in session.report().cost.note
