"""Profiling through ONNX Runtime's options, with unchanged code and one file at the end."""

from __future__ import annotations

import json
import time

import onnxruntime
import pytest

import nnadapter as nna
from nnadapter import ort
from nnadapter.errors import InvalidModelError, InvalidOptionError
from tests.models import SANDWICH, numbers, parse
from tests.trace_checks import lanes_of, named

X = numbers(3, 4)
OFF = ("fake_npu", {"switched_off": "Sin"})


@pytest.fixture
def options(tmp_path):
    made = onnxruntime.SessionOptions()
    made.enable_profiling = True
    made.profile_file_prefix = str(tmp_path / "mine")
    return made


def profiled(session):
    session.run(None, {"x": X})
    return session.end_profiling()


def test_session_on_devices_writes_a_trace(options, tmp_path):
    file = profiled(nna.InferenceSession(parse(SANDWICH), options, devices=OFF))
    assert file.startswith(str(tmp_path / "mine_")) and file.endswith(".json")
    lanes = lanes_of(file)
    assert list(lanes) == ["session", "fake_npu", "cpu"] and named(lanes["cpu"], "model_run")
    assert [str(path) for path in tmp_path.iterdir()] == [file]  # and no file per segment
    assert options.enable_profiling and options.profile_file_prefix == str(tmp_path / "mine")


def test_cpu_session_is_profiled_by_onnxruntime(options, tmp_path):
    file = profiled(nna.InferenceSession(parse(SANDWICH), options, devices="cpu"))
    assert [str(path) for path in tmp_path.iterdir()] == [file]
    assert [event["name"] for event in json.loads((tmp_path / file).read_text())].count("model_run") == 1


def test_unwritable_path_of_our_trace_is_refused(options, tmp_path):
    options.profile_file_prefix = str(tmp_path / "gone" / "mine")
    with pytest.raises(InvalidOptionError, match="cannot be written"):
        nna.InferenceSession(parse(SANDWICH), options, devices=OFF)
    with nna.InferenceSession(parse(SANDWICH), options, devices="cpu") as session:  # as in ONNX Runtime
        assert len(session.run(None, {"x": X})) == 1


def test_invalid_model_error_on_the_cpu_is_unchanged(options, tmp_path):
    options.profile_file_prefix = str(tmp_path / "gone" / "mine")
    with pytest.raises(InvalidModelError):
        nna.InferenceSession(b"no model", options, devices="cpu")


def test_option_trace_overrides_session_options(options, tmp_path):
    for devices in (OFF, "cpu"):
        path = tmp_path / "trace.json"
        session = nna.InferenceSession(parse(SANDWICH), options, devices=devices, options=nna.Options(trace=path))
        assert profiled(session) == str(path)
        assert named(lanes_of(path)["cpu"], "model_run") and list(tmp_path.iterdir()) == [path]
        assert options.enable_profiling and options.profile_file_prefix == str(tmp_path / "mine")


def test_profiling_ends_once(tmp_path):
    path = tmp_path / "trace.json"
    with nna.InferenceSession(parse(SANDWICH), devices=OFF, options=nna.Options(trace=path)) as session:
        assert profiled(session) == str(path)
        before = path.read_bytes()
        session.run(None, {"x": X})
        assert session.end_profiling() == ""
    assert path.read_bytes() == before


def test_no_profile_without_options():
    for devices in (OFF, "cpu"):
        with nna.InferenceSession(parse(SANDWICH), devices=devices) as session:
            assert profiled(session) == ""
        assert session.get_profiling_start_time_ns() == 0 or devices == "cpu"


@pytest.mark.parametrize("devices", [OFF, "cpu"])
def test_start_time_uses_a_clock_of_python(options, devices):
    before = time.time_ns(), time.monotonic_ns()
    session = nna.InferenceSession(parse(SANDWICH), options, devices=devices)
    started = session.get_profiling_start_time_ns()
    assert any(
        first <= started <= last for first, last in zip(before, (time.time_ns(), time.monotonic_ns()), strict=True)
    )
    session.end_profiling()


def test_profiling_by_unchanged_onnxruntime_code(options, tmp_path):
    ort.use([OFF])
    try:
        session = ort.InferenceSession(parse(SANDWICH).SerializeToString(), options, providers=["CPUExecutionProvider"])
        assert "fake_npu" in lanes_of(profiled(session))
    finally:
        ort.use([])
