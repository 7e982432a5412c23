"""Dynamic shapes in compiled functions: one graph, one session and one plan for all sizes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import nnadapter as nna

ON_NPU = {"devices": ["fake_npu"]}


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def close(found, expected, tolerance=1e-5):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@torch.no_grad()
def test_sizes_may_be_dynamic_from_the_start():
    class Attention(nn.Module):
        def forward(self, x):
            mask = torch.ones(x.shape[1], x.shape[1]).tril()
            return torch.softmax((x @ x.transpose(1, 2)) * mask, -1) @ x.reshape(x.shape[0], -1, 4)

    model = Attention()
    run = torch.compile(model, backend=nna.torch.nnadapter, options=ON_NPU, dynamic=True)
    for shape in ((2, 3, 4), (3, 5, 4), (4, 7, 4)):
        close(run(x := torch.randn(shape)), model(x))
    (graph,) = nna.torch.report(run).graphs
    assert graph.delegated == graph.operators


@torch.no_grad()
def test_static_and_dynamic_ranges_in_one_graph():
    def function(x):
        return x + torch.arange(4), torch.arange(x.shape[0])[:, None] + torch.arange(1)

    run = torch.compile(function, backend=nna.torch.nnadapter, options=ON_NPU, dynamic=True)
    for rows in (3, 5):
        close(run(x := torch.randn(rows, 4)), function(x))
    (graph,) = nna.torch.report(run).graphs
    assert graph.delegated == graph.operators


@pytest.mark.sweep
@torch.no_grad()
def test_upsampling_needs_one_graph_and_one_plan():
    class Larger(nn.Module):
        def __init__(self):
            super().__init__()
            self.deep, self.up = nn.Conv2d(3, 4, 3, 2, 1), nn.ConvTranspose2d(4, 3, 2, 2)

        def forward(self, x):
            up = self.up(torch.relu(self.deep(x)))
            return nn.functional.interpolate(up, size=x.shape[-2:], mode="bilinear") * (x.shape[2] / 7)

    model = Larger().eval()
    run = torch.compile(model, backend=nna.torch.nnadapter, options=ON_NPU, dynamic=True)
    for shape in ((2, 3, 12, 20), (3, 3, 17, 9), (5, 3, 8, 31), (4, 3, 21, 16)):
        close(run(x := torch.randn(shape)), model(x))
    (graph,) = nna.torch.report(run).graphs
    assert graph.delegated == graph.operators
    (session,) = graph.sessions
    assert session.plans.compiled == 2, session.plans.served_shapes_text


@torch.no_grad()
@pytest.mark.parametrize("dynamic", [True, None])
def test_sizes_of_computed_tensors_do_not_break_graphs(dynamic):
    class Up(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.ConvTranspose1d(2, 3, 2, 2)

        def forward(self, x):
            y = torch.relu(self.up(x))
            wide = x.repeat(1, 1, 2)[:, :, : y.shape[-1] - 1].exp()
            return y.reshape(y.shape[0] * 3, -1).exp(), wide, y.shape[-1] * 2

    model = Up().eval()
    run = torch.compile(model, backend=nna.torch.nnadapter, options=ON_NPU, dynamic=dynamic)
    for shape in ((3, 2, 4), (7, 2, 7), (5, 2, 9), (4, 2, 5)):
        for one, other in zip(run(x := torch.randn(shape)), model(x), strict=True):
            close(one, other)
    graphs = nna.torch.report(run).graphs
    assert len(graphs) == (1 if dynamic else 2)
    for graph in graphs:
        assert graph.delegated == graph.operators and len(graph.sessions) == 1
