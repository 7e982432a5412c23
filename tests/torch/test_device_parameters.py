"""Parameters that live on a device: transfers per step, and correct numbers for every reader and writer."""

from __future__ import annotations

import copy
import io

import numpy as np
import pytest
import torch
from torch import nn

import nnadapter as nna
from nnadapter.drivers.registry import open_device
from nnadapter.torch.resident_tensors import Resident
from tests.torch.training_steps import compiled, gradients, moved, network

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*lr_scheduler:UserWarning")


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def living():
    """Return a network on the device, and its twin in PyTorch."""
    model = network()
    return nna.torch.to_device(copy.deepcopy(model), "fake_npu"), model


def stay(module):
    return all(parameter.copies is not None for parameter in module.parameters())


def assert_same(found, expected):
    torch.testing.assert_close(found, expected, rtol=5e-4, atol=5e-4)


def plain(tensors):
    return {name: torch.from_numpy(each.detach().numpy().copy()) for name, each in tensors}


@pytest.mark.parametrize(("kind", "counters"), [pytest.param("SGD", 0, marks=pytest.mark.sweep), ("AdamW", 4)])
def test_step_copies_only_results_to_the_host(kind, counters):
    model, twin = living()
    options = {"lr": 0.01, **({"momentum": 0.9} if kind == "SGD" else {})}
    optimizer, other = (getattr(torch.optim, kind)(each.parameters(), **options) for each in (model, twin))
    run, step, device = compiled(model), compiled(optimizer.step), open_device("fake_npu")
    for _ in range(5):
        x, before = torch.randn(8, 6), device.memory_statistics()
        gradients_of(model, run, x)
        step()
        after = device.memory_statistics()
        gradients_of(twin, twin, x)
        other.step()
    result, parameters = 8 * 4 * 4, len(list(model.parameters()))
    assert after.bytes_out - before.bytes_out == result + counters * parameters  # PyTorch's step counters
    assert after.bytes_in - before.bytes_in == 2 * x.nbytes + result
    assert [back for _, back in moved(run)] == [result, 0]
    assert stay(model) and all(type(parameter.grad) is Resident for parameter in model.parameters())
    assert_same(plain(model.named_parameters()), dict(twin.named_parameters()))


def gradients_of(model, run, x):
    model.zero_grad()
    run(x).square().sum().backward()


@pytest.mark.sweep
def test_host_optimizer_reads_gradients_once():
    model, twin = living()
    optimizer, other = (torch.optim.AdamW(each.parameters(), lr=0.01, foreach=False) for each in (model, twin))
    run = compiled(model)
    for _ in range(4):
        x = torch.randn(8, 6)
        for each, function, update in ((model, run, optimizer), (twin, twin, other)):
            gradients_of(each, function, x)
            update.step()
    parameters = sum(parameter.nbytes for parameter in twin.parameters())
    assert moved(run)[1][1] == parameters
    assert_same(plain(model.named_parameters()), dict(twin.named_parameters()))


def by_view(gradient):
    gradient.view(-1)[5] = 3


def by_data(gradient):
    gradient.data[1, 2] = 3


def by_numpy(gradient):
    gradient.numpy()[1, 2] = 3


def by_dlpack(gradient):
    np.asarray(torch.from_dlpack(gradient))[1, 2] = 3


def by_step(gradient):
    gradient.add_(0.5)


def by_address(gradient):
    import ctypes

    ctypes.memmove(gradient.data_ptr(), np.float32(3).tobytes(), 4)


def by_list(gradient):
    torch._foreach_mul_([gradient], 0.5)


@pytest.mark.sweep
def test_modified_gradients_reach_a_compiled_step():
    model, twin = living()
    optimizer, other = (torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, twin))
    run, step = compiled(model), compiled(optimizer.step)
    for change in (by_view, by_data, by_numpy, by_dlpack, by_step, by_address, by_list):
        x = torch.randn(8, 6)
        for each, function, update in ((model, run, step), (twin, twin, other.step)):
            gradients_of(each, function, x)
            nn.utils.clip_grad_norm_(each.parameters(), 0.5)
            change(each[0].weight.grad)
            update()
        assert_same(model[0].weight.detach() + 0, twin[0].weight.detach())
    assert_same(plain(model.named_parameters()), dict(twin.named_parameters()))


