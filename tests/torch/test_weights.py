from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

import nnadapter as nna


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 3), nn.BatchNorm1d(3)

    def forward(self, x):
        return self.norm(self.linear(x)).relu() + self.linear(x)


def compiled(model):
    return torch.compile(model, backend=nna.torch.nnadapter, options={"devices": ["fake_npu"]})


def assert_same(run, model, x):
    with torch.no_grad():
        torch.testing.assert_close(run(x), model(x), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad])
def test_fused_optimizer_steps_are_detected(kind):
    model, x = Net().eval(), torch.randn(2, 4)
    run, optimizer = compiled(model), kind(model.parameters(), lr=0.1, fused=True)
    for _ in range(6):
        assert_same(run, model, x)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    assert nna.torch.report(run).graphs[0].unfrozen_weights == 4


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # from PyTorch when it compiles a step
@pytest.mark.parametrize("fused", [False, True])
def test_compiled_steps_are_detected(fused):
    model, x = Net().eval(), torch.randn(2, 4)
    run, optimizer = compiled(model), torch.optim.AdamW(model.parameters(), lr=0.1, fused=fused)
    step = torch.compile(optimizer.step, backend="aot_eager")
    for _ in range(3):
        assert_same(run, model, x)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        step()


def test_steps_of_other_models_change_nothing():
    model, other, x = Net().eval(), nn.Linear(2, 2), torch.randn(2, 4)
    run, optimizer = compiled(model), torch.optim.SGD(other.parameters(), lr=0.1, fused=True)
    for _ in range(6):
        assert_same(run, model, x)
        other(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert nna.torch.report(run).graphs[0].unfrozen_weights == 0


def test_changed_running_statistics_are_detected():
    model, x = Net().eval(), torch.randn(2, 4)
    run = compiled(model)
    for _ in range(6):
        assert_same(run, model, x)
        model.train()(torch.randn(16, 4) * 5)
        model.eval()
    assert nna.torch.report(run).graphs[0].unfrozen_weights == 2


def test_modules_of_one_class_have_separate_constants():
    models, x = [Net().eval() for _ in range(3)], torch.randn(2, 4)
    runs = [compiled(model) for model in models]
    for _ in range(5):
        for run, model in zip(runs, models, strict=True):
            assert_same(run, model, x)
    for run in runs:
        (graph,) = nna.torch.report(run).graphs
        assert graph.unfrozen_weights == 0 and len(graph.sessions[0].input_shapes) == 1


def test_many_modules_of_one_class():
    models, x = [Net().eval() for _ in range(12)], torch.randn(2, 4)
    runs = [compiled(model) for model in models]
    for _ in range(2):
        for run, model in zip(runs, models, strict=True):
            assert_same(run, model, x)
    assert len(nna.torch.report(runs[0]).graphs[0].sessions[0].input_shapes) == 1


def test_weights_are_freed_with_their_model():
    x = torch.randn(2, 4)
    for _ in range(3):
        model = Net().eval()
        run = compiled(model)
        assert_same(run, model, x)
        weight = weakref.ref(model.linear.weight)
        assert len(nna.torch.report(run).graphs) == 1
        del model, run
        gc.collect()
        assert weight() is None


def through_data(model):
    model.linear.weight.data.add_(1)


def through_numpy(model):
    model.linear.weight.detach().numpy()[:] *= -1


def through_a_mask(model):
    model.linear.weight.data.mul_(torch.rand(3, 4) > 0.5)


def through_one_element(model):
    model.linear.bias.data[1] = -100


def through_another_tensor(model):
    if not hasattr(model, "flat"):
        model.flat = torch.randn(12)
        model.linear.weight.data = model.flat.view(3, 4)
    model.flat.add_(1)


CHANGES = (through_data, through_numpy, through_a_mask, through_one_element, through_another_tensor)


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_untracked_changes_are_detected(change):
    model, x = Net().eval(), torch.randn(2, 4)
    run = compiled(model)
    for _ in range(6):
        assert_same(run, model, x)
        change(model)
    assert_same(run, model, x)


def test_large_tensors_are_sampled():
    from nnadapter.torch.program import samples_of

    tensors = [nn.Parameter(torch.randn(size, 100)) for size in (1, 2, 50)] + [torch.randn(77), torch.zeros(())]
    samples = samples_of(tensors)
    assert samples.hold() and len(samples.word_positions) < 500
    tensors[2].data.neg_()
    tensors[3][76] = 5
    assert not samples.hold() and samples.changed() == [2, 3]
    assert samples_of([]).hold()


@pytest.mark.parametrize(("size", "dtype"), [(4096, torch.float32), (1000, torch.float64), (7, torch.bfloat16)])
def test_small_parameters_are_compared_entirely(size, dtype):
    from nnadapter.torch.program import samples_of

    weight = nn.Parameter(torch.zeros(size, dtype=dtype))
    for place in {0, size // 3, size - 2, size - 1}:
        samples = samples_of([weight])
        assert samples.hold()
        weight.data[place] += 1
        assert samples.changed() == [0]


def test_last_bytes_of_a_buffer_are_compared():
    from nnadapter.torch.program import samples_of

    mask = torch.zeros(10, dtype=torch.bool)
    samples = samples_of([mask])
    mask.numpy()[9] = True
    assert not samples.hold()
