"""Quantized groups that openvino accepts: at most one step from ONNX."""

from __future__ import annotations

import os
from random import Random

import numpy as np
import onnx
import pytest

from nnadapter.errors import CompilationError
from tests.drivers.openvino.harness import computed, context
from tests.drivers.openvino.sweep.groups import GROUPS, group_of
from tests.drivers.openvino.sweep.running import Outcome, run_plain

FEW = 1
MANY = int(os.environ.get("NNADAPTER_SWEEP_FORMS", "1000")) // 4
SEED = int(os.environ.get("NNADAPTER_SWEEP_SEED", "0"))


@pytest.fixture(scope="module")
def opened():
    return context(threads=1)


@pytest.mark.sweep
@pytest.mark.parametrize("is_open", [False, True], ids=["known", "open"])
def test_few_groups_of_each_op(opened, is_open):
    outcomes = [sweep_groups(opened, op_type, FEW, is_open) for op_type in GROUPS]
    assert [outcome.differing for outcome in outcomes if outcome.differing] == []
    assert sum(len(outcome.agreeing) for outcome in outcomes) > len(outcomes) * FEW / 2


@pytest.mark.sweep
@pytest.mark.parametrize("is_open", [False, True], ids=["known", "open"])
@pytest.mark.parametrize("op_type", GROUPS)
def test_many_groups(opened, op_type, is_open, capsys):
    outcome = sweep_groups(opened, op_type, MANY, is_open)
    with capsys.disabled():
        print(f"\n{outcome}", end="")
    assert outcome.differing == {}


def sweep_groups(opened, op_type: str, count: int, is_open: bool) -> Outcome:
    outcome = Outcome(op_type)
    for number in range(count):
        outcome.tried += 1
        _try(opened, outcome, f"{SEED} {number}", is_open)
    return outcome


def _try(opened, outcome: Outcome, seed: str, is_open: bool) -> None:
    group, output = group_of(outcome.op_type, seed)
    try:
        (reals,) = run_plain(group.model(output), group.feed)
        output, step = group.quantized(output, reals) if group.random.random() < 0.75 else (output, 0.0)
        model = group.model(output)
        (expected,) = run_plain(model, group.feed)
    except Exception:  # noqa: BLE001  any error of onnx or ONNX Runtime excludes the group
        outcome.skipped += 1
        return
    text = f"{seed} opset {model.opset_import[0].version}: {', '.join(group.words)}"
    reason = next((verdict.detail for verdict in opened.supported(model) if not verdict), "")
    if not reason and is_open:
        _leave_open(model, group.random)
        reason = getattr(opened.admit(model).verdict, "detail", "")
    if reason:
        outcome.refused[text] = reason
        return
    try:
        (got,) = computed(opened, model, list(group.feed.values()))
    except CompilationError as error:
        wrong = str(error)
    else:
        wrong = _difference(got, expected, step)
    if wrong:
        outcome.differing[text] = wrong
    else:
        outcome.agreeing.append(text)


def _leave_open(model: onnx.ModelProto, random: Random) -> None:
    for value in model.graph.input:
        for axis, size in enumerate(value.type.tensor_type.shape.dim):
            if random.random() < 0.6:
                size.dim_param = f"{value.name} {axis}"
    del model.graph.value_info[:]
    for value in model.graph.output:
        value.ClearField("type")


def _difference(got: np.ndarray, expected: np.ndarray, step: float) -> str:
    """Describe a difference beyond one step plus rounding, or return ""."""
    if (got.dtype, got.shape) != (expected.dtype, expected.shape):
        return f"{got.dtype}{list(got.shape)} instead of {expected.dtype}{list(expected.shape)}"
    off = np.abs(got.astype(np.float64) - expected.astype(np.float64))
    allowed = 1.01 * step + (0 if step == 1 else 1e-4 * max(1.0, float(np.abs(expected).max())))
    if not off.size or (off <= allowed).all():
        return ""
    return f"{int((off > allowed).sum())} of {off.size} differ, by {off.max()} where a step is {step}"
