"""What a fresh process has loaded after its first result: what a device does not use is not imported for it."""

from __future__ import annotations

import os
import subprocess
import sys

import onnx
import pytest

import nnadapter as nna
from tests.drivers.qnn.emulator import needs_qnn
from tests.models import CHAIN, parse

PROGRAM = """
import sys, numpy
feed = {"x": numpy.ones(tuple(map(int, sys.argv[2].split(","))), numpy.float32)}
before = set(sys.modules)
import nnadapter
with nnadapter.InferenceSession(sys.argv[1], devices=sys.argv[3].split(",")) as session:
    session.run(None, feed)
print(*sorted(set(sys.modules) - before))
"""
OF_CPU = {
    "nnadapter",
    "nnadapter.drivers",
    "nnadapter.drivers.crashes",
    "nnadapter.drivers.onnxruntime",
    "nnadapter.drivers.onnxruntime.errors",
    "nnadapter.drivers.onnxruntime.fusions",
    "nnadapter.drivers.onnxruntime.optimizers",
    "nnadapter.drivers.onnxruntime.values",
    "nnadapter.errors",
    "nnadapter.files",
    "nnadapter.files.source_kind",
    "nnadapter.inference",
    "nnadapter.inference.opening",
    "nnadapter.inference.session",
    "nnadapter.limits",
    "nnadapter.onnx",
    "nnadapter.onnx.mentions",
    "nnadapter.onnx.onnxruntime_limits",
    "nnadapter.onnx.walking",
    "nnadapter.onnx.wire_format",
    "nnadapter.onnx.wire_nodes",
    "nnadapter.options",
    "nnadapter.policies",
    "nnadapter.process",
    "nnadapter.process.cache",
    "nnadapter.process.collecting",
    "nnadapter.process.forking",
    "nnadapter.process.lazily",
    "nnadapter.process.real_onnxruntime",
    "nnadapter.running",
    "nnadapter.running.host",
    "nnadapter.running.provenance",
    "nnadapter.traces",
    "nnadapter.traces.event",
    "nnadapter.traces.trace",
    "partition",
    "partition.dtypes",
    "partition.verdict",
}
"""Every module of ours that a session on the CPU alone may load."""
OF_NO_DEVICE = (
    "email",
    "nnadapter.cli",
    "nnadapter.costs",
    "nnadapter.drivers.execution_providers",
    "nnadapter.drivers.isolated",
    "nnadapter.drivers.native.driver",
    "nnadapter.drivers.providers",
    "nnadapter.eager",
    "nnadapter.inference.binding",
    "nnadapter.inference.comparing",
    "nnadapter.inference.streaming",
    "nnadapter.plan_files",
    "nnadapter.reports",
    "nnadapter.running.measuring",
    "nnadapter.runtime",
    "nnadapter.testing",
    "nnadapter.whatif",
    "openvino.tools.ovc",
    "openvino_telemetry",
    "partition.by_cost",
    "platformdirs",
    "rich",
    "scipy",
)
"""Rooms and packages that no session needs to load and run a model."""
OF_NO_FILE = (
    "email",
    "importlib.metadata",
    "msgspec",
    "nnadapter.converters",
    "nnadapter.costs",
    "nnadapter.drivers.fake_npu.compiling",
    "nnadapter.drivers.fake_npu.kernels.recurrent",
    "nnadapter.drivers.fake_npu.kernels.spectral",
    "nnadapter.drivers.fake_npu.lowerings",
    "nnadapter.drivers.fake_npu.operations",
    "nnadapter.drivers.onnxruntime.sessions",
    "nnadapter.drivers.onnxruntime.weights",
    "nnadapter.drivers.openvino.asking",
    "nnadapter.drivers.openvino.operators",
    "nnadapter.ir.builder",
    "nnadapter.ir.operations",
    "nnadapter.ir.passes",
    "nnadapter.ir.tracing",
    "nnadapter.kernels.choosing",
    "nnadapter.memory.planner",
    "nnadapter.offering",
    "nnadapter.onnx.separating",
    "nnadapter.planning.border_steps",
    "nnadapter.process.plug_ins",
    "nnadapter.rules",
    "nnadapter.running.bindings",
    "nnadapter.running.checks",
    "nnadapter.running.compiled",
    "nnadapter.running.control",
    "nnadapter.running.deadlines",
    "nnadapter.running.flights",
    "nnadapter.running.observed",
    "nnadapter.running.promise",
    "nnadapter.running.traced_programs",
    "nnadapter.running.turns",
    "nnadapter.running.whole",
    "nnadapter.traces.recorder",
    "numpy.typing",
    "onnx",
    "onnxruntime",
    "partition.sequences",
    "scipy",
)
"""Rooms and packages that no file needs whose segments are all on one device."""
OF_THE_FILE_OF = {
    "null": {"nnadapter.ir.builder", "nnadapter.ir.operations", "nnadapter.ir.tracing", "nnadapter.process.plug_ins"},
    "qnn": {
        "email",
        "importlib.metadata",
        "onnxruntime",
        "nnadapter.drivers.execution_providers",
        "nnadapter.drivers.onnxruntime.sessions",
        "nnadapter.drivers.onnxruntime.weights",
    },
}
"""By device, which of these it needs after all."""
OF_ONE_DEVICE = {"fake_npu": "nnadapter.drivers.fake_npu", "openvino": "openvino", "null": "nnadapter.drivers.null"}


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.onnx"
    onnx.save(parse(CHAIN), path)
    return path


