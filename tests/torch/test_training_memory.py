"""Training on a device with memory of its own: transfers, and values that are current despite any write."""

from __future__ import annotations

import copy
import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import nnadapter as nna
from nnadapter.drivers.registry import open_device
from nnadapter.torch.resident_runs import COPY_CACHE
from nnadapter.torch.resident_tensors import Resident
from tests.torch.training_steps import compiled, gradients, moved, network, used_bytes
from tests.trial_driver import HANDED

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*lr_scheduler:UserWarning")


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def assert_as_eager(model, run, x):
    torch.testing.assert_close(gradients(model, run, x), gradients(model, model, x), rtol=5e-4, atol=5e-4)


def test_step_moves_batch_changed_weights_and_gradients():
    model, x = network(), torch.randn(8, 6)
    run, parameters = compiled(model), sum(parameter.nbytes for parameter in model.parameters())
    for _ in range(6):
        gradients(model, run, x.clone())
        with torch.no_grad():
            for each in model.parameters():
                each -= 0.01
    (forward, backward), result = moved(run), 8 * 4 * 4
    assert forward == (x.nbytes + parameters, result)
    assert backward[1] == parameters and backward[0] <= x.nbytes + result
    text = str(nna.torch.report(run))
    assert "copied to fake_npu and" in text and nna.torch.report(run).to_dict()["graphs"][1]["to_host_bytes"]


def test_report_agrees_with_device_statistics():
    model, device = network(), open_device("fake_npu")
    run = compiled(model)
    gradients(model, run, torch.randn(8, 6))
    before = device.memory_statistics()
    gradients(model, run, torch.randn(8, 6))
    after = device.memory_statistics()
    into, back = map(sum, zip(*moved(run), strict=True))
    assert (after.bytes_in - before.bytes_in, after.bytes_out - before.bytes_out) == (into, back)


@pytest.mark.sweep
def test_compiled_optimizer_step_reads_from_the_device():
    model = network()
    twin = copy.deepcopy(model)
    optimizer, other = torch.optim.AdamW(model.parameters(), lr=0.01), torch.optim.AdamW(twin.parameters(), lr=0.01)
    run, step = compiled(model), compiled(optimizer.step)
    for _ in range(8):
        x = torch.randn(8, 6)
        gradients(model, run, x)
        gradients(twin, twin, x)
        step()
        other.step()
    torch.testing.assert_close(model.state_dict(), twin.state_dict(), rtol=5e-4, atol=5e-5)
    ((into, back),), parameters = moved(step), sum(parameter.nbytes for parameter in model.parameters())
    assert into == 0 and back == pytest.approx(3 * parameters, rel=0.05)
    assert moved(run)[0][0] == x.nbytes


def by_data(weight):
    weight.data[1, 2] += 1


def by_numpy(weight):
    weight.detach().numpy()[1, 2] += 1


def by_a_view(weight):
    weight.detach().view(-1)[5] += 1


def by_new_data(weight):
    weight.data = weight.data + 1


def by_a_step(weight):
    with torch.no_grad():
        weight.sub_(0.5)


@pytest.mark.parametrize("change", [by_data, by_numpy, by_a_view, by_new_data, by_a_step])
def test_weight_changes_are_detected(change):
    model, x = network(), torch.randn(8, 6)
    run = compiled(model)
    for _ in range(3):
        assert_as_eager(model, run, x)
        change(model[0].weight)
    assert_as_eager(model, run, x)


@pytest.mark.parametrize("fused", [False, True])
def test_host_optimizer_steps_are_detected(fused):
    model, x = network(), torch.randn(8, 6)
    run, optimizer = compiled(model), torch.optim.Adam(model.parameters(), lr=0.1, fused=fused)
    for _ in range(4):
        assert_as_eager(model, run, x)
        optimizer.step()


