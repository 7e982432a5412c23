"""`nnadapter run`: input files, statistics, times, output files."""

from __future__ import annotations

import json
import re
import sys

import ml_dtypes
import numpy as np
import onnx
import pytest

import nnadapter as nna
from nnadapter.candidates import random_feed
from nnadapter.cli.run import describe_output, save_outputs
from tests.models import SANDWICH, numbers, parse, run_whole
from tests.optional import needs
from tests.trace_checks import lanes_of, named


def test_text_has_inputs_outputs_and_times(call):
    lines = call("run scores.onnx -d fake_npu --repeat 3").stdout.splitlines()
    assert lines[1:3] == ["devices   fake_npu, cpu", "input     x  float32[1, 8]  random"]
    assert any(line.startswith("output    y  float32[1, 8]  min ") for line in lines)
    assert any(line.startswith("then      median ") and line.endswith("of 3 runs") for line in lines)
    assert any(line.startswith("ran on    fake_npu: ") for line in lines)
    (took,) = (line for line in lines if line.startswith("ran on"))
    assert re.search(r": 1 segment, (\d+\.\d µs|\d+\.\d\d ms) in the last run$", took), "as what is predicted is told"


@pytest.mark.parametrize("device", ["cpu", "fake_npu", "fake_npu --option fake_npu.switched_off=Sin"])
def test_results_equal_onnxruntime(call, folder, device):
    array = numbers(3, 4)
    np.save("x.npy", array)
    data = json.loads(call(f"run sandwich.onnx -d {device} --input x=x.npy --save out --format json").stdout)
    expected = run_whole(parse(SANDWICH), {"x": array})[0]
    np.testing.assert_allclose(np.load(folder / "out" / "y.npy"), expected, rtol=1e-5, atol=1e-6)
    output = data["outputs"][0]
    assert (output["dtype"], output["shape"], data["saved"]) == ("float32", [3, 4], ["out/y.npy"])
    statistics = [output["minimum"], output["mean"], output["maximum"]]
    np.testing.assert_allclose(statistics, [expected.min(), expected.mean(), expected.max()], rtol=1e-5)
    assert data["inputs"] == [{"name": "x", "dtype": "float32", "shape": [3, 4], "source": "x.npy"}]


def test_random_inputs_equal_random_feed(call):
    top = json.loads(call("run scores.onnx --format json").stdout)["outputs"][0]["top"]
    scores = run_whole("scores.onnx", random_feed("scores.onnx"))[0][0]
    assert [index for index, _ in top] == list(np.argsort(-scores)[:5])
    np.testing.assert_allclose([value for _, value in top], np.sort(scores)[::-1][:5], rtol=1e-6)


@pytest.mark.parametrize("repeat", [0, 1, 4])
def test_repeats_are_timed(call, repeat):
    seconds = json.loads(call(f"run chain.onnx -d null --repeat {repeat} --format json").stdout)["seconds"]
    assert len(seconds["repeats"]) == repeat
    assert (seconds["median"] is None) == (seconds["minimum"] is None) == (repeat == 0)
    assert seconds["load"] > 0 and seconds["first"] > 0


@pytest.mark.parametrize("policy", ["priority", "latency", "measured"])
def test_costs_are_reported_for_every_policy(call, policy, tmp_path, monkeypatch):
    monkeypatch.setenv("NNADAPTER_CACHE_DIR", str(tmp_path))
    arguments = f"run sandwich.onnx -d fake_npu --option fake_npu.clock=simulated --policy {policy} --shape x=3,4"
    cost = json.loads(call(f"{arguments} --format json").stdout)["cost"]
    text = call(arguments).stdout
    said, *_ = (line.removeprefix("cost      ") for line in text.splitlines() if line.startswith("cost      "))
    if policy == "measured":  # a run may trigger a new measurement, with other times
        said, cost["sentences"][0] = (re.sub(r"^[\d.]+ \S+", "", words) for words in (said, cost["sentences"][0]))
    assert cost["sentences"][0].endswith(")") and cost["seconds"] > 0 and said == cost["sentences"][0]
    assert "the CPU alone is better" in text
    if policy == "priority":
        assert cost["simulated_seconds"]["fake_npu"] > 0 and "simulated fake_npu: " in text and not cost["chosen"]
    else:
        assert (cost["chosen"], cost["candidate_count"]) == (
            "all on cpu",
            2,
        ) and "chosen    all on cpu, of 2 candidate plans" in text


def test_unknown_costs_are_omitted(call):
    assert "cost " not in call("run scores.onnx -d fake_npu").stdout and "cost " not in call("run scores.onnx").stdout


def test_steps_name_their_devices(call):
    arguments = "run sandwich.onnx -d fake_npu --option fake_npu.switched_off=Sin,Cos --format json"
    data = json.loads(call(arguments).stdout)
    assert [step["device"] for step in data["steps"]] == ["fake_npu", "cpu"] * 2 + ["fake_npu"]
    assert data["fell_back"] is False


