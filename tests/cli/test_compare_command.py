"""`nnadapter compare`, which answers by exit code."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest

import nnadapter as nna
from tests.models import HEAD, numbers, parse


def test_agreement_exits_with_0(call):
    out = call("compare sandwich.onnx -d fake_npu --shape x=3,4").stdout
    assert out.splitlines()[:2] == [
        "5 of 5 nodes ran on fake_npu",
        "fake_npu, cpu against cpu, tolerance 0.001 relative + 1e-05",
    ]
    assert "y float32[3, 4]: agrees" in out


def test_difference_exits_with_1(call):
    assert "DIFFERS in" in call("compare scores.onnx -d null", 1).stdout
    data = json.loads(call("compare scores.onnx -d null --json", 1).stdout)
    assert data["agrees"] is False and data["outputs"][0]["name"] == "y"


def test_tolerance_decides_the_exit_code(call):
    np.save("x.npy", numbers(3, 4))
    half = "compare sandwich.onnx -d fake_npu --option fake_npu.precision=float16 --input x=x.npy"
    call(f"{half} --rtol 0.02 --atol 0.02")
    call(f"{half} --rtol 0 --atol 1e-9", 1)


def test_json_equals_the_python_result(call):
    np.save("x.npy", numbers(3, 4))
    data = json.loads(call("compare sandwich.onnx -d fake_npu --input x=x.npy --json").stdout)
    assert data == json.loads(json.dumps(nna.compare("sandwich.onnx", "fake_npu", {"x": numbers(3, 4)}).to_dict()))


def test_nonfinite_differences_are_null(call):
    np.save("x.npy", np.full((1, 8), np.nan, np.float32))
    data = json.loads(call("compare scores.onnx -d null --input x=x.npy --json", 1).stdout)
    assert data["outputs"][0]["largest_absolute"] is None


def test_invalid_options_exit_with_2(call):
    assert "-1.0 is not in the range" in call("compare scores.onnx -d null --rtol -1", 2).stderr
    assert (
        "absolute tolerance must be a number of at least 0, got nan"
        in call("compare scores.onnx -d null --atol nan", 2).stderr
    )
    assert "or --layers on the command line" in call("compare scores.onnx -d null --rules-out r.toml", 2).stderr
    assert "did you mean 'null'" in call("compare scores.onnx -d nul", 2).stderr


@pytest.mark.parametrize("fault", ["supported", "compile", "compute"])
def test_comparison_fails_without_nodes_on_the_device(call, fault):
    result = call(f"compare chain.onnx -d trial --option trial.fault={fault}", 1)
    assert result.stdout.startswith("none of 4 nodes ran on trial: nothing was compared"), result.stdout
    assert ": agrees" in result.stdout
    assert (
        json.loads(call(f"compare chain.onnx -d trial --option trial.fault={fault} --json", 1).stdout)["agrees"]
        is False
    )


def test_first_line_counts_nodes_per_device(call):
    out = call("compare sandwich.onnx -d trial --option trial.only=RELU,NEG --shape x=3,4").stdout
    assert out.splitlines()[0] == "2 of 5 nodes ran on trial, 3 on cpu"
    out = call("compare sandwich.onnx -d trial,fake_npu --option trial.only=RELU,NEG --shape x=3,4").stdout
    assert out.splitlines()[0] == "2 of 5 nodes ran on trial, 3 on fake_npu"
    assert call("compare chain.onnx -d cpu").stdout.startswith("4 of 4 nodes ran on cpu")


def test_fallback_exits_with_1(call):
    words = "compare sandwich.onnx -d trial,fake_npu --option trial.only=RELU --option trial.fault=compute"
    lines = call(f"{words} --shape x=3,4", 1).stdout.splitlines()
    assert lines[0] == "0 of 5 nodes ran on trial, 4 on fake_npu, 1 on cpu"
    assert "  fell back: device 'trial' failed while it ran segment 0" in lines[2]


def test_constant_outputs_are_reported(call):
    write(
        "level.onnx",
        "(float[2, 2] x) => (float[2, 2] y, float[2] z) { y = Sub(x, x)  z = Constant<value_floats = [1.0, 2.0]>() }",
    )
    out = call("compare level.onnx -d fake_npu").stdout
    assert (
        "y float32[2, 2]: agrees" in out
        and "the output is constant (every element is 0.0), so agreement says little" in out
    )
    assert "the output is constant (computed before the run)" in out


def test_comparison_fails_if_all_nodes_are_folded(call):
    write("known.onnx", "(float[2] x) => (float[2] z) { z = Constant<value_floats = [1.0, 2.0]>() }")
    assert call("compare known.onnx -d fake_npu", 1).stdout.startswith("none of 0 nodes ran on fake_npu")


def write(name, body):
    onnx.save(parse(f"{HEAD} written {body}"), name)
