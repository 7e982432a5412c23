"""Modules loaded until the first result: a budget of source bytes, and no unnecessary packages.

Budgets are about an eighth above current sizes. Bytes are counted, not modules, so that files can be merged.
"""

from __future__ import annotations

import os
import subprocess
import sys

import onnx
import pytest

import nnadapter as nna
from tests.models import CHAIN, parse

_COUNT = """
new = set(sys.modules) - before
ours = [sys.modules[name] for name in new if name.partition(".")[0] in ("nnadapter", "partition")]
print("LOADED", sum(os.path.getsize(module.__file__) for module in ours if module.__file__) // 1024)
print("LOADED", *sorted(name for name in new if name.partition(".")[0] not in ("nnadapter", "partition")))
"""
SESSION = f"""
import os, sys, numpy
feed = {{"x": numpy.ones((2, 3), numpy.float32)}}
before = set(sys.modules)
import nnadapter
with nnadapter.InferenceSession(sys.argv[1], devices=sys.argv[2].split(",")) as session:
    session.run(None, feed)
{_COUNT}"""
COMMAND = f"""
import os, sys
before = set(sys.modules)
from nnadapter.cli import main
main([sys.argv[1]], standalone_mode=False)
{_COUNT}"""
NO_SESSION = ("click", "openvino.tools.ovc", "openvino_telemetry", "platformdirs", "rich", "scipy")
"""Packages that no session needs to load and run a model."""
NO_CPU = (*NO_SESSION, "asyncio", "difflib", "email", "google", "ml_dtypes", "msgspec", "onnx", "pathlib", "ssl")
NO_FILE = (*NO_SESSION, "email", "importlib.metadata", "msgspec", "numpy.typing", "onnx", "onnxruntime")
"""Packages not needed by a compiled file for a single device, nor by a session with a filled cache."""
ONE_DEVICE = ["fake_npu", "openvino", "null"]


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.onnx"
    onnx.save(parse(CHAIN), path)
    return path


def check_loaded(program, arguments, kibibytes, without, **variables):
    """Check that a process loads at most `kibibytes` of nnadapter source, and none of the packages `without`."""
    command = [sys.executable, "-W", "ignore", "-c", program, *map(str, arguments)]
    environment = {**os.environ, **variables}
    printed = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    source, others = (line.split()[1:] for line in printed.splitlines() if line.startswith("LOADED"))
    loaded = [name for name in others if any(name == each or name.startswith(f"{each}.") for each in without)]
    assert loaded == []
    assert int(source[0]) <= kibibytes


def test_imports_of_a_cpu_session(model_path):
    check_loaded(SESSION, (model_path, "cpu"), 215, NO_CPU)


@pytest.mark.parametrize(("device", "kibibytes"), [("fake_npu", 2900), ("openvino", 2800), ("null", 2600)])
def test_imports_of_a_session_on_one_device(model_path, device, kibibytes):
    others = {"openvino"} - {device}
    check_loaded(SESSION, (model_path, device), kibibytes, (*NO_SESSION, *others))


@pytest.mark.slow
@pytest.mark.parametrize("device", ONE_DEVICE)
def test_fully_delegated_model_does_not_import_onnxruntime(tmp_path, device):
    path = tmp_path / "model.onnx"
    text = '<ir_version: 10, opset_import: ["" : 17]> g (float[2, 3] x) => (float[2, 3] y) { y = Relu(x) }'
    onnx.save(parse(text), path)
    check_loaded(SESSION, (path, device), 2900, ("onnxruntime", "numpy.random"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "kibibytes", "needs"),
    [
        ("fake_npu", 700, ()),
        ("openvino", 640, ()),
        ("null", 900, ()),
        ("qnn", 1200, ("email", "importlib.metadata", "onnxruntime")),
    ],
)
def test_imports_of_a_session_from_a_compiled_file(model_path, tmp_path, device, kibibytes, needs):
    path = tmp_path / "model.compiled"
    nna.compile(model_path, path, devices=device, input_shapes={"x": (2, 3)})
    check_loaded(SESSION, (path, device), kibibytes, set(NO_FILE) - set(needs))


@pytest.mark.slow
@pytest.mark.parametrize(("device", "kibibytes"), [("fake_npu", 790), ("openvino", 730)])
def test_imports_of_a_session_with_a_filled_cache(model_path, tmp_path, device, kibibytes):
    for budget, packages in ((sys.maxsize, ()), (kibibytes, NO_FILE)):  # the first process fills the cache
        check_loaded(SESSION, (model_path, device), budget, packages, NNADAPTER_CACHE_DIR=str(tmp_path))


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_imports_of_the_command_line(option):
    packages = ("numpy", "onnx", "onnxruntime", "openvino", "msgspec", "scipy")
    check_loaded(COMMAND, (option,), 100, packages)
