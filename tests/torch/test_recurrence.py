from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import nnadapter as nna
from tests.every import few_of


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


@pytest.fixture
def captured():
    with torch._dynamo.config.patch(allow_rnn=True):
        yield


def compiled(module, device="fake_npu", **others):
    return torch.compile(module, backend=nna.torch.nnadapter, options={"devices": [device]}, **others)


class Tagger(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.core = kind(6, 5, **options)
        self.head = nn.Linear(5 * (1 + self.core.bidirectional), 3)

    def forward(self, x, states=None):
        found, last = self.core(x, states)
        return self.head(found), last


FORMS = [
    {},
    {"batch_first": True},
    {"bidirectional": True, "num_layers": 2, "batch_first": True},
    {"bias": False},
    {"dropout": 0.5, "num_layers": 2},
]


def flat(results):
    return [results] if isinstance(results, torch.Tensor) else [each for part in results for each in flat(part)]


@torch.no_grad()
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (nn.LSTM, FORMS[2]),
        *(pytest.param(nn.LSTM, form, marks=pytest.mark.sweep) for form in (*FORMS[:2], *FORMS[3:])),
        *(pytest.param(nn.GRU, form, marks=pytest.mark.sweep) for form in (FORMS[0], FORMS[2])),
    ],
)
def test_layers_are_one_operator_at_inference(kind, options, captured):
    module = Tagger(kind, **options).eval()
    run = compiled(module)
    for shape in ((4, 3, 6), (7, 3, 6), (9, 2, 6), (5, 4, 6)):
        x = torch.randn(shape)
        for one, other in zip(flat(run(x)), flat(module(x)), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
            assert one.stride() == other.stride()
    graphs = nna.torch.report(run).graphs
    assert len(graphs) <= 4  # the first length and the first row count are static, and GRU's always are
    for graph in graphs:
        assert graph.delegated == graph.operators and graph.nodes[0] == graph.nodes[1]
        kinds = [node.op_type for node in graph.sessions[0].nodes]
        assert kinds.count(kind.__name__) == options.get("num_layers", 1)


@torch.no_grad()
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_initial_and_final_states(kind, captured):
    module = Tagger(kind).eval()
    run, x = compiled(module), torch.randn(4, 2, 6)
    states = torch.randn(1, 2, 5)
    states = (states, states * 2) if kind is nn.LSTM else states
    for one, other in zip(flat(run(x, states)), flat(module(x, states)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    (graph,) = nna.torch.report(run).graphs
    assert graph.delegated == graph.operators and graph.nodes[0] == graph.nodes[1]


@pytest.mark.sweep
@torch.no_grad()
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN:UserWarning")
def test_projected_states_and_packed_sequences_are_right(captured):
    projected, x = Tagger(nn.LSTM), torch.randn(4, 2, 6)
    projected.core = nn.LSTM(6, 8, proj_size=5)
    torch.testing.assert_close(compiled(projected)(x)[0], projected(x)[0])

    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.core = nn.GRU(6, 5)

        def forward(self, x, lengths):
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths)
            return nn.utils.rnn.pad_packed_sequence(self.core(packed)[0])[0]

    module, lengths = Packed(), torch.tensor([4, 3])
    torch.testing.assert_close(compiled(module)(x, lengths), module(x, lengths))


@pytest.mark.sweep
@pytest.mark.parametrize("kind", few_of((nn.LSTM, nn.GRU, nn.RNN), nn.GRU))
def test_training_runs_entirely_on_the_device(kind, captured):
    module = Tagger(kind)
    twin = copy.deepcopy(module)
    run, x = compiled(module), torch.randn(4, 3, 6)
    for called in (run, twin):
        called(x)[0].square().sum().backward()
    for one, other in zip(module.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-5)
    graphs = nna.torch.report(run).graphs
    assert [graph.kind for graph in graphs] == ["forward", "backward"]
    for graph in graphs:
        assert graph.delegated == graph.operators and graph.nodes[0] == graph.nodes[1]


@torch.no_grad()
def test_report_suggests_allow_rnn():
    module = nn.Sequential(nn.Linear(4, 6), nn.LSTM(6, 5)).eval()
    run = compiled(module)
    run(torch.randn(3, 2, 4))
    text = str(nna.torch.report(run))
    assert "set torch._dynamo.config.allow_rnn = True before the first call" in text
    assert "nothing is compiled yet" not in text
    torch._dynamo.reset()
    with torch._dynamo.config.patch(allow_rnn=True):
        run(torch.randn(3, 2, 4))
        assert "allow_rnn" not in str(nna.torch.report(run))


@pytest.mark.sweep
@torch.no_grad()
def test_layers_are_right_on_openvino(captured):
    pytest.importorskip("openvino")
    module = Tagger(nn.LSTM, bidirectional=True, batch_first=True).eval()
    run = compiled(module, "openvino", dynamic=True)
    for shape in ((4, 3, 6), (7, 3, 6), (2, 5, 6)):
        x = torch.randn(shape)
        torch.testing.assert_close(run(x)[0], module(x)[0], rtol=1e-5, atol=1e-5)
