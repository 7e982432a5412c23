"""`nnadapter report`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

import nnadapter as nna
from nnadapter.cli import partition_report
from nnadapter.cli.command import MODELS
from tests.models import parse
from tests.running.test_branch_decisions import FLAG


def test_text_equals_the_python_report(call):
    options = {"switched_off": "Sin,Cos"}
    expected = str(nna.partition_report("sandwich.onnx", [("fake_npu", options)], {"x": (2, 4)}))
    arguments = "-d fake_npu --option fake_npu.switched_off=Sin,Cos --shape x=2,4"
    assert call(f"report sandwich.onnx {arguments}").stdout == expected + "\n"
    result = CliRunner().invoke(partition_report, ["sandwich.onnx", *arguments.split()])
    assert result.stdout == expected + "\n"


def test_json_has_devices_and_shapes(call):
    data = json.loads(call("report sandwich.onnx -d fake_npu,null --format json").stdout)
    assert data["devices"] == ["fake_npu", "null", "cpu"]
    assert data["input_shapes"] == {"x": [1, 4]}


def test_format_option_overrides_the_file_name(call, folder):
    call("report chain.onnx -d null -o page.html")
    assert Path("page.html").read_text().startswith("<!doctype html>")
    result = call("report chain.onnx -d null -o page.html --format md")
    assert "'page.html' is written as md" in result.stderr and Path("page.html").read_text().startswith("###")


def test_devices_may_be_repeated_or_come_from_the_environment(call):
    assert "devices    null, fake_npu, cpu" in call("report chain.onnx -d null -d fake_npu --fallback allow").stdout
    assert "devices    null, cpu" in call("report chain.onnx", env={"NNADAPTER_DEVICES": "null"}).stdout
    assert "devices    cpu " in call("report chain.onnx").stdout


def test_idle_device_is_noted_on_stderr(call):
    refusing = "report chain.onnx -d fake_npu --option fake_npu.switched_off=Relu,Neg,Exp,Add"
    result = call(refusing)
    assert result.stderr.startswith("note: device 'fake_npu' took none of the 4 nodes; the first was refused because")
    assert "note" not in result.stdout
    assert not call(f"{refusing} --fallback allow").stderr


def test_device_after_one_that_takes_everything_is_unnoted(call):
    assert not call("report sandwich.onnx -d null,fake_npu").stderr


def test_forbidden_fallback_exits_with_1(call):
    result = call("report sandwich.onnx -d fake_npu --option fake_npu.switched_off=Sin --fallback forbid", 1)
    assert result.stderr.startswith("Error: fallback is forbidden") and not result.stdout
    call("report sandwich.onnx -d fake_npu,cpu --option fake_npu.switched_off=Sin --fallback forbid")


def test_output_replaces_the_file_without_leftovers(call, folder):
    (folder / "report.txt").write_text("old")
    result = call("report chain.onnx -d fake_npu -o report.txt")
    assert not result.output
    assert (folder / "report.txt").read_text().startswith("devices    fake_npu, cpu")
    assert not list(folder.glob(".*"))


@pytest.mark.parametrize("target", ["nowhere/report.txt", "chain.onnx/report.txt", "."])
def test_unwritable_output_is_an_error(call, folder, target):
    before = sorted(folder.iterdir())
    result = call(f"report chain.onnx -o {target}", 2)
    assert "cannot be written" in result.stderr and not result.stdout
    assert sorted(folder.iterdir()) == before


def test_output_may_be_a_pipe(call, folder):
    if not hasattr(os, "mkfifo"):
        pytest.skip("no named pipes here")
    os.mkfifo(folder / "pipe")
    reader = os.open(folder / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    call("report chain.onnx -o pipe")
    assert os.read(reader, 7) == b"devices"
    os.close(reader)


@pytest.mark.parametrize("command", ["report", "run", "serve", "compile", "cache explain", "bench", "compare"])
def test_help_lists_kinds_of_models(call, command):
    assert MODELS in " ".join(call(f"{command} --help").stdout.split())


def test_help_lists_options_of_devices(call):
    out = call("report --help").stdout
    assert "Options of device fake_npu (--option fake_npu.NAME=VALUE)" in out
    assert "Options of device trial" in out and "fails_on" in out
    assert "Options of device cpu" not in out


@pytest.mark.parametrize(
    ("form", "beginning"),
    [
        ("md", "### 80.0% of nodes off the CPU, 3 segments"),
        ("html", "<!doctype html>"),
        ("dot", "digraph plan {"),
        ("model-explorer", '{\n  "name": "device"'),
    ],
)
def test_formats_of_a_report(call, form, beginning):
    out = call(f"report sandwich.onnx -d fake_npu --option fake_npu.switched_off=Sin --format {form}").stdout
    assert out.startswith(beginning) and out.endswith("\n") and not out.endswith("\n\n")
    assert form != "html" or "<title>sandwich.onnx · partition report</title>" in out


@pytest.mark.parametrize(
    ("words", "beginning", "note"),
    [
        ("-o page.html", "<!doctype html>", ""),
        ("-o PAGE.HTM", "<!doctype html>", ""),
        ("-o page.json", "{", ""),
        ("-o page.md", "###", ""),
        ("-o page.txt", "devices", ""),
        ("-o page.dot", "digraph", ""),
        ("-o page.report", "devices", ""),
        ("-o page", "devices", ""),
        ("-o page.json --format model-explorer", '{\n  "name": "device"', ""),
        ("-o page.report --format md", "###", ""),
        ("-o page.html --format json", "{", "note: 'page.html' is written as json, as --format requires"),
        ("-o page.txt --format md", "###", "note: 'page.txt' is written as md, as --format requires"),
    ],
)
def test_file_name_decides_the_format(call, folder, words, beginning, note):
    result = call(f"report sandwich.onnx -d fake_npu {words}")
    assert (folder / words.split()[1]).read_text().startswith(beginning)
    assert result.stderr.startswith(note) and bool(result.stderr) == bool(note)


def test_file_name_decides_the_what_if_format(call, folder):
    call("report sandwich.onnx -d fake_npu --option fake_npu.switched_off=Sin --what-if -o missing.json")
    assert (folder / "missing.json").read_text().startswith("{")
    assert "no format html" in call("report sandwich.onnx -d fake_npu --what-if -o missing.html", 2).stderr


@pytest.mark.parametrize(
    ("gates", "exit_code", "said"),
    [
        ("--min-coverage 0.8 --max-segments 3", 0, ""),
        ("--min-coverage 80%", 0, ""),
        ("--min-coverage 80.1%", 1, "Error: coverage is 80.00% of nodes, at least 80.10% is required\n"),
        ("--max-segments 2", 1, "Error: the plan has 3 segments, at most 2 are allowed\n"),
    ],
)
def test_gates(call, gates, exit_code, said):
    result = call(f"report sandwich.onnx -d fake_npu --option fake_npu.switched_off=Sin {gates}", exit_code)
    assert result.stderr == said and result.stdout.startswith("devices")


def test_every_broken_gate_is_one_line(call):
    gates = "--min-coverage 1 --max-segments 1"
    result = call(f"report sandwich.onnx -d fake_npu --option fake_npu.switched_off=Sin {gates}", 1)
    assert [line.split()[1] for line in result.stderr.splitlines()] == ["coverage", "the"]


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ("text", "  fake_npu -> cpu: 1\n"),
        ("json", '"old_place": "fake_npu"'),
        ("md", "### 1 node moved"),
        ("html", '"old_place":"fake_npu"'),
    ],
)
def test_differences(call, form, said):
    call("report sandwich.onnx -d fake_npu --format json -o old.json")
    arguments = f"-d fake_npu --option fake_npu.switched_off=Sin --diff old.json --format {form}"
    assert said in call(f"report sandwich.onnx {arguments}").stdout


def test_a_report_with_differences_can_be_compared_again(call):
    call("report sandwich.onnx -d fake_npu --format json -o old.json")
    call("report sandwich.onnx -d fake_npu --format json --diff old.json -o new.json")
    assert "no node moved" in call("report sandwich.onnx -d fake_npu --diff new.json").stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("-d fake_np", "did you mean 'fake_npu'"),
        ("-d missing", "did not load"),
        ("-d null,null", "named twice"),
        ("-d null,", "empty name"),
        ("-d fake_npu --option fake_npu.precison=float16", "did you mean 'precision'"),
        ("-d fake_npu --option fake_npu.precision=int3", "one of float32, float16"),
        ("-d fake_npu --option fake_npu.memory_bytes=lots", "takes int"),
        ("-d fake_npu --option trial.only=Relu", "not among fake_npu"),
        ("-d fake_npu --option precision=float16", "write DEVICE.NAME=VALUE"),
        ("-d trial --option trial.fault=context --fallback forbid", "did not create a context"),
        ("--shape x=2", "cannot have shape [2]"),
        ("--shape q=2,3", "no input 'q'"),
        ("--shape x=2,three", "write NAME=1,3,224,224"),
        ("--shape x=-2,3", "write NAME=1,3,224,224"),
        ("--shape x", "write NAME=1,3,224,224"),
        ("--shape x=", "write NAME=1,3,224,224"),
        ("--shape x=2,3 --shape x=2,3", "set twice"),
        ("--shape x=9999999,9999999", "too large for any memory"),
        ("--format pdf", "not one of"),
        ("--min-coverage 95", "write 0.95 or 95%"),
        ("--min-coverage most", "write 0.95 or 95%"),
        ("--min-coverage nan", "write 0.95 or 95%"),
        ("--max-segments -1", "not in the range"),
        ("--max-latency 0", "write milliseconds"),
        ("--max-latency fast", "write milliseconds"),
        ("-d fake_npu --max-latency 5", "not known for fake_npu"),
        ("--diff missing.json", "cannot be read"),
        ("--diff chain.onnx", "does not parse"),
        ("--diff chain.onnx --format dot", "cannot show differences"),
        ("--fallback never", "not one of"),
    ],
)
def test_wrong_arguments_exit_with_2(call, arguments, text):
    result = call(f"report chain.onnx {arguments}", 2)
    assert text in result.stderr and not result.stdout
    assert "Traceback" not in result.stderr


def test_dash_means_standard_output(call, folder):
    assert call("report chain.onnx -o -").stdout == call("report chain.onnx").stdout
    assert not (folder / "-").exists()


def test_help_lists_every_file_extension_once(call):
    said = " ".join(call("report --help").stdout.split())
    assert "(.txt, .json, .md, .html, .dot), otherwise text" in said


@pytest.mark.parametrize(("words", "option"), [("-o w.html", "--output"), ("--format html", "--format")])
def test_what_if_error_names_the_given_option(call, words, option):
    said = " ".join(call(f"report chain.onnx --what-if {words}", 2).stderr.split())
    assert f"Invalid value for '{option}': --what-if has no format html" in said


def test_input_value_chooses_the_branch(call):
    onnx.save(parse(FLAG), "flag.onnx")
    for value in ("true", "false"):
        assert f"where c is {value}" in call(f"report flag.onnx -d fake_npu --input c={value}").stdout
    assert "--input c=VALUE plans others" in " ".join(call("report flag.onnx -d fake_npu").stdout.split())
    assert "expected a .npy file, a number" in " ".join(call("report flag.onnx --input c=x.png", 2).stderr.split())
    for value in ("2", "nan", "0.5"):
        assert f"takes bool, got {value}" in call(f"report flag.onnx -d fake_npu --input c={value}", 2).stderr
    np.save("reals.npy", np.array(0.5))
    assert "takes bool, got float64" in call("report flag.onnx -d fake_npu --input c=reals.npy", 2).stderr
    assert "--what-if tries many" in call("report flag.onnx -d fake_npu --what-if --input c=1", 2).stderr