def test_gradient_accumulation_hooks_and_zeroing():
    model, twin = living()
    run, x, found = compiled(model), torch.randn(8, 6), []
    for each, function in ((model, run), (twin, twin)):
        each[0].bias.register_hook(lambda gradient: gradient * 2)
        for _ in range(2):
            function(x).square().sum().backward()
        first = plain((name, one.grad) for name, one in each.named_parameters())
        each.zero_grad(set_to_none=False)
        function(x).sum().backward()
        found.append((first, plain((name, one.grad) for name, one in each.named_parameters())))
    assert_same(*found)


def test_reading_a_parameter_shows_the_step_result():
    model, twin = living()
    views = [model[0].weight.detach().view(-1), model[0].weight.detach().numpy()]
    optimizer, other = (torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, twin))
    run, step = compiled(model), compiled(optimizer.step)
    for _ in range(3):
        x = torch.randn(8, 6)
        for each, function, update in ((model, run, step), (twin, twin, other.step)):
            gradients_of(each, function, x)
            update()
        for view in views:
            assert_same(torch.as_tensor(view).reshape(16, 6), twin[0].weight.detach())
    assert model[0].weight.copies is None  # reading moves it to the host
    del views, view
    gradients_of(model, run, x)
    step()
    assert model[0].weight.copies is not None


def test_modified_weights_reach_the_device():
    model, twin = living()
    run, x = compiled(model), torch.randn(8, 6)
    for change in (
        lambda each: each[0].weight.data.mul_(2),
        lambda each: each.load_state_dict({name: one + 0.1 for name, one in twin.state_dict().items()}),
        lambda each: nn.utils.vector_to_parameters(torch.ones(212), each.parameters()),
        lambda each: setattr(each[0].bias, "data", torch.full((16,), 0.5)),
    ):
        state = [change(each) for each in (model, twin)]
        assert len(state) == 2
        for _ in range(2):
            assert_same(run(x), twin(x))
        assert_same(model(x), twin(x))


@torch.no_grad()
def test_inference_copies_no_weights():
    model, twin = living()
    run, x = compiled(model.eval()), torch.randn(8, 6)
    for _ in range(2):
        assert_same(run(x.clone()), twin(x))
    assert moved(run) == [(x.nbytes, 8 * 4 * 4)] and stay(model)


def test_batch_normalization_statistics_and_tied_weights_are_resident():
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm, self.last = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 6)
            self.last.weight = self.first.weight

        def forward(self, x):
            return self.last(self.norm(self.first(x)).tanh())

    twin = Network()
    model = nna.torch.to_device(copy.deepcopy(twin), "fake_npu")
    assert model.last.weight is model.first.weight
    run = compiled(model)
    for _ in range(3):
        x = torch.randn(8, 6)
        assert_same(gradients(model, run, x), gradients(twin, twin, x))
    assert type(model.norm.running_mean) is Resident and model.norm.running_mean.copies is not None
    assert_same(plain(model.named_buffers()), dict(twin.named_buffers()))


def test_copies_and_saved_files_contain_plain_tensors():
    model, twin = living()
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    assert_same(torch.load(file), twin.state_dict())
    copied = copy.deepcopy(model)
    assert all(type(parameter) is nn.Parameter for parameter in copied.parameters())
    assert_same(copied.state_dict(), twin.state_dict())
    session = nna.InferenceSession(model.eval(), (torch.ones(8, 6),), devices=["fake_npu"])
    (result,) = session.run(None, {session.get_inputs()[0].name: np.ones((8, 6), np.float32)})
    assert_same(torch.from_numpy(result), twin(torch.ones(8, 6)).detach())
    assert stay(model)


def test_direct_memory_access_is_an_error():
    tensor = living()[0][0].weight.detach()
    for ask in (torch.utils.dlpack.to_dlpack, torch.Tensor.data_ptr, torch.Tensor.numpy):
        with pytest.raises(RuntimeError):
            ask(tensor)
    with pytest.raises(RuntimeError, match="changes metadata"):
        tensor.t_()
    with pytest.raises(RuntimeError, match="new data of a device-resident tensor"):
        tensor.data = torch.ones(3)


def test_other_back_ends_fail_on_resident_parameters():
    model, _ = living()
    with pytest.raises(RuntimeError):
        torch.compile(model, backend="aot_eager")(torch.randn(8, 6))


def test_to_device_is_a_no_op_on_the_host_and_reports_misuse():
    model = network()
    assert nna.torch.to_device(model, "cpu") is model and type(model[0].weight) is nn.Parameter
    with pytest.raises(nna.errors.DeviceNotFoundError):
        nna.torch.to_device(model, "no_such")
    with pytest.raises(nna.errors.InvalidOptionError, match=r"needs a torch\.nn\.Module, got int"):
        nna.torch.to_device(3, "fake_npu")