def loaded(path, devices, like=None, **variables):
    """The modules that were loaded from the import of nnadapter to the first result; inputs are those of `like`."""
    shape = ",".join(str(size.dim_value) for size in onnx.load(like or path).graph.input[0].type.tensor_type.shape.dim)
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(path), shape, devices]
    environment = {**os.environ, **variables}
    return set(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.split())


def within(modules, room):
    return sorted(name for name in modules if name == room or name.startswith(f"{room}."))


def test_the_cpu_alone_loads_what_it_uses(model_path):
    modules = loaded(model_path, "cpu")
    assert {name for name in modules if name.partition(".")[0] in ("nnadapter", "partition")} <= OF_CPU
    for package in ("onnx", "google", "msgspec", "scipy", "asyncio", "ssl", "email", "ml_dtypes", "click", "rich"):
        assert not within(modules, package)
    assert "difflib" not in modules


@pytest.mark.parametrize("device", OF_ONE_DEVICE)
def test_a_device_loads_nothing_of_others(model_path, device):
    modules = loaded(model_path, device)
    others = {room for name, room in OF_ONE_DEVICE.items() if name != device}
    own_packages = {"email"}  # onnx itself asks for its version
    for room in {*OF_NO_DEVICE, *others} - own_packages:
        assert not within(modules, room), room


@pytest.mark.parametrize("device", OF_ONE_DEVICE)
def test_onnxruntime_is_loaded_where_the_cpu_has_something_to_run(tmp_path, device):
    path = tmp_path / "model.onnx"
    text = '<ir_version: 10, opset_import: ["" : 17]> g (float[2, 3] x) => (float[2, 3] y) { y = Relu(x) }'
    onnx.save(parse(text), path)
    modules = loaded(path, device)
    for package in ("onnxruntime", "numpy.random"):
        assert not within(modules, package), package


@pytest.mark.parametrize("device", ["fake_npu", "openvino", "null", pytest.param("qnn", marks=needs_qnn)])
def test_a_compiled_file_loads_nothing_that_makes_files(model_path, tmp_path, device):
    path = tmp_path / "model.compiled"
    nna.compile(model_path, path, devices=device, input_shapes={"x": (2, 3)})
    modules = loaded(path, device, like=model_path)
    for room in {*OF_NO_DEVICE, *OF_NO_FILE} - OF_THE_FILE_OF.get(device, set()):
        assert not within(modules, room), room


@pytest.mark.parametrize("device", ["fake_npu", "openvino"])
def test_plans_that_were_kept_load_nothing_that_makes_plans(model_path, tmp_path, device):
    for _ in range(2):
        modules = loaded(model_path, device, NNADAPTER_CACHE_DIR=str(tmp_path))
    for room in {*OF_NO_DEVICE, *OF_NO_FILE}:
        assert not within(modules, room), room


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_the_command_line_loads_a_command_when_it_is_called(option):
    code = (
        "import sys\n"
        "from nnadapter.cli import main\n"
        f"main(['{option}'], standalone_mode=False)\n"
        "print('LOADED', *sorted(sys.modules))\n"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = set(told.stdout.rpartition("LOADED")[2].split())
    for package in ("numpy", "onnx", "onnxruntime", "openvino", "msgspec", "scipy"):
        assert not within(modules, package), package
    assert not modules & {"nnadapter.cli.run", "nnadapter.cli.report"}
