"""`nnadapter conformance`: exit codes, formats, and failures saved as reproducible folders."""

from __future__ import annotations

import json
import shlex

import numpy as np
import onnx
import pytest


def test_device_without_failures_gets_full_marks(call):
    out = call("conformance fake_npu -k operations/ADD").stdout
    assert out.startswith("fake_npu: full marks; 4 of 4 cases passed")
    data = json.loads(call("conformance fake_npu -k operations/ADD --json").stdout)
    assert data["all_passed"] and data["groups"] == {"operations": {"passed": 4, "failed": 0, "skipped": 0}}


@pytest.mark.slow
def test_failures_are_saved_and_reproducible(call, folder):
    out = call("conformance lying --option lying.lie=wrong_count -k operations/SPLIT --short -o card", 1).stdout
    assert "wrong number of outputs: got" in out
    assert {path.name for path in (folder / "card").iterdir()} == {"failures", "score.txt", "score.json", "score.md"}
    kept = folder / "card" / "failures" / "operations__SPLIT__0"
    facts = json.loads((kept / "failure.json").read_text())
    assert {"model.txt", "model.nnadapter", "input_0.npy", "expected_0.npy"} <= {path.name for path in kept.iterdir()}
    assert facts["kind"] == "wrong number of outputs" and facts["versions"]["numpy"] == np.__version__
    again = call(" ".join(shlex.split(facts["command"])[1:]), 1).stdout
    assert facts["detail"] in again


@pytest.mark.slow
def test_failing_onnx_models_are_saved_too(call, folder):
    call("conformance cpu -k onnx/test_reduce_max_empty_set_bool -o card", 1)
    onnx.load(folder / "card" / "failures" / "onnx__test_reduce_max_empty_set_bool" / "model.onnx")


def test_supported_operations_that_fail_to_compile_are_listed(call):
    out = call("conformance lying --option lying.lie=claims -k operations/ABS --short --format md", 1).stdout
    assert "## Reported as supported, but not compiled\n\n| case |\n| --- |\n| `operations/ABS/0` |" in out


@pytest.mark.slow
def test_half_precision_requires_the_precision_option(call):
    words = "conformance fake_npu --option fake_npu.precision=float16 -k operations/EXP"
    call(words, 1)
    call(f"{words} --precision float16")
    call(f"{words} --precision bfloat16")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("nothing", "no driver offers a device named 'nothing'"),
        ("fake_npu -k no_such_case", "no case has 'no_such_case' in its name"),
        ("fake_npu --option fake_npu.lie=x", "has no option 'lie'"),
        ("fake_npu --option cpu.lie=x", "not among fake_npu"),
        ("missing", "did not load"),
    ],
)
def test_invalid_arguments_exit_with_2(call, words, message):
    assert message in " ".join(call(f"conformance {words}", 2).stderr.split())
