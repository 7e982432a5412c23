"""The external package of docs/extending.md, installed by pip, which brings an op to its driver."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.optional import is_installed, needs, skip_without

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
COMMANDS = re.search(r"```console\n(.*?)```", PAGE, re.DOTALL)[1].splitlines()
FILES = ("pyproject.toml", "acme_swish/operations.py", "acme_swish/converters.py", "acme_swish/driver.py")
KNOWN = """
import numpy as np, onnx, sys
import nnadapter as nna
from nnadapter.drivers.registry import open_device
from nnadapter.ir import ModelBuilder, OperandType, to_text
from nnadapter.ir.definition import by_definition
from nnadapter.ir.protobuf.serialization import load, save

x = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
positive = np.maximum(x, 0)
expected = np.maximum(positive / (1 + np.exp(-1.5 * positive)), 0)

with nna.InferenceSession("swish.onnx", devices="acme_swish", options=nna.Options(fallback="forbid")) as session:
    for rows in (2, 5):
        assert session.run(None, {"x": np.ones((rows, 3), np.float32)})[0].shape == (rows, 3)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=1e-5)
report = nna.partition_report("swish.onnx", devices="acme_swish", input_shapes={"x": (2, 3)})
assert "100.0% of FLOPs" in str(report), report
nna.partition_report("swish.onnx", devices="acme_swish", input_shapes={"x": (2, 3)}, save_segments="parts")
assert [node.op_type for node in onnx.load("parts/segment_0_acme_swish.onnx").graph.node] == ["Relu", "Swish", "Relu"]
nna.what_if(["swish.onnx"], devices="acme_swish", input_shapes={"x": (2, 3)})

builder = ModelBuilder()
operand = builder.add_input("x", OperandType("float32", (2, 3)))
(made,) = builder.add_operation("ACME_SWISH", [operand], {"beta": 1.5}, outputs=["y"])
model = builder.finish([made])
assert "ACME_SWISH" in to_text(model)
save(model, "swish.nnir")
np.testing.assert_allclose(by_definition(load("swish.nnir"), [positive])[0], expected, rtol=1e-6)
context = open_device("acme_swish").create_context({})
assert all(context.supported(model))

kernel = nna.register_kernel(
    "openvino", "Swish", lambda x, *, beta=1.0: (x / (1 + np.exp(-beta * x))).astype(x.dtype), domain="com.acme"
)
with nna.InferenceSession("swish.onnx", devices="openvino", options=nna.Options(fallback="forbid")) as session:
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=1e-5)
    assert [node.runs_as for node in session.report().nodes if node.op_type == "Swish"] == ["kernel <lambda>"]
nna.unregister_kernel(kernel)

nna.compile("swish.onnx", "swish.compiled", devices="acme_swish", input_shapes={"x": (2, 3)})
with nna.InferenceSession("swish.compiled") as session:
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=1e-5)
"""
LOOKED_AT = """
import numpy as np, onnx, sys
from importlib import metadata
import nnadapter as nna
found, asked = metadata.entry_points, []
def entry_points(**named):
    asked.append(named["group"])
    return found(**named)
metadata.entry_points = entry_points
text = '<ir_version: 10, opset_import: ["": 17, "com.acme": 1]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
for op in ("Relu", "com.acme.Swish"):
    try:
        with nna.InferenceSession(onnx.parser.parse_model(text.replace("Relu", op)), devices="fake_npu") as session:
            session.run(None, {"x": np.ones(2, np.float32)})
    except nna.errors.NNAdapterError:
        pass
    print(op, *sorted({"nnadapter.converters", "nnadapter.operations"} & {*asked}))
"""
AT_FAULT = """
import onnx
import nnadapter as nna
text = '<ir_version: 10, opset_import: ["": 17, "com.acme": 1]> g (float[2] x) => (float[2] y) { y = com.acme.Odd(x) }'
try:
    nna.InferenceSession(onnx.parser.parse_model(text), devices="fake_npu")
except nna.errors.InvalidModelError as error:
    print(error)
"""
ODD = """
from nnadapter.ir import OperationSchema, Role
convert = {}
ROW = OperationSchema(
    type="ODD",
    inputs=(Role("input"),),
    infer=lambda types, attributes: 1 / 0,
    flops=lambda types, results, attributes: 0,
    definition=lambda x: x,
    source="com.acme Odd-1",
)
"""


def block_behind(words):
    return re.search(rf"`{re.escape(words)}`.*?```\w+\n(.*?)```", PAGE, re.DOTALL)[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with the page's files and the package installed in `site`."""
    if not is_installed("setuptools"):
        skip_without("setuptools")
    folder = tmp_path_factory.mktemp("afternoon")
    for name in FILES:
        path = folder / "acme_swish" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block_behind(name))
    (folder / "acme_swish" / "acme_swish" / "__init__.py").touch()
    (folder / "make_model.py").write_text(block_behind("make_model.py"))
    command = shlex.split(COMMANDS[0])
    assert command[:2] == ["pip", "install"]
    offline = ("-q", "--no-build-isolation", "--target", "site")
    done = run(folder, "-m", "pip", "install", *offline, *command[2:], site=False)
    assert not done.returncode, done.stderr
    done = run(folder, *shlex.split(COMMANDS[1])[1:])
    assert not done.returncode, done.stderr
    return folder


