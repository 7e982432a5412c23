"""Features of modules on fake_npu and openvino, at inference and in training: results and reports."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import nnadapter as nna

pytestmark = [  # warnings of PyTorch about itself
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


@pytest.fixture(params=["fake_npu", pytest.param("openvino", marks=pytest.mark.sweep)])
def device(request):
    """Return a device name; CI runs openvino only in tests of test_inference that name it."""
    pytest.importorskip(request.param) if request.param == "openvino" else None
    return request.param


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        y = torch.tanh(self.first(x))
        return self.second(y) if y.sum() > 0 else self.second(-y) * 2


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(context, gradient):
        (x,) = context.saved_tensors
        return gradient * 5 * x.cos()


class CustomGradient(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return Doubled.apply(self.layer(x)).sigmoid()


class Unsupported(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return torch.digamma(self.layer(x).relu() + 1).tanh() @ self.layer.weight


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(torch.fft.ifft(torch.fft.fft(self.layer(x)) * (1 + 2j)).real)


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x):
        y = self.layer(x)
        y[:, 1:].mul_(3)
        y.relu_()
        with torch.no_grad():
            self.seen.add_(y.sum(0))
        return y + self.seen


class Views(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        y = self.layer(x)
        return x.t(), x[1:], y, y[:, ::2], y.view(-1)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        return self.head(x + self.embedding(torch.tensor([1, 2, 3])))


class Nothing(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x), None, {"scores": self.layer(x).softmax(-1), "labels": None}


class Windows(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.up = nn.Conv1d(1, 3, 3, padding=1), nn.ConvTranspose1d(3, 2, 2, 2)

    def forward(self, x):
        y = F.max_pool1d(F.pad(self.layer(x[:, None]), (1, 1), mode="reflect"), 2)
        return F.interpolate(self.up(y), scale_factor=2, mode="linear"), y.topk(2).values, y.sort(-1).values.cumsum(-1)


MODULES = {
    each.__name__: each
    for each in (Branching, CustomGradient, Unsupported, Complex, InPlace, Views, Tied, Nothing, Windows)
}
ON_OPENVINO = ("Unsupported", "InPlace", "Tied", "Windows")
"""Always tested on openvino: most kinds of operators, and parts that remain in PyTorch."""
BREAKS = {"Branching"}
STAYS = {"Unsupported", "Complex"}


def compiled(module, device):
    return torch.compile(module, backend=nna.torch.nnadapter, options={"devices": [device], "fallback": "allow"})


def tensors_of(results):
    if isinstance(results, torch.Tensor):
        return [results]
    values = results.values() if isinstance(results, dict) else results or ()
    return [each for value in values for each in tensors_of(value)]


def check_what_is_said(name, report):
    assert bool(report.breaks) == (name in BREAKS)
    stayed = [row for graph in report.graphs for row in graph.fallback_operators]
    assert bool(stayed) == (name in STAYS)
    for line in (*(graph.graph_break_line for graph in report.breaks), *(row.line for row in stayed if row.line)):
        assert "test_features.py:" in line
    assert report.coverage == 1 or stayed


@pytest.mark.parametrize(
    ("name", "device"),
    [
        *((name, "fake_npu") for name in MODULES),
        *((name, "openvino") for name in ON_OPENVINO),
        *(pytest.param(name, "openvino", marks=pytest.mark.sweep) for name in MODULES if name not in ON_OPENVINO),
    ],
    indirect=["device"],
)
def test_inference(name, device):
    module = MODULES[name]().eval()
    twin = copy.deepcopy(module)
    run = compiled(module, device)
    with torch.no_grad():
        for sign in (1, -1, 1):
            x = sign * torch.randn(3, 4).abs()
            result, expected = run(x), twin(x.clone())
            for one, other in zip(tensors_of(result), tensors_of(expected), strict=True):
                torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
                assert one.stride() == other.stride()
    for one, other in zip(module.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    check_what_is_said(name, nna.torch.report(run))


@pytest.mark.parametrize("name", MODULES)
def test_training(name, device):
    module = MODULES[name]()
    twin = copy.deepcopy(module)
    run = compiled(module, device)
    optimizers = [torch.optim.AdamW(each.parameters(), lr=1e-2) for each in (module, twin)]
    for sign in (1, -1, 1):
        x = sign * torch.randn(3, 4).abs()
        inputs = [x.clone().requires_grad_() for _ in optimizers]
        for called, given, optimizer in zip((run, twin), inputs, optimizers, strict=True):
            optimizer.zero_grad()
            results = [each for each in tensors_of(called(given)) if each.requires_grad]
            sum(result.sin().sum() for result in results).backward()
        for one, other in zip((inputs[0], *module.parameters()), (inputs[1], *twin.parameters()), strict=True):
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-5)
        for optimizer in optimizers:
            optimizer.step()
        module.load_state_dict(twin.state_dict())
    report = nna.torch.report(run)
    assert {"forward", "backward"} <= {graph.kind for graph in report.graphs}
    check_what_is_said(name, report)


@pytest.mark.parametrize("gradients", [False, True])
def test_two_data_types(gradients, device):
    def function(x):
        return (x * 2 + 1).exp() @ x.t()

    run = compiled(function, device)
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float32):
        one, other = (torch.linspace(-1, 1, 12).reshape(3, 4).to(dtype).requires_grad_(gradients) for _ in range(2))
        result, expected = run(one), function(other)
        close = {"rtol": 3e-2, "atol": 3e-2} if dtype is torch.bfloat16 else {}
        torch.testing.assert_close(result, expected, **close)
        if gradients:
            result.sum().backward()
            expected.sum().backward()
            torch.testing.assert_close(one.grad, other.grad, **close)
    assert not nna.torch.report(run).breaks


def test_mutated_input_is_visible_to_the_caller(device):
    def function(x, state):
        state[1:].add_(x[1:])
        state.t_()
        return state * 2

    run = compiled(function, device)
    result, expected = torch.ones(3, 3), torch.ones(3, 3)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(3, 3)
            torch.testing.assert_close(run(x, result), function(x, expected))
    torch.testing.assert_close(result, expected)
    assert result.stride() == expected.stride()


def test_random_numbers_and_seeds(device):
    def function(x):
        return F.dropout(x.exp(), 0.5) * torch.rand(3) + torch.randn_like(x).relu()

    results, gradients = [], []
    for run in (compiled(function, device), function):
        x = torch.ones(2, 3, requires_grad=True)
        torch.manual_seed(3)
        results.append(run(x))
        results[-1].sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*gradients)


class Fast(nn.Module):
    """Modules that PyTorch runs as one operator at inference."""

    def __init__(self, norm_first, activation):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, 0.1, activation, batch_first=True, norm_first=norm_first)
        self.attention = nn.MultiheadAttention(8, 4, batch_first=True)

    def forward(self, x, mask=None, padding=None):
        y = self.layer(x, src_mask=mask, src_key_padding_mask=padding)
        return y, *self.attention(y, y, y, key_padding_mask=padding, attn_mask=mask, average_attn_weights=False)


MASKS = {
    "none": (None, None),
    "rows": (torch.ones(5, 5, dtype=torch.bool).triu(1), None),
    "keys": (None, torch.tensor([[False] * 5, [False] * 3 + [True] * 2])),
    "both": (torch.ones(5, 5, dtype=torch.bool).triu(1), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])),
}


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:Converting mask without torch.bool dtype:UserWarning")
@pytest.mark.filterwarnings("ignore:Support for mismatched src_key_padding_mask:UserWarning")
@pytest.mark.parametrize(
    ("norm_first", "activation", "masks"),
    [
        (False, "relu", "none"),
        (True, "gelu", "both"),
        *(pytest.param(False, "relu", masks, marks=pytest.mark.sweep) for masks in MASKS if masks != "none"),
        *(pytest.param(True, "gelu", masks, marks=pytest.mark.sweep) for masks in MASKS if masks != "both"),
    ],
)
def test_encoder_layers_run_entirely_on_the_device(norm_first, activation, masks, device):
    module = Fast(norm_first, activation).eval()
    run, x = compiled(module, device), torch.randn(2, 5, 8)
    for one, other in zip(run(x, *MASKS[masks]), module(x, *MASKS[masks]), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    (graph,) = nna.torch.report(run).graphs
    assert graph.delegated == graph.operators and not graph.fallback_operators