def test_failing_device_is_noted_on_stderr(call):
    result = call("run chain.onnx -d trial --option trial.fault=compute")
    assert "fell back segment 0 ran on cpu: RuntimeError: the device hung up" in result.stdout
    assert result.stderr.startswith("note: device 'trial' failed while it ran segment 0")
    assert len(result.stderr.splitlines()) == 1
    assert not call("run chain.onnx -d trial --option trial.fault=compute --fallback allow").stderr


@pytest.mark.parametrize("fault", ["compute", "compile"])
def test_failing_device_without_fallback_exits_with_1(call, fault):
    result = call(f"run chain.onnx -d trial --option trial.fault={fault} --fallback forbid", 1)
    assert "fallback is forbidden" in result.stderr and not result.stdout


def test_dimensions_of_one_name_have_one_size(call):
    data = json.loads(call("run shared.onnx --shape x=5,3 --format json").stdout)
    assert [entry["shape"] for entry in data["inputs"]] == [[5, 3], [5]]


def test_nonfinite_numbers_are_counted(call):
    np.save("x.npy", np.array([[np.nan, 1, np.inf, 3], [1, 2, 3, 4]], np.float32))
    output = json.loads(call("run sandwich.onnx --input x=x.npy --format json").stdout)["outputs"][0]
    assert output["not_finite"] == 2
    assert "2 not finite" in call("run sandwich.onnx --input x=x.npy").stdout


def test_strings_are_loaded_and_saved(call, folder):
    np.save("x.npy", np.array(["a", "bc"]))
    assert "output    y  string[2]" in call("run words.onnx --input x=x.npy --save out").stdout
    assert list(np.load(folder / "out" / "y.npy")) == ["a", "bc"]
    assert "feed it" in call("run words.onnx", 2).stderr


def test_number_fills_the_input(call):
    assert "min 1  mean 1  max 1" in call("run chain.onnx -d fake_npu --input x=0").stdout
    assert "takes int64, got 1.5" in call("run shared.onnx --shape x=2,3 --input i=1.5", 2).stderr
    assert "which a number cannot fill" in call("run words.onnx --input x=1", 2).stderr
    for number in (str(2**64), "true", "nan"):
        assert (
            f"takes int64, got {number}".lower()
            in call(f"run shared.onnx --shape x=2,3 --input i={number}", 2).stderr.lower()
        )


@pytest.mark.parametrize("device", ["cpu", "fake_npu"])
@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("x=double.npy", "got float64, expected float32"),
        ("x=wide.npy", "cannot have shape [2, 4]"),
        ("x=pickle.npy", "cannot be read as .npy"),
        ("x=noise.npy", "cannot be read as .npy"),
        ("x=several.npy", "cannot be read as .npy"),
        ("x=absent.npy", "does not exist"),
        ("x=chain.onnx", "expected a .npy file, a picture"),
        ("x=1.5.6", "a number, true, false or random"),
        ("x=picture.png", "cannot hold a picture"),
        ("q=good.npy", "no input 'q'; its inputs are ['x']"),
        ("x", "write NAME=FILE.npy"),
        ("x=", "write NAME=FILE.npy"),
        ("x=random --input x=good.npy", "set twice"),
        ("x=good.npy --shape x=3,3", "leave --shape out"),
        ("x=good.npy --save chain.onnx", "cannot be created"),
    ],
)
def test_invalid_inputs_exit_with_2(call, folder, device, source, text):
    good = np.zeros((2, 3), np.float32)
    np.save("good.npy", good)
    np.save("double.npy", good.astype(np.float64))
    np.save("wide.npy", np.zeros((2, 4), np.float32))
    np.save("pickle.npy", np.array([{}], object), allow_pickle=True)
    (folder / "noise.npy").write_bytes(b"\x93NUMPY\x01\x00v\x00{")
    with (folder / "several.npy").open("wb") as file:
        np.savez(file, good, good)
    before = sorted(folder.iterdir())
    result = call(f"run chain.onnx -d {device} --input {source}", 2)
    assert text in result.stderr and not result.stdout
    assert sorted(folder.iterdir()) == before


def test_picture_is_an_input(call, folder):
    pixels = np.random.default_rng(0).integers(0, 256, (8, 6, 3), np.uint8)
    pytest.importorskip("PIL.Image").fromarray(pixels).save("picture.png")
    call("run picture.onnx --input x=picture.png --save out")
    expected = -(pixels.astype(np.float32) / 255).transpose(2, 0, 1)[None]
    np.testing.assert_array_equal(np.load(folder / "out" / "y.npy"), expected)


