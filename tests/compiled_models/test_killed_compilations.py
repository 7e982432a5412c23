"""`nnadapter compile`, killed at any moment: no file, the old file, or a complete new one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from random import Random

import numpy as np
import onnx
import pytest

import nnadapter as nna
from nnadapter.store import Container
from tests.models import HEAD, numbers

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs signals")
X = numbers(1, 1024)
WEIGHTS = numbers(1024, 4096, seed=1)
"""16 MB, so that writing takes a while."""
MEANT = {"Relu": lambda product: np.maximum(product, 0), "Neg": lambda product: -product}


def save_models(folder):
    for op_type in MEANT:
        text = f"{HEAD} g (float[1, 1024] x) => (float[1, 4096] y) {{ p = MatMul(x, w) y = {op_type}(p) }}"
        model = onnx.parser.parse_model(text)
        model.graph.initializer.append(onnx.numpy_helper.from_array(WEIGHTS, "w"))
        onnx.save(model, folder / f"{op_type}.onnx")


def compiling(folder, op_type):
    command = [sys.executable, "-m", "nnadapter", "compile", f"{op_type}.onnx", "-d", "fake_npu", "-o", "out/f"]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def meant_by(path):
    """Return the op type whose results the file gives."""
    with nna.InferenceSession(path) as session:
        (found,) = session.run(None, {"x": X})
    (op_type,) = (each for each, of in MEANT.items() if np.allclose(found, of(X @ WEIGHTS), rtol=1e-3, atol=1e-3))
    return op_type


def check_kills(folder, kills, seed):
    """Kill compilations; count the states of the file afterwards."""
    save_models(folder)
    out, random, stood, found = folder / "out", Random(seed), None, []
    out.mkdir()
    started = time.perf_counter()
    assert compiling(folder, "Relu").wait() == 0
    seconds = time.perf_counter() - started
    (out / "f").unlink()
    for number in range(kills):
        op_type = list(MEANT)[number % 2]
        process = compiling(folder, op_type)
        # aim half of the kills at the end, when the file is written
        time.sleep(seconds * random.uniform(*random.choice(((0, 1.1), (0.8, 1.1)))))
        process.send_signal(signal.SIGKILL)
        done = process.wait() == 0
        stands = meant_by(out / "f") if (out / "f").exists() else None
        assert stands == op_type if done else stands in (stood, op_type)
        check_left(out)
        stood = stands
        found.append(stands == op_type)
        if random.random() < 0.2:
            (out / "f").unlink(missing_ok=True)
            stood = None
    return found


def check_left(out):
    """Check that leftovers next to the file are complete, if the system has unnamed files."""
    for each in out.iterdir():
        if each.name != "f":
            if hasattr(os, "O_TMPFILE"):
                Container.open(each).verify()
            each.unlink()


@pytest.mark.slow
def test_killed_compilation_leaves_a_complete_or_old_file(tmp_path):
    check_kills(tmp_path, 2, 0)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(1, 5))
def test_many_killed_compilations_leave_complete_files(tmp_path, seed):
    found = check_kills(tmp_path, 50, seed)
    assert set(found) == {True, False}, "all moments were too early, or too late"
