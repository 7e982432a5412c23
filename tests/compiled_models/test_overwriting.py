"""`compile` over an existing file: open sessions continue, and a failure keeps the old file."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import onnx
import pytest

import nnadapter as nna
from nnadapter.errors import InvalidOptionError
from tests.models import HEAD, numbers, parse

X = {"x": numbers(2, 3)}
FULL = """
import resource, signal, sys
import nnadapter as nna
from nnadapter.errors import CompiledModelError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
sys.dont_write_bytecode = True  # it would be cut off as well
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, 1 << 12))
try:
    nna.compile(sys.argv[1], sys.argv[2], devices=["fake_npu"])
except CompiledModelError as error:
    print(error)
"""


def model(op_type):
    return parse(f"{HEAD} g (float[2, 3] x) => (float[2, 3] y) {{ y = {op_type}(x) }}")


@pytest.mark.parametrize("device", ["fake_npu", "cpu"])
def test_session_continues_with_the_opened_file(tmp_path, device):
    path = tmp_path / "f"
    nna.compile(model("Relu"), path, devices=[device])
    with nna.InferenceSession(path) as session:
        nna.compile(model("Neg"), path, devices=[device])
        np.testing.assert_array_equal(session.run(None, X)[0], np.maximum(X["x"], 0))
        assert "Relu" in session.report().to_json()
        path.unlink()
        np.testing.assert_array_equal(session.run(None, X)[0], np.maximum(X["x"], 0))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit on files")
def test_full_disk_preserves_the_old_file(tmp_path):
    onnx.save(model("Neg"), tmp_path / "m.onnx")
    path = tmp_path / "f"
    nna.compile(model("Relu"), path, devices=["fake_npu"])
    before = path.read_bytes()
    command = [sys.executable, "-c", FULL, tmp_path / "m.onnx", path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "cannot be written" in done.stdout and "free some space" in done.stdout
    assert path.read_bytes() == before and sorted(each.name for each in tmp_path.iterdir()) == ["f", "m.onnx"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_folder_preserves_the_old_file(tmp_path):
    path = tmp_path / "f"
    nna.compile(model("Relu"), path, devices=["fake_npu"])
    before = path.read_bytes()
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(InvalidOptionError, match="cannot be written"):
            nna.compile(model("Neg"), path, devices=["fake_npu"])
        assert path.read_bytes() == before
    finally:
        tmp_path.chmod(0o700)