@needs("PIL")
def test_invalid_picture_is_an_error(call, folder):
    (folder / "bad.png").write_text("no picture")
    assert "cannot be read as a picture" in call("run picture.onnx --input x=bad.png", 2).stderr
    assert "does not exist" in call("run picture.onnx --input x=absent.png", 2).stderr


def test_picture_without_pillow_names_the_extra(call, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)  # as if it were not installed
    assert "pip install 'nnadapter[demo]'" in call("run picture.onnx --input x=bad.png", 2).stderr


def test_saved_file_names_stay_in_the_folder(folder):
    names = ["../up", "a/b:0", "A/B:0", "", "..", "x" * 300]
    paths = save_outputs("deep/out", {name: np.arange(3) for name in names})
    assert [path.name for path in paths[:5]] == ["up.npy", "a_b_0.npy", "A_B_0_2.npy", "output.npy", "output_2.npy"]
    assert sorted((folder / "deep" / "out").iterdir()) == sorted(path.resolve() for path in paths)


def test_sequences_are_saved_item_by_item(folder):
    value = [np.zeros(2), np.ones(3)]
    assert [path.name for path in save_outputs("out", {"s": value})] == ["s.0.npy", "s.1.npy"]
    assert describe_output("s", value).dtype == "list of 2"


def test_run_agrees_with_a_session(call, folder):
    feed = random_feed("scores.onnx")
    call("run scores.onnx -d fake_npu --save out")
    with nna.InferenceSession("scores.onnx", devices="fake_npu") as session:
        np.testing.assert_array_equal(np.load(folder / "out" / "y.npy"), session.run(["y"], feed)[0])


def test_invalid_input_value_is_named(call):
    np.save("i.npy", np.array([7]))
    result = call("run shared.onnx -d fake_npu --input i=i.npy --fallback allow", 2)
    assert "input 'i' holds 7" in result.stderr and "expected values from -1 to 0" in result.stderr
    assert "indices element out of data bounds" in call("run shared.onnx --input i=i.npy", 2).stderr


def test_bfloat16_file_is_read(call):
    text = '<ir_version: 10, opset_import: ["" : 17]> g (bfloat16[3] x) => (float[3] y) { y = Cast<to = 1>(x) }'
    onnx.save(onnx.parser.parse_model(text), "brief.onnx")
    np.save("x.npy", np.array([1, 2, 3], ml_dtypes.bfloat16))
    assert "float32[3]" in call("run brief.onnx -d cpu --input x=x.npy").stdout


@pytest.mark.parametrize(
    ("row", "top"),
    [
        ([np.nan] * 4, ()),
        ([np.nan, 2.0, -np.inf, np.inf], ((3, np.inf), (1, 2.0), (2, -np.inf))),
    ],
)
def test_nan_is_not_a_top_class(row, top):
    assert describe_output("y", np.array([row], np.float32)).top == top


def test_failing_close_is_noted_on_stderr(call):
    said = call("run chain.onnx -d trial --option trial.fault=close").stderr
    assert "note: TrialProgram.close raised OSError: bus error; report it to the vendor" in said
    assert "DriverWarning" not in said


@pytest.mark.parametrize("device", ["cpu", "fake_npu", "fake_npu --option fake_npu.switched_off=Sin"])
def test_profile_has_every_run(call, folder, device):
    text = call(f"run sandwich.onnx -d {device} --shape x=3,4 --repeat 2 --profile trace.json").stdout
    assert text.splitlines()[-1] == "profile   trace.json; open it in https://ui.perfetto.dev or chrome://tracing"
    lanes = lanes_of("trace.json")
    assert len(named(lanes["session"], "run")) == 3 and lanes.keys() <= {"session", "fake_npu", "cpu"}
    data = json.loads(call(f"run sandwich.onnx -d {device} --profile trace.json --format json").stdout)
    assert data["profile"] == "trace.json"
    assert json.loads(call(f"run sandwich.onnx -d {device} --format json").stdout)["profile"] is None


def test_unwritable_profile_is_refused_before_the_run(call, folder):
    result = call("run sandwich.onnx --profile gone/trace.json", exit_code=2)
    assert result.output.splitlines() == [
        "Error: 'gone/trace.json' cannot be written: No such file or directory; give another path"
    ]


def test_plan_file_of_another_lane_is_reported(call):
    call("report scores.onnx -d fake_npu@float16 --save-plan plan.json")
    plain = call("run scores.onnx -d fake_npu@float16 --plan plan.json").stdout
    text = call("run scores.onnx -d fake_npu --plan plan.json").stdout
    assert "plan file" not in plain
    assert re.search(r"^plan file  plan.json: 0 nodes placed, \d+ entr\w+ not applied$", text, re.MULTILINE)
    assert "device 'fake_npu@float16' is none of the devices fake_npu, cpu" in " ".join(text.split())
