"""Optional dependencies: declared in pyproject.toml, and named with a pip command when missing."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import onnx
import pytest

import nnadapter as nna
from nnadapter.drivers.openvino import OpenvinoDriver
from nnadapter.errors import DeviceUnavailableError, MissingExtraError
from nnadapter.process import EXTRAS, has_extra, missing_extra
from tests.models import CHAIN, parse

_WITHOUT = """
import sys
sys.modules.update(dict.fromkeys(("scipy", "openvino", "onnxruntime_qnn")))
from nnadapter.cli import main
main()
"""
"""Script that runs the command line with these packages missing."""
PYPROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
DECLARED = PYPROJECT["project"]["optional-dependencies"]


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_extra_is_declared_with_its_package(extra):
    package, _ = EXTRAS[extra]
    # requirements may have extras, too
    declared = [re.sub(r"\[.*\]", "", requirement) for requirement in DECLARED[extra]]
    assert any(requirement.startswith(f"{package}>=") for requirement in declared)


@pytest.mark.parametrize("extra", EXTRAS)
def test_missing_package_is_detected(extra, monkeypatch):
    monkeypatch.setitem(sys.modules, EXTRAS[extra][1], None)  # simulates a missing package
    assert not has_extra(extra)
    error = missing_extra(extra, "this")
    assert (error.extra, error.package) == (extra, EXTRAS[extra][0])
    assert str(error).endswith(f"run: pip install 'nnadapter[{extra}]'")


@pytest.mark.parametrize("policy", ["latency", "measured"])
def test_policies_that_weigh_costs_need_scipy(policy, monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    request = ("fake_npu", {"clock": "simulated"})
    with pytest.raises(MissingExtraError, match=f"policy '{policy}' needs the package scipy") as raised:
        nna.InferenceSession(parse(CHAIN), devices=request, options=nna.Options(policy=policy))
    assert raised.value.extra == "latency"
    nna.partition_report(parse(CHAIN), request)
    nna.InferenceSession(parse(CHAIN), devices="cpu", options=nna.Options(policy=policy)).close()


def test_device_with_a_missing_package_is_unavailable(monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(MissingExtraError, match=r"device 'openvino:CPU' needs the package openvino") as raised:
        OpenvinoDriver().open("")
    assert isinstance(raised.value, DeviceUnavailableError) and raised.value.extra == "openvino"


@pytest.mark.slow
@pytest.mark.parametrize("use", ["run {} -d fake_npu --policy latency", "report {} -d openvino", "compare {} -d qnn"])
def test_command_line_exits_with_2_and_the_pip_command(use, tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(parse(CHAIN), path)
    completed = subprocess.run(
        [sys.executable, "-c", _WITHOUT, *use.format(path).split()], capture_output=True, text=True
    )
    assert completed.returncode == 2 and "run: pip install 'nnadapter[" in completed.stderr, completed.stderr
