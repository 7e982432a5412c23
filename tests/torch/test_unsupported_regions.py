"""Regions that no session supports, halved until only the faulty operators are left."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import nnadapter as nna


@pytest.fixture(autouse=True)
def fresh(unloadable_determinant):
    torch._dynamo.reset()
    torch.manual_seed(0)


class Solving(nn.Module):
    """Network with two determinants; PyTorch 2.13 exports a model that does not load."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 3), nn.LayerNorm(3), nn.Linear(3, 2)

    def forward(self, x):
        y = self.norm(self.first(x)).relu()
        z = y * torch.linalg.det(y[:3] + 2 * torch.eye(3))
        return self.last(z) / (1 + torch.linalg.det(z[:3] * 0.5).abs()), y.sum(0)


def run_of(model, **options):
    return torch.compile(model, backend=nna.torch.nnadapter, options={"devices": ["fake_npu"], **options})


@pytest.mark.sweep
@pytest.mark.parametrize("trains", [False, pytest.param(True, marks=pytest.mark.sweep)])
def test_only_faulty_operators_run_in_pytorch(trains):
    model = Solving().train(trains)
    run = run_of(model, fallback="allow")
    for rows in (4, 6) if trains else (4, 6, 7):
        x = torch.randn(rows, 3, requires_grad=trains)
        with torch.set_grad_enabled(trains):
            result, expected = run(x), model(x)
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
        if trains:
            leaves = [x, *model.parameters()]
            gradients = [torch.autograd.grad(sum(map(torch.sum, each)), leaves) for each in (result, expected)]
            torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-4)
    stayed = [row for graph in nna.torch.report(run).graphs for row in graph.fallback_operators]
    assert {row.operator.split(".")[1] for row in stayed} <= {"_linalg_det", "linalg_lu_solve"}
    assert all("test_unsupported_regions.py:" in row.line for row in stayed if "det" in row.operator)


@pytest.mark.sweep
@torch.no_grad()
def test_fallback_operators_warn_once():
    run, x = run_of(Solving().eval()), torch.randn(4, 3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(x)
        run(x)
    said = [str(each.message) for each in caught if issubclass(each.category, nna.errors.FallbackWarning)]
    said = [text for text in said if text.startswith("PyTorch runs ")]  # the others concern the attempted sessions
    assert len(said) == 2 and all(
        text.startswith("PyTorch runs 1 operator because no session could be created: ") for text in said
    )