def test_untracked_weight_changes_before_backward():
    weight, x = nn.Parameter(torch.randn(4, 4)), torch.randn(3, 4, requires_grad=True)
    other, x2 = nn.Parameter(weight.detach().clone()), x.detach().clone().requires_grad_()
    run = compiled(lambda x, weight: (x @ weight).tanh().sum())
    for _ in range(3):
        for function, at, of in ((run, x, weight), (lambda x, weight: (x @ weight).tanh().sum(), x2, other)):
            at.grad = None
            loss = function(at, of)
            of.data.mul_(2)
            loss.backward()
        torch.testing.assert_close(x.grad, x2.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.sweep
def test_modified_gradients_reach_a_compiled_step():
    model = network()
    twin = copy.deepcopy(model)
    optimizer, other = (torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9) for each in (model, twin))
    run, step = compiled(model), compiled(optimizer.step)
    for _ in range(4):
        x = torch.randn(8, 6)
        for each, function, update in ((model, run, step), (twin, twin, other.step)):
            gradients(each, function, x)
            nn.utils.clip_grad_norm_(each.parameters(), 0.1)
            each[0].weight.grad.numpy()[0, 0] = 1
            update()
    torch.testing.assert_close(model.state_dict(), twin.state_dict(), rtol=5e-4, atol=5e-5)


def test_two_models_that_share_a_weight():
    first, second = network(), network()
    second[0].weight = first[0].weight
    runs, x = (compiled(first), compiled(second)), torch.randn(8, 6)
    for _ in range(3):
        for model, run in zip((first, second), runs, strict=True):
            assert_as_eager(model, run, x)
            model[0].weight.data.mul_(1.5)


def test_repeated_and_accumulated_gradients():
    model, x = network(), torch.randn(8, 6)
    run, found = compiled(model), []
    for function in (run, model):
        model.zero_grad()
        loss = function(x).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
        function(x).sum().backward()
        found.append([parameter.grad.clone() for parameter in model.parameters()])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


def test_hooks_on_saved_tensors_get_tensors():
    model, x, observed = network(), torch.randn(8, 6), []

    def pack(tensor):
        observed.append(type(tensor))
        return tensor.numpy().copy() if not tensor.requires_grad else tensor

    def unpack(packed):
        return torch.from_numpy(packed) if isinstance(packed, np.ndarray) else packed

    run = compiled(model)
    gradients(model, run, x)
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        result = gradients(model, run, x)
    torch.testing.assert_close(result, gradients(model, model, x), rtol=1e-4, atol=1e-4)
    with torch.autograd.graph.save_on_cpu():
        torch.testing.assert_close(gradients(model, run, x), result, rtol=1e-4, atol=1e-4)
    assert Resident in observed


def test_resident_tensor_is_readable():
    from nnadapter.drivers.tensor_copies import Copies

    array, read = np.arange(6, dtype=np.float32).reshape(2, 3), []
    value = nna.DeviceValue.from_numpy(array, "fake_npu").contents
    assert isinstance(value, Copies)
    tensor = Resident.of(value, torch.float32, read.append)
    assert tensor.shape == (2, 3) and not read
    assert (tensor + 1).tolist() == (array + 1).tolist() and read == [24]
    tensor[0, 0] = 7
    assert tensor.numpy()[0, 0] == 7 == copy.deepcopy(tensor)[0, 0] and value.own_array()[0, 0] == 0
    assert tensor.tolist()[0][0] == 7 and "7." in repr(tensor) and tensor.copies is None and read == [24]


def test_weights_unused_on_the_device_are_not_copied():
    weight, switched_off = nn.Parameter(torch.randn(3, 4)), {"switched_off": "TANH,EXP,ADD"}
    run = compiled(lambda x: x.tanh() + weight.exp(), ("fake_npu", switched_off), fallback="allow")
    COPY_CACHE.forget()
    for _ in range(2):
        weight.grad = None
        run(torch.randn(3, 4)).sum().backward()
    weight.grad = None
    assert nna.torch.report(run).graphs[0].nodes[0] == 0
    assert moved(run)[0] == (0, 0) and len(COPY_CACHE) == 0


@torch.no_grad()
@pytest.mark.parametrize(("switched_off", "expected"), [("TANH,REDUCE_SUM,EXP", (0, 0)), ("TANH,REDUCE_SUM", (16, 16))])
def test_report_counts_copies_of_delegated_steps_only(switched_off, expected):
    run = compiled(
        lambda x, y: (x.tanh().sum(), y.exp()), ("fake_npu", {"switched_off": switched_off}), fallback="allow"
    )
    run(torch.randn(9, 9), torch.randn(4))
    assert moved(run) == [expected]


