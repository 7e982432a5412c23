"""`nnadapter compare`: the answer is the exit code."""

from __future__ import annotations

import json

import numpy as np

import nnadapter as nna
from tests.models import numbers


def test_yes(call):
    out = call("compare sandwich.onnx -d fake_npu --shape x=3,4").stdout
    assert out.splitlines()[0] == "fake_npu, cpu against cpu, tolerance 0.001 relative + 1e-05"
    assert "y float32[3, 4]: agrees" in out


def test_no(call):
    assert "DIFFERS in" in call("compare scores.onnx -d null", 1).stdout
    data = json.loads(call("compare scores.onnx -d null --json", 1).stdout)
    assert data["agrees"] is False and data["outputs"][0]["name"] == "y"


def test_tolerance_decides(call):
    np.save("x.npy", numbers(3, 4))
    half = "compare sandwich.onnx -d fake_npu --option fake_npu.precision=float16 --input x=x.npy"
    call(f"{half} --rtol 0.02 --atol 0.02")
    call(f"{half} --rtol 0 --atol 1e-9", 1)


def test_json_is_the_librarys(call):
    np.save("x.npy", numbers(3, 4))
    data = json.loads(call("compare sandwich.onnx -d fake_npu --input x=x.npy --json").stdout)
    assert data == json.loads(json.dumps(nna.compare("sandwich.onnx", "fake_npu", {"x": numbers(3, 4)}).to_dict()))


def test_differences_that_are_not_finite_are_null(call):
    np.save("x.npy", np.full((1, 8), np.nan, np.float32))
    data = json.loads(call("compare scores.onnx -d null --input x=x.npy --json", 1).stdout)
    assert data["outputs"][0]["largest_absolute"] is None


def test_wrong_use(call):
    assert "-1.0 is not in the range" in call("compare scores.onnx -d null --rtol -1", 2).stderr
    assert "did you mean 'null'" in call("compare scores.onnx -d nul", 2).stderr
