"""Data types and values of compiled functions, which are PyTorch's even if its exporter deviates."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import nnadapter as nna
from nnadapter.drivers import Reason
from nnadapter.errors import FallbackWarning
from tests.every import few_of


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def compiled(model):
    return torch.compile(model, backend=nna.torch.nnadapter, options={"devices": ["fake_npu"], "fallback": "allow"})


HALVES = [torch.float16, torch.bfloat16]
REDUCTIONS = {
    "sum": lambda x: x.sum(),
    "cumsum": lambda x: x.cumsum(1),
    "prod": lambda x: x.prod(1),
    "read again": lambda x: (x.sum(1), x.sum(1).exp()),
}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_sums_have_the_type_of_the_input(name, dtype):
    x = torch.randn(4, 5).to(dtype)
    torch.testing.assert_close(compiled(REDUCTIONS[name])(x), REDUCTIONS[name](x), rtol=2e-2, atol=2e-2)


LAYERS = {
    "linear": lambda: nn.Linear(5, 3),
    "layer norm": lambda: nn.LayerNorm(5),
    "batch norm": lambda: nn.BatchNorm1d(5),
}


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", [*HALVES, torch.float64])
@pytest.mark.parametrize("name", few_of(LAYERS, "batch norm"))
def test_layers_are_trained_in_every_type(name, dtype):
    layer = LAYERS[name]().to(dtype)
    found, expected = (step(layer, wrap, dtype) for wrap in (compiled, lambda same: same))
    tolerance = 1e-6 if dtype is torch.float64 else 1e-1
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def step(layer, wrap, dtype):
    layer = copy.deepcopy(layer)
    x = torch.randn(8, 5, generator=torch.Generator().manual_seed(1)).to(dtype).requires_grad_()
    result = wrap(layer)(x)
    (result * result).sum().backward()
    return [result.detach(), x.grad, *(parameter.grad for parameter in layer.parameters()), *layer.buffers()]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision_batch_normalization_with_float32_weights(dtype):
    found, expected = (step(nn.BatchNorm1d(5), wrap, dtype) for wrap in (compiled, lambda same: same))
    torch.testing.assert_close(found, expected, rtol=3e-2, atol=3e-2)


@pytest.mark.sweep
def test_layers_are_trained_under_autocast():
    class Casting(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 2))

        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                return self.layers(x)

    model = Casting()
    found, expected = (step(model, wrap, torch.float32) for wrap in (compiled, lambda same: same))
    torch.testing.assert_close(found, expected, rtol=5e-2, atol=5e-2)


def test_shifts_of_unsigned_bytes():
    x = torch.tensor([200, 3], dtype=torch.uint8)
    torch.testing.assert_close(compiled(lambda x: (x << 1, x >> 1))(x), (x << 1, x >> 1))


@pytest.mark.parametrize("pool", [nn.AvgPool2d(2, divisor_override=3), nn.AvgPool3d(2, 2, divisor_override=3)])
def test_averages_with_divisor_override(pool):
    x = torch.randn(1, 4, 4, 4)
    torch.testing.assert_close(compiled(pool)(x), pool(x))


def test_fully_masked_rows_return_zeros_without_gradients():
    mask = torch.ones(4, 4, dtype=torch.bool).tril()
    mask[2] = False

    def function(x):
        return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)

    found, expected = (torch.ones(1, 2, 4, 8).cumsum(2).requires_grad_() for _ in range(2))
    results = compiled(function)(found), function(expected)
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
    for result in results:
        result.sum().backward()
    torch.testing.assert_close(found.grad, expected.grad, rtol=1e-4, atol=1e-4)


def beside_each_other(x):
    """The first random numbers wait for a sum that could be computed after the later ones."""
    chances = x.sigmoid()
    return torch.bernoulli(chances), torch.rand_like(x) + chances


RANDOM = {
    "beside each other": beside_each_other,
    "one behind another": lambda x: (torch.bernoulli(x.sigmoid()), torch.rand(3)),
    "many": lambda x: (torch.rand(6) + x, torch.bernoulli(x.sigmoid()), torch.rand_like(x), torch.randperm(5)),
    "gumbel": F.gumbel_softmax,
    "transposed": lambda x: F.dropout(x.t().sin(), 0.5, True),
    "channels last": lambda x: F.dropout(x.expand(2, 3, 5, 6).contiguous(memory_format=torch.channels_last), 0.5, True),
}


@pytest.mark.parametrize("name", RANDOM)
def test_seeded_random_numbers_equal_pytorch(name):
    x, results = torch.randn(5, 6), []
    for function in (compiled(RANDOM[name]), RANDOM[name]):
        torch.manual_seed(7)
        results.append(function(x))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("function", [F.relu6, F.hardtanh])
def test_gradients_at_a_bound(function):
    found, expected = (torch.tensor([-1.0, 0.0, 1.0, 6.0], requires_grad=True) for _ in range(2))
    compiled(function)(found).sum().backward()
    function(expected).sum().backward()
    torch.testing.assert_close(found.grad, expected.grad, rtol=1e-4, atol=1e-4)


def test_recomputed_random_numbers_are_equal():
    def function(x):
        return torch.utils.checkpoint.checkpoint(lambda y: F.dropout(y.sin(), 0.5) * y.exp(), x, use_reentrant=False)

    found, expected = (torch.linspace(-1, 1, 50).requires_grad_() for _ in range(2))
    for run, x in ((compiled(function), found), (function, expected)):
        torch.manual_seed(7)
        run(x).sum().backward()
    torch.testing.assert_close(found.grad, expected.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_gradients_of_embedding_bags(mode):
    indices, offsets = torch.tensor([1, 2, 3, 4, 5]), torch.tensor([0, 2])
    found, expected = (torch.linspace(-1, 1, 40).view(10, 4).requires_grad_() for _ in range(2))
    results = (
        compiled(lambda weight: F.embedding_bag(indices, weight, offsets, mode=mode).sin())(found),
        F.embedding_bag(indices, expected, offsets, mode=mode).sin(),
    )
    torch.testing.assert_close(*results)
    for result in results:
        result.sum().backward()
    torch.testing.assert_close(found.grad, expected.grad, rtol=1e-4, atol=1e-4)


WITHOUT_FAILURES = {
    "signs": (lambda x: (torch.signbit(x), torch.copysign(x + 1, x)), torch.tensor([0.0, -0.0, -2.0, 3.0])),
    "truths": (lambda x: ((x > 0).max(0), (x > 0).amax(), (x > 0).sort(0), x.amin()), torch.tensor([0.5, -0.5, 2.0])),
    "diagonal": (lambda x: x.clone().diagonal().mul_(2), torch.tensor([[2.0, 1.0], [1.0, 3.0]])),
    "written diagonal": (lambda x: x.diagonal_scatter(x[0]), torch.tensor([[2.0, 1.0], [1.0, 3.0]])),
    "indices": (lambda x: x[x.int() % 2], torch.tensor([3.0, 2.0])),
    "constants": (lambda x: (torch.fft.rfft(x).real, torch.full((3,), 2.0)), torch.tensor([3.0, 2.0])),
}
"""Functions that once failed in a session, left it nothing to run, or lost the entire graph."""


@pytest.mark.parametrize("name", WITHOUT_FAILURES)
def test_unsupported_operators_cause_no_failed_session(name):
    function, x = WITHOUT_FAILURES[name]
    on_device = compiled(function)
    torch.testing.assert_close(on_device(x), function(x))
    reasons = {facts.reason for graph in nna.torch.report(on_device).graphs for facts in graph.fallback_operators}
    assert reasons <= {Reason.UNSUPPORTED_OPERATION, Reason.UNSUPPORTED_DTYPE}


LAID_OUT = {
    "averages of stretches": (nn.AdaptiveAvgPool2d((3, 2)), (1, 4, 7, 6)),
    "filters": (nn.Conv2d(4, 2, 3), (1, 4, 7, 6)),
    "filters of lines": (nn.Conv1d(4, 2, 3, groups=2), (1, 4, 7)),
}


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", LAID_OUT)
def test_results_and_gradients_have_the_strides_of_pytorch(name, channels_last):
    layer, shape = LAID_OUT[name]
    lying = torch.channels_last if channels_last and len(shape) == 4 else torch.contiguous_format
    layer, found = layer.to(memory_format=lying), []
    for function in (compiled(layer), layer):
        x = torch.randn(shape).contiguous(memory_format=lying).requires_grad_()
        y = function(x)
        gradients = torch.autograd.grad(y, [x, *layer.parameters()], torch.ones_like(y))
        found.append([each.stride() for each in (y, *gradients)])
    assert found[0] == found[1]


def test_pytorch_runs_operators_of_the_reference_evaluator():
    """ONNX Runtime's CPU has few kernels for bfloat16."""
    layers = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)).eval().bfloat16()
    x = torch.randn(8, 64, dtype=torch.bfloat16)
    with torch.no_grad(), pytest.warns(FallbackWarning) as told:
        run = torch.compile(layers, backend=nna.torch.nnadapter, options={"devices": ["cpu"]})
        torch.testing.assert_close(run(x), layers(x), rtol=2e-2, atol=2e-2)
        assert torch.equal(run(x), layers(x))
    assert any("PyTorch runs 3 operators because it is faster" in str(warning.message) for warning in told)


def test_requested_reference_evaluator_computes():
    layers = nn.Linear(4, 4).eval().bfloat16()
    x = torch.randn(2, 4, dtype=torch.bfloat16)
    run = torch.compile(layers, backend=nna.torch.nnadapter, options={"devices": ["reference"]})
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        for _ in range(2):
            torch.testing.assert_close(run(x), layers(x), rtol=2e-2, atol=2e-2)
    assert nna.torch.report(run).graphs[0].fallback_operators == ()


def test_normalization_with_scale_of_another_type_runs_in_pytorch():
    norm, x = nn.LayerNorm(8).eval(), torch.randn(2, 8, dtype=torch.bfloat16)
    run = compiled(lambda x: norm(x).float() * 2)
    with torch.no_grad():
        assert torch.equal(run(x), norm(x).float() * 2)
    (graph,) = nna.torch.report(run).graphs
    assert [row.detail for row in graph.fallback_operators] == [
        "ONNX has no normalization with a scale of another type"
    ]
