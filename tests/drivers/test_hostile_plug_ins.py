"""Plug-ins that end the process, lie about themselves, or print: each is a row, and nothing else breaks."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import onnx
import pytest

from nnadapter.costs.calibrating import calibrate
from nnadapter.costs.calibration_files import keep_calibration
from nnadapter.costs.stopwatch import Stopwatch
from tests.models import HEAD as MODEL_HEAD
from tests.models import parse

HEAD = """
import os, sys
from nnadapter.drivers import Capability, Context, Device, DeviceInfo, Driver, ModelForm

class D(Device):
    capability = Capability(form=ModelForm.IR)
    def create_context(self, options): sys.exit(7)

class Hostile(Driver):
    def open(self, device_id): return D()
"""
PLUG_INS = {
    "exits at import": ("import sys; sys.exit(3)", "SystemExit: 3"),
    "raises what nobody catches": ("class Odd(BaseException): pass\nraise Odd('no')", "Odd: no"),
    "exits when it is made": (f"{HEAD}    def __init__(self): sys.exit(4)", "SystemExit: 4"),
    "exits when it lists": (f"{HEAD}    def devices(self): sys.exit(5)", "SystemExit: 5"),
    "exits when it opens": (HEAD.replace("return D()", "sys.exit(6)"), "SystemExit: 6"),
    "lists no rows": (f"{HEAD}    def devices(self): return ['a']", "hold 'a', expected nnadapter.drivers.DeviceInfo"),
    "lists a wrong type": (
        f"{HEAD}    def devices(self): return [DeviceInfo(name='hostile', type='gpu')]",
        "type of its row of devices is 'gpu', expected DeviceType",
    ),
    "lists another's device": (
        f"{HEAD}    def devices(self): return [DeviceInfo(name='fake_npu')]",
        "name 'fake_npu', expected 'hostile' or 'hostile:ID'",
    ),
    "says nonsense of itself": (HEAD.replace("ModelForm.IR", "'IR'"), "form of its capability is 'IR'"),
    "says nonsense of its options": (
        HEAD.replace("ModelForm.IR", "ModelForm.IR, options=('a',)"),
        "options of its capability hold 'a', expected nnadapter.drivers.Option",
    ),
}


def listed(folder, code, *words):
    (folder / "hostile.py").write_text(code)
    info = folder / "hostile-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hostile\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[nnadapter.drivers]\nhostile = hostile:Hostile\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    command = [sys.executable, "-m", "nnadapter", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode in (0, 1) and "Traceback" not in done.stderr, done.stderr
    return done


@pytest.mark.parametrize(("code", "words"), PLUG_INS.values(), ids=PLUG_INS)
def test_it_is_a_row(tmp_path, code, words):
    rows = {row["name"]: row for row in json.loads(listed(tmp_path, code, "devices", "--json").stdout)}
    assert not rows["hostile"]["available"] and words in rows["hostile"]["reason"]
    assert rows["fake_npu"]["available"] and rows["fake_npu"]["health"]["state"] == "works"


def test_one_that_exits_when_it_is_used_does_not_end_the_program(tmp_path):
    rows = {row["name"]: row for row in json.loads(listed(tmp_path, HEAD, "devices", "--json").stdout)}
    assert rows["hostile"]["health"] == {
        "state": "failed",
        "detail": "device 'hostile' did not give a context: SystemExit: 7; ask its vendor",
        "first_seconds": None,
        "run_seconds": None,
    }


def test_what_it_prints_is_not_among_the_results(tmp_path):
    code = f"print('hello'); import os; os.write(1, b'native')\n{HEAD}"
    done = listed(tmp_path, code, "devices", "--json")
    assert json.loads(done.stdout) and "hello" in done.stderr and "native" in done.stderr


CHATTY = """
import os
from nnadapter.drivers import SUPPORTED, Admission, Capability, Context, Device, Driver, Execution, ModelForm, Program

def say():
    print("python says")
    os.write(1, b"native says\\n")

class Hostile(Driver, Device, Context, Program, Execution):
    capability = Capability(form=ModelForm.IR)
    def open(self, device_id): say(); return self
    def create_context(self, options): say(); return self
    def supported(self, model): say(); return [SUPPORTED] * len(model.operations)
    def admit(self, model): say(); return Admission()
    def compile(self, model): say(); return self
    def create_execution(self): say(); return self
    def compute(self, inputs): say(); return [abs(inputs[0])]
    def close(self): say()
"""


@pytest.fixture(scope="module")
def of_the_cpu():
    return calibrate("cpu", budget_seconds=0.0, stopwatch=Stopwatch(sleep=lambda _: None, turn_seconds=0.0))


@pytest.mark.parametrize(
    "words",
    [
        "report m.onnx -d hostile --format json",
        "report m.onnx -d hostile --what-if --format json",
        "run m.onnx -d hostile --format json",
        "compare m.onnx -d hostile --json",
        "calibrate hostile --json",
        "ops hostile --json",
        "devices --json",
        "doctor --json",
    ],
)
def test_what_a_device_prints_is_not_among_the_results_of_any_command(tmp_path, monkeypatch, of_the_cpu, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NNADAPTER_CACHE_DIR", str(tmp_path / "cache"))
    keep_calibration(of_the_cpu)  # so that `calibrate` measures the plug-in alone
    onnx.save(parse(f"{MODEL_HEAD} g (float[3] x) => (float[3] y) {{ y = Abs(x) }}"), "m.onnx")
    done = listed(tmp_path, CHATTY, *words.split())
    assert json.loads(done.stdout) and "python says" in done.stderr and "native says" in done.stderr
