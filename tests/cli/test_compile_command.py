"""`nnadapter compile`, and uses of its output file."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner

from nnadapter.cli import main
from nnadapter.files.source_kind import SourceKind, kind_of
from tests.models import CHAIN, HEAD, parse


def called(*arguments):
    return CliRunner().invoke(main, list(map(str, arguments)))


@pytest.fixture
def model(tmp_path):
    onnx.save(parse(CHAIN), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_compiled_file_is_checked_run_and_reported(tmp_path, model):
    file = tmp_path / "m.compiled"
    done = called("compile", model, "-d", "null,fake_npu", "-o", file)
    assert done.exit_code == 0, done.output
    assert "for x=[2, 3]" in done.stdout and "1 on null" in done.stdout
    assert "programs written by drivers: 0, compiled when loaded: 1\n" in done.stdout
    done = called("compile", "--check", file)
    assert (done.exit_code, done.stdout) == (0, f"{file}: runs on this machine unchanged\n")
    done = called("run", file, "--format", "json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["devices"] == ["null", "cpu"]
    done = called("run", file, "-d", "cpu", "--input", "x=random")
    assert done.exit_code == 0, done.output
    done = called("report", file, "--format", "json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["segments"][0]["device"] == "null"


def test_damaged_file_fails_the_check(tmp_path, model):
    file = tmp_path / "m.compiled"
    done = called("compile", model, "-d", "fake_npu", "-o", file)
    assert done.exit_code == 0 and "programs written by drivers: 1\n" in done.stdout
    contents = bytearray(file.read_bytes())
    contents[len(contents) // 3] ^= 1
    file.write_bytes(contents)
    done = called("compile", "--check", file)
    assert done.exit_code == 2 and "damaged" in done.stderr


@pytest.mark.parametrize("arguments", [[], ["m.onnx"], ["m.onnx", "--check", "f"], ["-o", "f"]])
def test_wrong_arguments_exit_with_2(arguments):
    assert called("compile", *arguments).exit_code == 2


OPEN = '<ir_version: 10, opset_import: ["" : 17]> g (float[n, 4] x) => (float[n, 4] y) { y = Relu (x) }'


def test_output_names_the_input_shapes(tmp_path):
    onnx.save(parse(OPEN), tmp_path / "m.onnx")
    file = tmp_path / "f"
    done = called("compile", tmp_path / "m.onnx", "-d", "fake_npu", "-o", file)
    assert done.exit_code == 0 and "for x=[n, 4]" in done.stdout, done.output
    assert called("compile", "--check", file).exit_code == 0
    done = called("run", file, "--shape", "x=9,4")
    assert done.exit_code == 0 and "fake_npu" in done.stdout, done.output
    done = called("report", file)
    assert done.exit_code == 0 and "the file is for x=[n, 4]" in done.stdout, done.output


OPTIONAL = """
<ir_version: 10, opset_import: ["" : 17]> g (float[n, 4] x) => (float[n, 4] y) {
  o = Optional (x)
  a = OptionalGetElement (o)
  y = Relu (a)
}
"""
"""A Relu whose sizes depend on values that no device computes."""


def test_output_has_the_reason_for_static_shapes(tmp_path):
    onnx.save(parse(OPTIONAL), tmp_path / "m.onnx")
    file, why = tmp_path / "f", "a plan for every set of input shapes: "
    done = called("compile", tmp_path / "m.onnx", "-d", "fake_npu", "-o", file)
    assert done.exit_code == 0 and why in done.stdout, done.output
    done = called("report", file)
    assert done.exit_code == 0 and why in done.stdout, done.output
    done = called("compile", tmp_path / "m.onnx", "-d", "fake_npu", "--shape", "x=3,4", "-o", file)
    assert done.exit_code == 0 and why not in done.stdout, done.output


def test_report_of_a_file_refuses_planning_options(tmp_path):
    onnx.save(parse(OPEN), tmp_path / "m.onnx")
    file, plan = tmp_path / "f", tmp_path / "plan"
    assert called("compile", tmp_path / "m.onnx", "-d", "fake_npu", "-o", file).exit_code == 0
    for name, asked in {
        "devices": ("-d", "cpu"),
        "input_shapes": ("--shape", "x=3,4"),
        "policy": ("--policy", "latency"),
        "save_plan": ("--save-plan", plan),
    }.items():
        done = called("report", file, *asked)
        assert done.exit_code == 2 and f"leave {name} out, or give the original model" in done.stderr, done.output
    assert not plan.exists() and called("report", file, "--min-coverage", "0.5").exit_code == 0


@pytest.mark.parametrize(
    "asked", [("x=2,3",), ("past=2,5",), ("x=2,3", "past=2,5"), ("mask=2,9", "x=2,4", "past=2,5"), ()]
)
def test_omitted_shapes_follow_from_the_others(tmp_path, asked):
    model = parse(f"""{HEAD} g (float[b, s] x, float[b, t] mask, float[b, p] past) => (float[b, t] y) {{
        all = Concat <axis = 1> (past, x)
        y = Mul (all, mask)
    }}""")
    model.graph.input[1].type.tensor_type.shape.dim[1].dim_param = "p + s"
    onnx.save(model, tmp_path / "m.onnx")
    assert called("compile", tmp_path / "m.onnx", "-d", "fake_npu", "-o", tmp_path / "f").exit_code == 0
    shapes = [word for shape in asked for word in ("--shape", shape)]
    of_model = called("run", tmp_path / "m.onnx", "-d", "fake_npu", *shapes)
    of_file = called("run", tmp_path / "f", *shapes)
    inputs = [[line for line in done.stdout.splitlines() if line.startswith("input")] for done in (of_model, of_file)]
    assert inputs[0] == inputs[1] and len(inputs[0]) == 3, of_file.output


def test_repeated_shape_option_adds_a_plan(tmp_path):
    onnx.save(parse(OPEN), tmp_path / "m.onnx")
    file, shapes = tmp_path / "f", ("--shape", "x=2,4", "--shape", "x=5,4")
    done = called("compile", tmp_path / "m.onnx", "-d", "fake_npu", *shapes, "-o", file)
    assert done.exit_code == 0 and "for\n  x=[2, 4]\n  x=[5, 4]\nsegments: " in done.stdout, done.output
    assert called("run", file, "--shape", "x=5,4").exit_code == 0
    done = called("run", file, "--shape", "x=3,4")
    assert (
        done.exit_code == 2
        and "nnadapter compile MODEL -d fake_npu --shape x=3,4 -o FILE, with --dynamic-shapes" in done.stderr
    )
    done = called("compile", tmp_path / "m.onnx", "-d", "fake_npu", *shapes, "--dynamic-shapes", "-o", file)
    assert done.exit_code == 0 and "for x=[n, 4]" in done.stdout, done.output
    assert called("run", file, "--shape", "x=3,4").exit_code == 0
    done = called("compile", tmp_path / "m.onnx", "-d", "fake_npu", "--static-shapes", "-o", file)
    assert done.exit_code == 0 and "for x=[1, 4]" in done.stdout, done.output


def test_output_may_not_overwrite_the_model(tmp_path, model):
    content, link = Path(model).read_bytes(), tmp_path / "link.onnx"
    link.symlink_to(model)
    for output in (model, link):
        done = called("compile", model, "-d", "fake_npu", "-o", output)
        assert done.exit_code == 2 and "is the model, which would be overwritten" in done.stderr, done.output
    assert Path(model).read_bytes() == content


def test_output_may_not_be_a_pipe(tmp_path, model):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    done = called("compile", model, "-d", "fake_npu", "-o", pipe)
    assert done.exit_code == 2 and "is a device or a pipe; give the path of a regular file" in done.stderr
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.slow
def test_output_may_be_redirected_standard_output(tmp_path, model):
    file, log = tmp_path / "m.compiled", tmp_path / "log"
    with file.open("wb") as output, log.open("wb") as errors:
        command = [sys.executable, "-m", "nnadapter", "compile", model, "-d", "fake_npu", "-o", "/dev/stdout"]
        subprocess.run(command, stdout=output, stderr=errors, check=True)
    assert called("compile", "--check", file).exit_code == 0
    assert kind_of(log) is not SourceKind.COMPILED
