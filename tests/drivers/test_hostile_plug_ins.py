"""Plug-ins that exit, misreport or print are listed and affect nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import onnx
import pytest

from nnadapter.costs import keep_calibration
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
    "lists no rows": (f"{HEAD}    def devices(self): return ['a']", "holds 'a', expected nnadapter.drivers.DeviceInfo"),
    "lists a wrong type": (
        f"{HEAD}    def devices(self): return [DeviceInfo(name='hostile', type='gpu')]",
        "type of the DeviceInfo is 'gpu', expected DeviceType",
    ),
    "lists another's device": (
        f"{HEAD}    def devices(self): return [DeviceInfo(name='fake_npu')]",
        "name 'fake_npu', expected 'hostile' or 'hostile:ID'",
    ),
    "says nonsense of itself": (HEAD.replace("ModelForm.IR", "'IR'"), "form of the capability is 'IR'"),
    "says nonsense of its options": (
        HEAD.replace("ModelForm.IR", "ModelForm.IR, options=('a',)"),
        "options of the capability hold 'a', expected nnadapter.drivers.Option",
    ),
}


def put(folder, code, name="hostile"):
    """Write a plug-in into a folder as pip installs it."""
    (folder / f"{name}.py").write_text(code)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[nnadapter.drivers]\n{name} = {name}:Hostile\n")


def run_cli(folder, *words, codes=(0, 1)):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    command = [sys.executable, "-m", "nnadapter", *words]
    completed = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert completed.returncode in codes and "Traceback" not in completed.stderr, completed.stderr
    return completed


CHATTY = """
import os
from nnadapter.drivers import SUPPORTED, Admission, Capability, Context, Device, Driver, Execution, ModelForm, Program
from nnadapter.drivers import Reason, Unsupported

def say():
    print("python says")
    os.write(1, b"native says\\n")

REFUSED = Unsupported(Reason.UNSUPPORTED_OPERATION, "no kernel")
TAKEN = {"ABS": SUPPORTED, "ADD": SUPPORTED, "MUL": SUPPORTED}  # few, so that little is calibrated

class Hostile(Driver, Device, Context, Program, Execution):
    capability = Capability(form=ModelForm.IR)
    def open(self, device_id): say(); return self
    def create_context(self, options): say(); return self
    def supported(self, model): say(); return [TAKEN.get(each.type, REFUSED) for each in model.operations]
    def admit(self, model): say(); return Admission()
    def compile(self, model): say(); return self
    def create_execution(self): say(); return self
    def compute(self, inputs): say(); return [abs(inputs[0])]
    def close(self): say()
"""
OTHER_PLUG_INS = {
    "exits when it is used": HEAD,
    "prints when it is imported": f"print('hello'); import os; os.write(1, b'native')\n{HEAD}",
    "prints whatever it is asked": CHATTY,
}


@pytest.fixture(scope="module")
def listing(tmp_path_factory):
    """Return the output of `devices` with all plug-ins installed at once."""
    folder = tmp_path_factory.mktemp("plug_ins")
    for name, code in {**{kind: code for kind, (code, _) in PLUG_INS.items()}, **OTHER_PLUG_INS}.items():
        put(folder, code.replace("'hostile'", f"'{named(name)}'"), named(name))
    return run_cli(folder, "devices", "--json")


@pytest.fixture(scope="module")
def rows(listing):
    return {row["name"]: row for row in json.loads(listing.stdout)}


def named(kind):
    """Return the name of a plug-in among the others."""
    return f"hostile{[*PLUG_INS, *OTHER_PLUG_INS].index(kind)}"


@pytest.mark.slow
@pytest.mark.parametrize("kind", PLUG_INS)
def test_hostile_plug_in_is_listed(rows, kind):
    name = named(kind)
    words = PLUG_INS[kind][1].replace("'hostile'", f"'{name}'").replace("hostile:ID", f"{name}:ID")
    assert not rows[name]["available"] and words in rows[name]["reason"]
    assert rows["fake_npu"]["available"] and rows["fake_npu"]["health"]["state"] == "works"


def test_plug_in_that_exits_does_not_end_the_program(rows):
    name = named("exits when it is used")
    assert rows[name]["health"] == {
        "state": "failed",
        "detail": f"device '{name}' did not create a context: SystemExit: 7; ask its vendor",
        "first_seconds": None,
        "run_seconds": None,
    }


@pytest.mark.parametrize("words", ["hello", "native", "python says", "native says"])
def test_output_of_plug_ins_is_not_on_stdout(rows, listing, words):
    assert rows and words in listing.stderr


@pytest.mark.sweep
@pytest.mark.parametrize(
    "words",
    [
        "report m.onnx -d hostile --format json",
        "report m.onnx -d hostile --what-if --format json",
        "run m.onnx -d hostile --format json",
        "compare m.onnx -d hostile --json",
        "calibrate hostile --json",
        "ops hostile --json",
        "doctor --json",
    ],
)
def test_output_of_devices_is_not_on_stdout_of_any_command(tmp_path, monkeypatch, of_the_cpu, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NNADAPTER_CACHE_DIR", str(tmp_path / "cache"))
    keep_calibration(of_the_cpu)  # so that `calibrate` measures only the plug-in
    onnx.save(parse(f"{MODEL_HEAD} g (float[3] x) => (float[3] y) {{ y = Abs(x) }}"), "m.onnx")
    put(tmp_path, CHATTY)
    completed = run_cli(tmp_path, *words.split())
    assert json.loads(completed.stdout) and "python says" in completed.stderr and "native says" in completed.stderr


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["has_memory", "has_streams"])
def test_error_blames_a_plug_in_with_invalid_answers(tmp_path, kind):
    code = HEAD.replace(
        "def create_context(self, options): sys.exit(7)",
        f"""def create_context(self, options): return C()
    @property
    def {kind}(self): raise OSError("the bus is gone")

class C(Context):
    def supported(self, model): return []
    def compile(self, model): raise OSError
    def close(self): print("closed", file=sys.stderr)
""",
    )
    onnx.save(parse(f"{MODEL_HEAD} g (float[2] x) => (float[2] y) {{ y = Relu(x) }}"), tmp_path / "model.onnx")
    put(tmp_path, code)
    completed = run_cli(tmp_path, "report", str(tmp_path / "model.onnx"), "-d", "hostile", codes=(2,))
    has = kind.replace("_", " ")
    message = f"device 'hostile' failed to report whether it {has}: OSError: the bus is gone; ask its vendor"
    assert message in " ".join(completed.stderr.split()) and "closed" in completed.stderr
