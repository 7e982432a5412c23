"""Cache of tensors copied to a device: its entries and their lifetime."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
import torch
from torch import nn

from nnadapter.torch.resident_runs import COPY_CACHE, CopyCache
from tests.torch.training_steps import compiled, gradients, moved, network, used_bytes

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*lr_scheduler:UserWarning")


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def test_unchanged_weights_are_not_copied_again():
    model = network()
    run = compiled(model)
    for _ in range(3):
        gradients(model, run, torch.randn(8, 6))
    forward, _ = moved(run)
    assert forward[0] == 8 * 6 * 4


def test_device_memory_is_freed_with_the_tensors():
    before = used_bytes()
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
    run = compiled(model)
    for _ in range(3):
        gradients(model, run, torch.randn(32, 64))
    assert used_bytes() > before
    del model, run
    torch._dynamo.reset()
    assert used_bytes() <= before


def test_copies_of_data_batches_are_evicted():
    model, data = nn.Linear(6, 4), torch.randn(10 * 8, 6)
    run, before = compiled(model), used_bytes()
    for start in (0, 8, 16, 24, 32, 40, 0, 8, 48, 48, 48, 56, 56, 64):
        gradients(model, run, data[start : start + 8])
    model.zero_grad()
    assert used_bytes() <= before + sum(parameter.nbytes for parameter in model.parameters())


def test_unused_gradients_are_evicted():
    model, x, kept = network(), torch.randn(8, 6), []
    run = compiled(model)
    COPY_CACHE.forget()
    for _ in range(6):
        model.zero_grad()
        run(x.clone()).sum().backward()
        kept.append([parameter.grad for parameter in model.parameters()])
    assert len(COPY_CACHE) <= len(kept[0])


def test_always_changing_tensors_are_not_cached():
    known, weight = CopyCache(), nn.Parameter(torch.zeros(3))
    found = []
    for _ in range(6):
        weight.data.add_(1)
        found.append(known.fed(weight, weight.detach().numpy(), weight) is not None)
    assert found == [True] * 4 + [False] * 2 and len(known) == 0


@pytest.mark.sweep
def test_copies_are_freed_with_weights_states_and_graphs():
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    run, step = compiled(model), compiled(optimizer.step)
    COPY_CACHE.forget()
    for _ in range(3):
        gradients(model, run, torch.randn(8, 6))
        step()
    assert len(COPY_CACHE) >= 3 * 6  # parameters, and two states each
    optimizer.zero_grad()
    del model, optimizer, run, step
    torch._dynamo.reset()
    gc.collect()
    assert len(COPY_CACHE) == 0


@pytest.mark.parametrize("rounds", [50, pytest.param(500, marks=pytest.mark.sweep)])
def test_concurrently_written_tensor_is_fed_consistently(rounds):
    from nnadapter.drivers.tensor_copies import Copies

    known, weight, ended = CopyCache(), nn.Parameter(torch.zeros(200_000)), threading.Event()
    array, other = weight.detach().numpy(), np.ones(200_000, np.float32)

    def note():
        while not ended.is_set():
            known.note(weight, Copies(other), weight)

    thread = threading.Thread(target=note)
    thread.start()
    try:
        results = [known.fed(weight, array, weight) for _ in range(rounds)]
    finally:
        ended.set()
        thread.join()
    assert all(copies is None or not copies.host().any() for copies in results)
