"""Unusable models: exit code 2, one sentence, and no output."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from nnadapter.cli import main
from tests.models import CHAIN, HEAD, parse

CUSTOM = '<ir_version: 10, opset_import: ["" : 17, "somebody" : 1]>'
FAULTY = {
    "unknown.onnx": f"{HEAD} g (float[2] x) => (float[2] y) {{ a = Relu(x) y = NoSuchOperation(a) }}",
    "custom.onnx": f"{CUSTOM} g (float[2] x) => (float[2] y) {{ a = Relu(x) y = somebody.Special(a) }}",
    "circle.onnx": f"{HEAD} g (float[2] x) => (float[2] y) {{ y = Neg(a) a = Add(x, y) }}",
    "dangling.onnx": f"{HEAD} g (float[2] x) => (float[2] y) {{ y = Add(x, nowhere) }}",
    "short.onnx": f"{HEAD} g (float[2] x) => (float[2] y) {{ c = Constant <value = float[1] {{1}}> () y = Add(x, c) }}",
}


@pytest.fixture
def faulty(folder):
    """Create unusable model files."""
    contents = (folder / "chain.onnx").read_bytes()
    for name, bad in {
        "noise.onnx": b"\x00\xff" * 40, "text.onnx": b"hello", "empty.onnx": b"", "cut.onnx": contents[:-9],
    }.items():  # fmt: skip
        (folder / name).write_bytes(bad)
    (folder / "mojibake.onnx").write_bytes(contents.replace(b"Relu", b"\xff\xfelu"))
    (folder / "folder.onnx").mkdir()
    for name, text in FAULTY.items():
        model = onnx.parser.parse_model(text)
        for attribute in model.graph.node[0].attribute:
            attribute.t.dims[0] = 3
        onnx.save(model, name)
    onnx.save(helper.make_model(helper.make_graph([], "none", [], [])), "nonodes.onnx")
    weights = numpy_helper.from_array(np.ones((2, 3), np.float32), "w")
    model = parse(CHAIN)
    model.graph.node[0].CopyFrom(helper.make_node("Add", ["x", "w"], ["a"]))
    model.graph.initializer.append(weights)
    onnx.save(model, "weightless.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    (folder / "weights.bin").unlink()
    return folder


@pytest.mark.parametrize("command", ["report", "run", "compare"])
@pytest.mark.parametrize("device", ["cpu", "fake_npu"])
@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("noise", "is not an ONNX model"),
        ("text", "is not an ONNX model"),
        ("empty", "is empty"),
        ("cut", "is truncated or damaged"),
        ("folder", "cannot be read: Is a directory"),
        ("absent", "does not exist"),
        ("nonodes", "has no nodes and no outputs"),
        ("weightless", "external data file 'weights.bin'"),
        ("mojibake", "a name in it is not UTF-8"),
        ("short", "has an attribute that cannot be read"),
        ("circle", "before it is produced"),
        ("dangling", "reads 'nowhere', which has no producer"),
    ],
)
def test_unusable_model_is_one_line_on_stderr(call, faulty, capfd, command, device, model, text):
    before = sorted(faulty.iterdir())
    extra = {"report": "-o out.txt", "run": "--save out", "compare": "--json"}[command]
    result = call(f"{command} {model}.onnx -d {device} {extra}", 2)
    assert text in result.stderr and not result.stdout
    assert len(result.stderr.splitlines()) == 1
    assert capfd.readouterr().err == "", "ONNX Runtime printed something"
    assert sorted(faulty.iterdir()) == before


@pytest.mark.parametrize("command", ["report", "run", "compare"])
@pytest.mark.parametrize("model", ["unknown", "custom"])
def test_unknown_operation_is_one_line_on_stderr(call, faulty, capfd, command, model):
    result = call(f"{command} {model}.onnx -d fake_npu", 2)
    assert "is supported by no device, not even the CPU" in result.stderr and len(result.stderr.splitlines()) == 1
    assert capfd.readouterr().err == ""


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_damaged_files_never_cause_a_traceback(call, folder, data):
    contents = bytearray((folder / "scores.onnx").read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        contents[data.draw(st.integers(0, len(contents) - 1))] = data.draw(st.integers(0, 255))
    (folder / "damaged.onnx").write_bytes(contents[: data.draw(st.integers(len(contents) // 2, len(contents)))])
    result = CliRunner().invoke(main, ["report", "damaged.onnx", "-d", "fake_npu", "--fallback", "allow"])
    assert result.exit_code in (0, 2)
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)


@pytest.mark.parametrize("number", [0, 999])
def test_input_without_a_data_type_is_an_error(call, number):
    model = parse(CHAIN)
    type_ = model.graph.input[0].type.tensor_type
    type_.elem_type, type_.shape.dim[0].dim_param = number, "N"
    onnx.save(model, "untyped.onnx")
    said = call("report untyped.onnx -d fake_npu", 2).stderr
    assert "has no data type that ONNX knows; export the model again" in said


@pytest.mark.parametrize("command", ["run", "compare", "bench", "compile -o m.nna"])
def test_every_command_requires_shape_for_input_without_one(call, command):
    model = parse(f"{HEAD} g (float[N] x) => (float[N] y) {{ a = Relu(x) y = Exp(a) }}")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.ClearField("shape")
    onnx.save(model, "shapeless.onnx")
    said = call(f"{command} shapeless.onnx -d fake_npu", 2).stderr
    assert (
        "the model does not state the shape of input 'x', not even its rank; give it with --shape x=1,3,224,224" in said
    )
    call(f"{command} shapeless.onnx -d fake_npu --shape x=2,3", 0)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs a standard input with a name")
def test_model_from_a_pipe_is_an_error(folder):
    command = [sys.executable, "-m", "nnadapter", "run", "/dev/stdin", "-d", "fake_npu"]
    contents = (folder / "chain.onnx").read_bytes()
    done = subprocess.run(command, input=contents, capture_output=True, timeout=120)
    assert done.returncode == 2 and b"is empty when read again, like a pipe; save it in a regular file" in done.stderr