def test_several_threads_train_models_that_share_a_weight():
    models = [network() for _ in range(4)]
    for model in models[1:]:
        model[0].weight = models[0][0].weight
    runs, x, failures = [compiled(model) for model in models], torch.randn(8, 6), []
    expected = [model(x).detach() for model in models]
    for run in runs:
        run(x).sum().backward()

    def work(run, wanted):
        for _ in range(10):
            result = run(x)
            if not torch.allclose(result, wanted, rtol=1e-4, atol=1e-4):
                failures.append(result)
            torch.autograd.grad(result.sum(), x_of(run))

    def x_of(run):
        return list(run.parameters())

    threads = [threading.Thread(target=work, args=each) for each in zip(runs, expected, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_full_device_still_computes():
    model, x, device = network(), torch.randn(8, 6), open_device("fake_npu")
    run, used = compiled(model, fallback="allow"), used_bytes()
    memory = device.allocate(device.memory_statistics().total_bytes - used)
    try:
        for _ in range(2):
            assert_as_eager(model, run, x)
        assert "fake_npu had too little memory for resident values" in str(nna.torch.report(run))
    finally:
        memory.free()
    for _ in range(12):
        assert_as_eager(model, run, x.clone())
    report, parameters = nna.torch.report(run), sum(parameter.nbytes for parameter in model.parameters())
    assert not any(graph.device_memory_full or graph.fallback_operators for graph in report.graphs)
    forward, backward = moved(run)
    assert forward[0] == x.nbytes and backward[0] < parameters


def test_failing_device_falls_back_to_the_host():
    from tests.residing_driver import BREAKS

    model, x = network(), torch.randn(8, 6)
    run = compiled(model, "residing", fallback="allow")
    assert_as_eager(model, run, x)
    BREAKS.add("TANH")
    try:
        for _ in range(2):
            assert_as_eager(model, run, x)
    finally:
        BREAKS.clear()
    assert_as_eager(model, run, x)


def test_host_memory_devices_get_tensors_without_copies():
    model, x = network(), torch.randn(8, 6)
    run = compiled(model, ("trial", {"recorded": True}))
    gradients(model, run, x)
    HANDED.clear()
    result = run(x)
    given = [array.ctypes.data for inputs, _ in HANDED for array in inputs]
    results = [array.ctypes.data for _, outputs in HANDED for array in outputs]
    assert {x.data_ptr(), *(parameter.data_ptr() for parameter in model.parameters())} <= set(given)
    assert result.data_ptr() in results
    assert moved(run)[0] == (0, 0) and "nothing copied" in str(nna.torch.report(run))


@torch.no_grad()
def test_values_between_sessions_stay_on_the_device():
    def function(x):
        first = x.sin() * 2
        second = torch.special.bessel_j0(first.sum(1))
        return first.cos() + second.sum()

    x, run = torch.randn(6, 3), compiled(function)
    for _ in range(2):
        torch.testing.assert_close(run(x), function(x))
    assert nna.torch.report(run).graphs[0].fallback_operators
    assert moved(run)[0][1] == 6 * 4 + x.nbytes  # the sum that PyTorch reads, and the result


class ExpectsSaved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        product = x @ weight
        ctx.save_for_backward(product)
        return product.tanh()

    @staticmethod
    def backward(ctx, gradient):
        return ctx.saved_tensors[0], None


def test_resident_gradient_becomes_a_plain_tensor():
    x, weight = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4)
    (gradient,) = torch.autograd.grad(compiled(ExpectsSaved.apply)(x, weight).sum(), x)
    assert type(gradient) is torch.Tensor
    torch.testing.assert_close(gradient, x.detach() @ weight, rtol=1e-4, atol=1e-4)


@pytest.mark.sweep
def test_compiled_autograd():
    model, x = network(), torch.randn(8, 6)
    expected = gradients(model, model, x)
    captured = counters["stats"]["unique_graphs"]
    with torch._dynamo.config.patch(compiled_autograd=True):
        step = compiled(lambda x: model(x).square().sum().backward())
        for _ in range(2):
            model.zero_grad()
            step(x)
            found = {name: each.grad for name, each in model.named_parameters()}
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert counters["stats"]["unique_graphs"] - captured <= 3  # resident tensors cause no further graphs
