"""The core without any optional package."""

from __future__ import annotations

import subprocess
import sys

import numpy as np

from tests.models import CHAIN, numbers, parse, run_whole

EXTRAS = ("jax", "onnxruntime_qnn", "openvino", "paddle", "ray", "torch")
PROGRAM = """
import sys

blocked = set(sys.argv[1].split(","))


class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ImportError(f"{name} is blocked")


sys.meta_path.insert(0, Blocker())
import numpy as np
import nnadapter as nna

x = np.load("x.npy")
for device in ("fake_npu", "cpu"):
    with nna.InferenceSession("chain.onnx", devices=[device]) as session:
        np.save(f"{device}.npy", session.run(None, {"x": x})[0])
        print({segment.device for segment in session.report().segments})
    print({segment.device for segment in nna.partition_report("chain.onnx", device).segments})
    nna.compile("chain.onnx", f"{device}.nna", devices=[device])
    with nna.InferenceSession(f"{device}.nna") as session:
        np.save(f"{device} compiled.npy", session.run(None, {"x": x})[0])
assert not blocked & set(sys.modules)
"""


def test_sessions_reports_and_compiled_models_need_no_extra(tmp_path):
    model, x = parse(CHAIN), numbers(2, 3)
    (tmp_path / "chain.onnx").write_bytes(model.SerializeToString())
    np.save(tmp_path / "x.npy", x)
    command = [sys.executable, "-c", PROGRAM, ",".join(EXTRAS)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["{'fake_npu'}"] * 2 + ["{'cpu'}"] * 2
    (expected,) = run_whole(model, {"x": x})
    for name in ("fake_npu", "fake_npu compiled", "cpu", "cpu compiled"):
        np.testing.assert_allclose(np.load(tmp_path / f"{name}.npy"), expected, rtol=1e-5, err_msg=name)
