from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import nnadapter as nna


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def compiled(model, **options):
    return torch.compile(model, backend=nna.torch.nnadapter, options={"devices": ["fake_npu"], **options})


def digits():
    first = nn.Conv2d(1, 4, 3, padding=1, bias=False)  # a bias would have a gradient of noise
    return nn.Sequential(first, nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 10))


def steps(model, run, count, rate=0.05):
    """Return the losses of gradient descent on the same data."""
    data = torch.Generator().manual_seed(1)
    images = torch.randn(16, 1, 8, 8, generator=data)
    answers = torch.randint(0, 10, (16,), generator=data)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    losses = []
    for _ in range(count):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(run(images), answers)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_losses_equal_pytorch_over_steps():
    model = digits()
    other = copy.deepcopy(model)
    run = compiled(model)
    result, expected = steps(model, run, 10), steps(other, other, 10)
    assert result == pytest.approx(expected, rel=1e-4)
    assert result[-1] < result[0] / 2
    torch.testing.assert_close(model[1].running_mean, other[1].running_mean, rtol=1e-3, atol=1e-4)
    forward, backward = nna.torch.report(run).graphs
    assert (forward.kind, backward.kind) == ("forward", "backward")
    for graph in (forward, backward):
        assert graph.delegated == graph.operators and not graph.fallback_operators
        assert len(graph.sessions) == 1 and graph.unfrozen_weights == 0


def test_evaluation_during_training_sees_new_weights():
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    run, x = compiled(model), torch.randn(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        run(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            torch.testing.assert_close(run(x), model(x))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # PyTorch's own warning
def test_custom_gradient_is_used():
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x * 2

        @staticmethod
        def backward(context, gradient):
            return gradient * 5

    def function(x):
        return Doubled.apply(x).sin()

    found, expected = (torch.ones(3, requires_grad=True) for _ in range(2))
    compiled(function)(found).sum().backward()
    function(expected).sum().backward()
    torch.testing.assert_close(found.grad, expected.grad)


def test_gradients_of_frozen_weights():
    model = nn.Linear(3, 2).requires_grad_(False)
    run = compiled(model)
    x = torch.randn(2, 3, requires_grad=True)
    run(x).sum().backward()
    torch.testing.assert_close(x.grad, model.weight.sum(0).expand(2, 3))
    assert not run(torch.randn(2, 3)).requires_grad


def test_gradients_of_fallback_operators():
    def function(x):
        return torch.fft.fft(torch.tanh(x)).abs().sum()

    result = torch.randn(4, requires_grad=True)
    expected = result.detach().clone().requires_grad_()
    run = compiled(function)
    run(result).backward()
    function(expected).backward()
    torch.testing.assert_close(result.grad, expected.grad)
    assert all(graph.fallback_operators for graph in nna.torch.report(run).graphs)


@pytest.mark.parametrize("shape", [(4, 10), (2, 10, 3, 3)])
def test_gradients_of_a_mean_loss_are_divided_by_its_weights(shape):
    scores, answers = torch.randn(*shape, requires_grad=True), torch.randint(0, 10, (shape[0], *shape[2:]))
    answers[0] = -100
    on_device = compiled(nn.functional.cross_entropy)
    (result,) = torch.autograd.grad(on_device(scores, answers), scores)
    (expected,) = torch.autograd.grad(nn.functional.cross_entropy(scores, answers), scores)
    torch.testing.assert_close(result, expected)
