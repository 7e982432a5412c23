from __future__ import annotations

import json
import subprocess
import sys

import onnx

from tests.models import CHAIN, parse
from tests.optional import needs

PRINTING = """
import ctypes
from nnadapter.process.terminal import native_prints_to_stderr
print("before")
with native_prints_to_stderr():
    ctypes.CDLL(None).puts(b"native")
print("after")
"""


def test_output_of_c_goes_to_stderr():
    completed = subprocess.run(
        [sys.executable, "-c", PRINTING], capture_output=True, text=True, check=True, timeout=120
    )
    assert (completed.stdout, completed.stderr) == ("before\nafter\n", "native\n")


@needs("onnxruntime_qnn")
def test_json_report_is_only_json(tmp_path):
    path = tmp_path / "chain.onnx"
    onnx.save(parse(CHAIN), path)
    command = [sys.executable, "-m", "nnadapter", "report", path, "-d", "qnn", "--format", "json"]
    completed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert json.loads(completed.stdout)["coverage"]["nodes"] > 0
