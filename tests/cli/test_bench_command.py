"""`nnadapter bench`: a table, JSON, and the exit code."""

from __future__ import annotations

import json

import nnadapter as nna
from tests.optional import needs


@needs("openvino")
def test_text_lists_devices_and_baselines(call):
    lines = call("bench scores.onnx -d fake_npu --against ort,openvino --rounds 1").stdout.splitlines()
    assert [line.partition(":")[0] for line in lines[:2]] == [
        "session compared with ort",
        "session compared with openvino",
    ]
    assert lines[2] == "devices fake_npu, cpu; nodes: 2 on fake_npu"
    assert [line.split()[0] for line in lines[3:7]] == ["load", "session", "ort", "openvino"]


def test_json_has_seconds_and_baselines(call):
    data = json.loads(call("bench sandwich.onnx -d fake_npu --shape x=3,4 --rounds 3 --format json").stdout)
    assert (
        data["ran_on_devices"]
        and data["session"]["seconds"]["middle"] > 0
        and [each["name"] for each in data["baselines"]] == ["ort"]
    )
    assert len(data["session"]["round_seconds"]) == 3 and data["baselines"][0]["over"]["middle"] > 0


def test_compiled_model_has_no_baseline(call):
    nna.compile("scores.onnx", "scores.nna", devices="fake_npu")
    lines = call("bench scores.nna --rounds 1").stdout.splitlines()
    assert lines[0].startswith("not compared with ort, which cannot run a compiled model; ")
    assert not any("session compared" in line for line in lines)
    (ort,) = json.loads(call("bench scores.nna --rounds 1 --format json").stdout)["baselines"]
    assert (ort["name"], ort["failure"], ort["over"]) == ("ort", lines[0], None)
    assert "which cannot run it" in call("bench scores.nna --against ort", 2).stderr


def test_fallback_exits_with_1(call):
    assert "fell back: " in call("bench chain.onnx -d trial --option trial.fault=compute --rounds 1", 1).stdout


def test_misspelled_names_have_suggestions(call):
    assert "did you mean 'openvino'" in call("bench scores.onnx --against openvno", 2).stderr
    assert "did you mean 'null'" in call("bench scores.onnx -d nul", 2).stderr
