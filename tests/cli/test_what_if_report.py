"""`nnadapter report --what-if`."""

from __future__ import annotations

import json

import pytest

import nnadapter as nna

OFF = "-d fake_npu --option fake_npu.switched_off=Sin,Cos --option fake_npu.clock=simulated"
DEVICE = ("fake_npu", {"switched_off": "Sin,Cos", "clock": "simulated"})


def test_text_equals_the_python_result(call):
    expected = str(nna.what_if("sandwich.onnx", DEVICE, {"x": (2, 4)}))
    assert call(f"report sandwich.onnx {OFF} --what-if --shape x=2,4").stdout == f"{expected}\n"


@pytest.mark.parametrize(("form", "begins"), [("json", "{"), ("md", "### What if `fake_npu`"), ("text", "what if ")])
def test_formats(call, folder, form, begins):
    assert call(f"report sandwich.onnx chain.onnx {OFF} --what-if --format {form}").stdout.startswith(begins)
    assert not call(f"report sandwich.onnx {OFF} --what-if --format {form} -o out").stdout
    assert (folder / "out").read_text().startswith(begins)


def test_failing_model_of_a_folder_is_reported(call, folder):
    (folder / "more").mkdir()
    (folder / "more" / "bad.onnx").write_bytes(b"bad")
    result = call(f"report . {OFF} --what-if --format json")
    found = json.loads(result.stdout)
    assert len(found["models"]) == 6 and [each["name"] for each in found["failed"]] == ["more/bad.onnx"]
    assert result.stderr.startswith("Error: more/bad.onnx: ") and result.stderr.count("\n") == 1


def test_dangling_link_is_a_failing_model(call, folder):
    (folder / "gone.onnx").symlink_to("/nowhere/at/all.onnx")
    result = call(f"report . {OFF} --what-if --format json")
    assert [each["name"] for each in json.loads(result.stdout)["failed"]] == ["gone.onnx"]
    assert "does not exist; check the path" in result.stderr


def test_unreadable_models_exit_with_2(call, folder):
    (folder / "bad.onnx").write_bytes(b"bad")
    assert "is not an ONNX model" in call(f"report bad.onnx {OFF} --what-if", 2).stderr
    assert "none of the 2 models" in call(f"report bad.onnx none.onnx {OFF} --what-if", 2).stderr


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("chain.onnx sandwich.onnx -d fake_npu", "a report needs one model, got 2;"),
        (". -d fake_npu", "Is a directory; give a file, or use --what-if"),
        ("chain.onnx -d fake_npu --what-if --format html", "--what-if has no format html"),
        ("chain.onnx -d fake_npu --what-if --max-segments 3", "--max-segments requires a single plan"),
        ("chain.onnx -d fake_npu --what-if --save-plan plan.json", "--save-plan requires a single plan"),
        ("chain.onnx --what-if", "add -d DEVICE"),
    ],
)
def test_conflicting_arguments_exit_with_2(call, words, text):
    result = call(f"report {words}", 2)
    assert text in result.stderr and not result.stdout
