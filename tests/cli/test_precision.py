"""Precisions and lanes on the command line."""

from __future__ import annotations

import json

import onnx

import nnadapter as nna
from tests.drivers.test_lanes import FEED, MODEL
from tests.inference.test_precision import ADVICE


def test_lanes_in_plan_files(call, tmp_path):
    onnx.save(MODEL, tmp_path / "model.onnx")
    rules = tmp_path / "rules.toml"
    rules.write_text('[[pin]]\ndevice = "fake_npu@float16"\nop_type = "Softmax"\n')
    devices = "-d fake_npu,fake_npu@float16"
    call(f"report {tmp_path / 'model.onnx'} {devices} --rules {rules} --save-plan {tmp_path / 'plan.json'}")
    options = nna.Options(plan=tmp_path / "plan.json")
    with nna.InferenceSession(MODEL, devices=["fake_npu@float16", "fake_npu"], options=options) as session:
        session.run(None, FEED)
        assert [step.device for step in session.provenance.steps] == ["fake_npu", "fake_npu@float16", "fake_npu"]


def test_devices_command_knows_lanes(call):
    assert call("devices fake_npu@float16").stdout.startswith("fake_npu ")
    assert "RELU" in call("ops fake_npu@float16").stdout


def test_commands_take_and_report_precisions(call, tmp_path):
    onnx.save(MODEL, tmp_path / "model.onnx")
    model = f"{tmp_path / 'model.onnx'} -d rounding"
    assert f"precision {ADVICE}: --precision device" in call(f"run {model}").stdout
    assert "its own default" not in call(f"run {model} --precision device").stdout
    assert "rounding in float16" in call(f"report {model} --precision float16").stdout
    assert f"precision: {ADVICE}" in call(f"bench {model} --rounds 1").stdout
    data = json.loads(call(f"bench {model} --rounds 1 --precision auto --format json").stdout)
    assert "auto chose the devices' default precision" in data["precision"][0]
    assert "no device computes in it" in call(f"run {tmp_path / 'model.onnx'} --precision bfloat16", 2).stderr
    assert "did you mean 'float16'" in call(f"run {model} --precision flot16", 2).stderr
