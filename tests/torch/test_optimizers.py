from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import nnadapter as nna
from tests.every import few_of

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*lr_scheduler:UserWarning")

OPTIMIZERS = {
    "SGD": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}),
    "Adam": (torch.optim.Adam, {"lr": 0.01}),
    "AdamW": (torch.optim.AdamW, {"lr": 0.01}),
    "RMSprop": (torch.optim.RMSprop, {"lr": 0.01, "momentum": 0.5}),
}


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def compiled(function, **options):
    options = {"devices": ["fake_npu"], "fallback": "forbid", **options}
    return torch.compile(function, backend=nna.torch.nnadapter, options=options)


def train(model, optimizer, step, count):
    x, y, losses = torch.randn(16, 4), torch.randn(16, 2), []
    for _ in range(count):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        step()
        losses.append(loss.item())
    return losses


@pytest.mark.slow
@pytest.mark.parametrize("name", few_of(OPTIMIZERS, "AdamW", "SGD"))
def test_twenty_steps_equal_pytorch(name):
    kind, options = OPTIMIZERS[name]
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    twin = copy.deepcopy(model)
    optimizer, other = kind(model.parameters(), **options), kind(twin.parameters(), **options)
    run = compiled(optimizer.step)
    torch.manual_seed(1)
    result = train(model, optimizer, run, 20)
    torch.manual_seed(1)
    assert result == pytest.approx(train(twin, other, other.step, 20), rel=1e-4)
    torch.testing.assert_close(model.state_dict(), twin.state_dict(), rtol=1e-3, atol=1e-4)
    # square roots of small numbers
    torch.testing.assert_close(optimizer.state_dict(), other.state_dict(), rtol=3e-3, atol=1e-4)
    graphs = nna.torch.report(run).graphs
    assert all(graph.unfrozen_weights == 0 for graph in graphs)
    assert all(graph.delegated == graph.operators and graph.nodes[0] == graph.nodes[1] for graph in graphs)
