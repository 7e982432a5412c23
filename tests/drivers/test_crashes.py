"""Drivers that crash the process: the trace has the device, call and segment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

_DRIVER = """
import ctypes, os
from nnadapter.drivers import (
    SUPPORTED, Capability, Context, Device, Driver, Execution, ModelForm, Option, Program, Reason, Unsupported
)

CRASHES = {"segmentation fault": lambda: ctypes.string_at(0), "abort": os.abort}
OPTIONS = (Option(name="at", default="", help="Where."), Option(name="how", default="", help="Which crash."))
NO = Unsupported(Reason.UNSUPPORTED_OPERATION, "no")


class Crashing(Driver, Device, Context, Program, Execution):
    capability = Capability(form=ModelForm.IR, options=OPTIONS)
    at = how = ""
    closed = iter(("execution", "program", "context", "device"))

    def crash(self, call):
        if call == self.at:
            CRASHES[self.how]()

    def open(self, device_id):
        return self

    def create_context(self, options):
        self.at, self.how = options["at"], options["how"]
        self.crash("create_context")
        return self

    def supported(self, model):
        self.crash("supported")
        return [SUPPORTED if operation.type == "RELU" else NO for operation in model.operations]

    def compile(self, model):
        self.crash("compile")
        return self

    def create_execution(self):
        self.crash("create_execution")
        return self

    def compute(self, inputs):
        self.crash("compute")
        return [inputs[0]]

    def kernels(self):
        self.crash("kernels")
        return ()

    def profile(self):
        self.crash("profile")

    def close(self):
        self.crash(f"close of {next(self.closed)}")
"""
_RUN = """
import faulthandler, sys
if sys.argv[3:]:
    faulthandler.enable(open(sys.argv[3], "w"))

import numpy as np, onnx.parser
import nnadapter as nna

model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["" : 20]> g (float[2, 4] x) => (float[2, 4] y) {
    [first] a = Erf(x) [second] b = Relu(a) [third] c = Relu(b) [fourth] y = Erf(c)
}''')
device = ("crashing", {"at": sys.argv[1], "how": sys.argv[2]})
with nna.InferenceSession(model, devices=device) as session:
    session.run(None, {"x": np.ones((2, 4), np.float32)})
    session.report()
"""
_SEGMENT = ", segment 1 (nodes 'second' and 1 more)"
_CODES = {"segmentation fault": -signal.SIGSEGV, "abort": -signal.SIGABRT}


def crashed(folder, *arguments):
    (folder / "crashing.py").write_text(_DRIVER)
    info = folder / "crashing-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: crashing\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[nnadapter.drivers]\ncrashing = crashing:Crashing\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    command = [sys.executable, "-c", _RUN, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)


_CALLS = {
    "create_context": "",
    "supported": "",
    "compile": _SEGMENT,
    "create_execution": _SEGMENT,
    "compute": _SEGMENT,
    "kernels": "",
    "profile": "",
    "close of program": _SEGMENT,
    "close of context": "",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "segment", "how"),
    [
        *((call, segment, "abort") for call, segment in _CALLS.items()),
        ("compute", _SEGMENT, "segmentation fault"),
        *(
            pytest.param(call, segment, "segmentation fault", marks=pytest.mark.sweep)
            for call, segment in _CALLS.items()
            if call != "compute"
        ),
    ],
)
def test_trace_has_device_call_and_segment(tmp_path, call, segment, how):
    completed = crashed(tmp_path, call, how)
    assert completed.returncode == _CODES[how]
    lines = [line for line in completed.stderr.splitlines() if "device " in line]
    assert len(lines) == 1 and lines[0].endswith(f" in device 'crashing', call '{call.split()[0]}'{segment}"), (
        completed.stderr
    )


@pytest.mark.slow
def test_trace_goes_to_the_file_of_faulthandler(tmp_path):
    completed = crashed(tmp_path, "compute", "abort", str(tmp_path / "trace"))
    assert completed.returncode == -signal.SIGABRT and "device" not in completed.stderr
    assert f"device 'crashing', call 'compute'{_SEGMENT}" in (tmp_path / "trace").read_text()
