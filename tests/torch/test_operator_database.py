from __future__ import annotations

import os

import pytest
import torch

pytest.importorskip("expecttest", reason="PyTorch's database of operators needs it")

from tests.torch import operator_database as database

PARTS = 8
"""Number of parts of the database; each takes some minutes."""
OTHERS = {
    **{
        (operator, dtype, "wrong"): "the order of ties is open"
        for operator in ("sort", "argsort")
        for dtype in (torch.float16, torch.bool)
    },
    ("nn.functional.grid_sample", torch.float16, "wrong"): "PyTorch's kernel rounds to 16 bits in between",
    ("grid_sampler_2d", torch.float16, "wrong"): "PyTorch's kernel rounds to 16 bits in between",
    ("nn.functional.soft_margin_loss", torch.float16, "wrong"): "PyTorch's kernel overflows in 16 bits",
    ("nn.functional.soft_margin_loss", torch.float32, "wrong on openvino"): "its logarithm is off by 3e-7",
    ("ormqr", torch.float32, "strides"): "gradients of aot_eager lie the same way",
    ("to", torch.float32, "strides"): "gradients of aot_eager lie the same way",
    ("linalg.det", torch.float32, "strides"): "the gradient has no elements",
}
"""Operators, data types and outcomes with differences that this back end does not cause -> the cause."""
FEW = ["scatter_reduce/mean", "linalg.vector_norm", "cumprod", "remainder", "std", "log1p"]
NARROW = (torch.float16, torch.int32, torch.int64, torch.bool)


def failures(operators, dtype, samples, **options):
    for task, outcome in database.outcomes(operators, dtype, samples, **options):
        where = " on openvino" if task.device == "openvino" else ""
        known = {(task.operator, dtype, outcome.kind), (task.operator, dtype, outcome.kind + where)}
        if outcome.kind not in ("right", "eager raises") and known.isdisjoint(OTHERS):
            yield f"{task}: {outcome.kind}: {outcome.detail}"


def test_selected_operators():
    assert not list(failures(FEW, torch.float32, 2))


@pytest.mark.sweep
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("form", ["float32", "narrow", "gradients", "openvino"])
def test_all_operators(form, part):
    operators = list(database.OPERATORS)[part::PARTS]
    samples = int(os.environ.get("NNADAPTER_OPERATOR_SAMPLES", "10" if form == "float32" else "2"))
    if form == "narrow":
        results = [each for dtype in NARROW for each in failures(operators, dtype, samples)]
    elif form == "gradients":
        results = list(failures(operators[::2], torch.float32, samples, gradients=True))
    else:
        device = "openvino" if form == "openvino" else "fake_npu"
        results = list(failures(operators, torch.float32, samples, device=device))
    assert not results, "\n".join(results)
