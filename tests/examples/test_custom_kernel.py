from __future__ import annotations

import doctest
import subprocess
import sys
from pathlib import Path

import nnadapter as nna
from nnadapter.options import set_default_devices

ROOT = Path(__file__).parent.parent.parent


def test_the_example_runs_both_ops_by_kernel():
    path = ROOT / "examples" / "custom_kernel.py"
    text = subprocess.run([sys.executable, "-W", "error", str(path)], capture_output=True, text=True, check=True).stdout
    assert "Companding  fake_npu  kernel companding\n" in text and "Normalizer  fake_npu  kernel normalizer\n" in text
    assert "1 segment, 100% of nodes off the CPU\n" in text
    assert float(text.split()[-1]) < 1e-6


def test_documented_tensor_session_equals_the_real_output():
    try:
        found = doctest.testfile(str(ROOT / "docs" / "extending.md"), module_relative=False, globs={"nna": nna})
    finally:
        set_default_devices([])  # the initial state
    assert found.attempted == 5 and not found.failed
