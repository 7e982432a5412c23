"""Weights changed between steps in every way that PyTorch offers: training and inference equal PyTorch's.

Some ways are in test_training_memory.py and test_weights.py; `pytest -m sweep tests/torch` covers all.
"""

from __future__ import annotations

import copy
import ctypes
import functools
import io

import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import nnadapter as nna

pytestmark = [pytest.mark.sweep, pytest.mark.filterwarnings("ignore")]

STEPS = 6


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 4))


def chance(step, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(step))


def by_numpy(weight, step):
    weight.detach().numpy()[1, 2] = step


def by_address(weight, step):
    ctypes.cast(weight.data_ptr(), ctypes.POINTER(ctypes.c_float))[7] = step


def by_dlpack(weight, step):
    torch.from_dlpack(weight.detach())[2, 3] += 2


def by_memory_of_its_own(weight, step):
    weight.data = torch.empty(0)  # a later tensor in the same memory is another tensor
    weight.data = chance(step, 16, 6)


def in_inference_mode(weight, step):
    with torch.inference_mode():
        weight[0, 1] += 1


def by_many_at_once(weight, step):
    with torch.no_grad():
        torch._foreach_mul_([weight], 1.1)


WEIGHT_WAYS = {
    "an element of data": lambda weight, step: weight.data[1, 2].add_(3),
    "all of data": lambda weight, step: weight.data.mul_(1.3),
    "a copy": lambda weight, step: weight.detach().copy_(chance(step, 16, 6)),
    "other data": lambda weight, step: setattr(weight, "data", weight.data.flip(0)),
    "data laid out otherwise": lambda weight, step: setattr(weight, "data", weight.data.t().contiguous().t()),
    "other memory": lambda weight, step: weight.data.set_(chance(step, 16, 6)),
    "its memory": lambda weight, step: weight.untyped_storage().copy_(chance(step, 16, 6).untyped_storage()),
    "shared memory": lambda weight, step: weight.data.share_memory_().add_(0.1),
    "a mask": lambda weight, step: weight.data.mul_(weight.data.abs() > 0.05),
    "numpy": by_numpy,
    "its address": by_address,
    "DLPack": by_dlpack,
    "memory that was freed": by_memory_of_its_own,
    "inference mode": in_inference_mode,
    "foreach": by_many_at_once,
}


def swap_with_average(model, step):
    for parameter, other in zip(model.parameters(), copy.deepcopy(model).parameters(), strict=True):
        other.data.mul_(0.9)
        parameter.data, other.data = other.data, parameter.data


def load_saved(model, step):
    saved = io.BytesIO()
    torch.save({name: value * 0.9 for name, value in model.state_dict().items()}, saved)
    saved.seek(0)
    model.load_state_dict(torch.load(saved), assign=step % 2 == 1)


MODEL_WAYS = {
    "a state": lambda model, step: model.load_state_dict({k: v * 0.9 for k, v in model.state_dict().items()}),
    "a saved state": load_saved,
    "a vector": lambda model, step: vector_to_parameters(
        parameters_to_vector(model.parameters()) * 1.02, model.parameters()
    ),
    "an average": swap_with_average,
    "an element of a bias": lambda model, step: model[3].bias.data[2].add_(5),
}


def trained(compiled, change):
    """Return losses, gradients, inference results and weights of some steps, with a change after each."""
    model = network()
    run, found = compiled(model), []
    for step in range(STEPS):
        model.zero_grad()
        loss = run(chance(100 + step, 8, 6)).square().sum()
        loss.backward()
        found += [loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())]
        change(model, step)
        with torch.no_grad():
            found.append(run(chance(step, 8, 6)).clone())
    return found + [parameter.detach() for parameter in model.parameters()]


def assert_as_pytorch(work):
    options = {"devices": ["fake_npu"]}
    result = work(lambda function: torch.compile(function, backend=nna.torch.nnadapter, options=options))
    torch.testing.assert_close(result, work(lambda function: function), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("way", WEIGHT_WAYS)
def test_changed_weight(way):
    assert_as_pytorch(lambda compiled: trained(compiled, lambda model, step: WEIGHT_WAYS[way](model[0].weight, step)))


@pytest.mark.parametrize("way", MODEL_WAYS)
def test_changed_model(way):
    assert_as_pytorch(lambda compiled: trained(compiled, MODEL_WAYS[way]))


OPTIMIZERS = [
    (kind, extra)
    for kind in ("AdamW", "Adagrad", "NAdam", "RMSprop", "SGD")
    for extra in ({}, {"foreach": True}, {"fused": True})
    if kind in ("AdamW", "Adagrad", "SGD") or "fused" not in extra
]


@pytest.mark.parametrize(("kind", "extra"), OPTIMIZERS, ids=str)
def test_steps_of_optimizers(kind, extra):
    @functools.cache
    def optimizer_of(model):
        return getattr(torch.optim, kind)(model.parameters(), lr=0.01, **extra)

    assert_as_pytorch(lambda compiled: trained(compiled, lambda model, step: optimizer_of(model).step()))


GRADIENT_WAYS = {
    "cut": lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.05),
    "bounded": lambda parameters: nn.utils.clip_grad_value_(parameters, 0.05),
    "others": lambda parameters: [setattr(parameter, "grad", parameter.grad * 0.5) for parameter in parameters],
    "an element": lambda parameters: parameters[0].grad.data[0, 0].add_(3),
    "weights": lambda parameters: parameters[0].data[0, 0].add_(3),
}


@pytest.mark.parametrize("way", GRADIENT_WAYS)
def test_compiled_step_reads_changed_gradients(way):
    def work(compiled):
        model = network()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        run, step = compiled(model), compiled(optimizer.step)
        for number in range(STEPS):
            optimizer.zero_grad()
            run(chance(number, 8, 6)).square().sum().backward()
            GRADIENT_WAYS[way](list(model.parameters()))
            step()
        states = [value for state in optimizer.state.values() for value in state.values()]
        return [*(parameter.detach() for parameter in model.parameters()), *states]

    assert_as_pytorch(work)