def run(folder, *arguments, site=True):
    path = os.pathsep.join([str(ROOT), *([str(folder / "site")] if site else [])])
    environment = {**os.environ, "PYTHONPATH": path, "NNADAPTER_CACHE_DIR": str(folder / "cache")}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def said(folder, *words, site=True):
    done = run(folder, "-m", "nnadapter", *words, site=site)
    return done.stdout + done.stderr


@needs("openvino")
@pytest.mark.slow
def test_external_op_runs_entirely_on_its_device(folder):
    done = run(folder, "-W", "error", "-c", KNOWN)
    assert not done.returncode, done.stderr


@pytest.mark.sweep
def test_documented_commands_work(folder):
    """Run all commands but the doctor in one process; the doctor belongs to a broken package."""
    words = [shlex.split(command)[1:] for command in COMMANDS[3:]]
    calls = "".join(f"main({each!r}, standalone_mode=False); print('NEXT')\n" for each in words)
    done = run(folder, "-c", f"from nnadapter.cli.command import main\n{calls}")
    ops, described, report, ran, conformance, _ = done.stdout.split("NEXT\n")
    assert re.search(r"ACME_SWISH +0-64 +float32", ops)
    assert "ACME_SWISH(input; beta = 1) -> output" in described and "return x / (1 + np.exp(-beta * x))" in described
    assert "100.0% of FLOPs" in report and re.search(r"com.acme::Swish +1 +1", report)
    assert "acme_swish" in ran
    assert "full marks; 4 of 4 cases" in conformance


def test_error_without_the_package_names_the_op(folder):
    without = said(folder, "report", "swish.onnx", "-d", "fake_npu", "--shape", "x=2,3", site=False)
    assert (
        "(Swish) is supported by no device" in without
        and "install the package that provides com.acme::Swish" in without
    )
    assert len(without.splitlines()) == 1
    alone = said(folder, "run", "swish.onnx", "-d", "cpu", "--shape", "x=2,3", site=False)
    assert "install the package that provides com.acme::Swish, and name a device that takes it" in alone


@pytest.mark.parametrize("devices", ["cpu", "fake_npu,cpu"])
def test_error_without_the_device_names_it(folder, devices):
    assert "acme-swish 1.0 provides com.acme::Swish for 'acme_swish'" in said(
        folder, "run", "swish.onnx", "-d", devices, "--shape", "x=2,3"
    )


@pytest.mark.sweep
def test_broken_package_is_named_and_affects_no_other(folder):
    second = folder / "site" / "other-2.0.dist-info"
    second.mkdir()
    (second / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 2.0\n")
    (second / "entry_points.txt").write_text(
        "[nnadapter.operations]\nRELU = nowhere:ROW\nACME_OTHER = nowhere:ROW\n"
        "[nnadapter.converters]\ncom.acme.Swish-1 = nowhere:convert\n"
        "com.microsoft.Gelu-1 = acme_swish.converters:convert_swish\n"
    )
    try:
        doctor = said(folder, "doctor")
        refused = said(folder, "report", "swish.onnx", "-d", "acme_swish", "--shape", "x=2,3")
        device = said(folder, "ops", "acme_swish")
    finally:
        (second / "entry_points.txt").unlink()
        (second / "METADATA").unlink()
        second.rmdir()
    for words in (
        "+ acme_swish",
        "'RELU' of other 2.0 (nnadapter.operations) is not used: nnadapter has an operation of that name",
        "'ACME_OTHER' of other 2.0 (nnadapter.operations) is not used: ModuleNotFoundError: No module named 'nowhere'",
        "'com.microsoft.Gelu-1' of other 2.0 (nnadapter.converters) is not used: nnadapter converts this op itself",
        "two packages provide it",
    ):
        assert words in doctor
    assert "two packages provide it" in refused and "uninstall one of them" in refused
    assert "ACME_SWISH" in device


def test_entry_points_are_read_only_for_unknown_ops(folder):
    known, unknown = run(folder, "-c", LOOKED_AT).stdout.splitlines()
    assert known == "Relu" and unknown == "com.acme.Swish nnadapter.converters nnadapter.operations"


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("converter", "said"),
    [
        (
            "lambda context, node: None",
            r"converter com\.acme\.Odd-1 of odd 1\.0 adds no operation that produces \['y'\]",
        ),
        ("lambda context, node: 1 / 0", r"converter com\.acme\.Odd-1 of odd 1\.0 failed: ZeroDivisionError"),
        (
            "lambda context, node: context.add('ODD', [context.operand(node.input(0))], outputs=node.outputs)",
            r"the shape rule of ODD of odd 1\.0 failed: ZeroDivisionError",
        ),
        ("3", r"'com\.acme\.Odd-1' of odd 1\.0 \(nnadapter\.converters\) is not used: .* is int, expected a function"),
    ],
)
def test_error_names_the_failing_package_once(tmp_path, converter, said):
    brings = tmp_path / "site" / "odd-1.0.dist-info"
    brings.mkdir(parents=True)
    (brings / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1.0\n")
    (brings / "entry_points.txt").write_text(
        "[nnadapter.operations]\nODD = odd:ROW\n[nnadapter.converters]\ncom.acme.Odd-1 = odd:convert\n"
    )
    (tmp_path / "site" / "odd.py").write_text(ODD.format(converter))
    error = run(tmp_path, "-c", AT_FAULT).stdout
    assert re.search(said, error)
    assert error.count("ask its vendor") == 1 and "not valid ONNX" not in error
