"""Results that are views, restored by their strides so that they share memory with their base."""

from __future__ import annotations

import pickle

import pytest
import torch

import nnadapter as nna


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def changed_between(a, b):
    turned = b.mT
    a.scatter_(0, a.long() * 0, 1)
    return turned.chunk(2, -1)[-1], a.sum()


def read_as_well(a, b):
    part, turned = b[1:], a.t()
    return part, part * 2, turned, turned.exp()


def of_results(a, b):
    made = a * 2 + b
    part, halves = made[1:, ::2], made.t().split(2, 0)
    return made, part, part + 1, halves[1], halves[1].exp(), halves[0] - 1


def several_at_once(a, b):
    first, second = (a + b).unbind(-1)[:2]
    return first, second, first * second, b.unbind(0)[1]


def one_over_many(a, b):
    wide = a[:1].expand(3, -1)
    return wide, wide + 1, (b * 2)[None].transpose(0, -1)


def read_on_the_way(a, b):
    part = b[..., -2:]
    return part.exp(), part.expand(2, *part.shape), a.t()[1:]


FUNCTIONS = (read_on_the_way, changed_between, read_as_well, of_results, several_at_once, one_over_many)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "dynamic"),
    [
        *((function, None) for function in FUNCTIONS),
        *(
            pytest.param(function, fixed, marks=pytest.mark.sweep)
            for function in FUNCTIONS[2:]
            for fixed in (True, False)
        ),
        *((function, True) for function in FUNCTIONS[:2]),
        (read_on_the_way, False),
        pytest.param(FUNCTIONS[1], False, marks=pytest.mark.sweep),
    ],
)
def test_views_equal_pytorch(function, dynamic):
    run = torch.compile(function, backend=nna.torch.nnadapter, options={"devices": ["fake_npu"]}, dynamic=dynamic)
    for rows in (4, 4, 5, 7):
        a, b = torch.randn(rows, 4), torch.randn(rows, 4)
        again = a.clone()
        result, expected = run(a, b), function(again, b)
        for one, other in zip(result, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
            assert one.stride() == other.stride() and one.storage_offset() == other.storage_offset()
        shared = [
            [each.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() for each in all_]
            for all_ in (result, expected)
        ]
        assert shared[0] == shared[1]


@pytest.mark.sweep
@pytest.mark.parametrize("dynamic", [True, pytest.param(False, marks=pytest.mark.sweep)])
def test_gradients_pass_through_read_views(dynamic):
    run = torch.compile(of_results, backend=nna.torch.nnadapter, options={"devices": ["fake_npu"]}, dynamic=dynamic)
    for rows in (4, 5):
        a, b = torch.randn(rows, 4, requires_grad=True), torch.randn(rows, 4, requires_grad=True)
        found, expected = (
            torch.autograd.grad(sum(each.square().sum() for each in function(a, b)), (a, b))
            for function in (run, of_results)
        )
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@torch.library.custom_op("nnadapter_tests::as_it_lies", mutates_args=())
def as_it_lies(x: torch.Tensor) -> torch.Tensor:
    """Read memory from the first element on, as an operator that stays in PyTorch."""
    return torch.as_strided(x, (4,), (1,)).clone()


@as_it_lies.register_fake
def _(x):
    return x.new_empty(4)


BY_STRIDES = {
    "diagonal": lambda x: torch.as_strided(x.t() * 2, (3,), (5,)) + 1,
    "turned_result": lambda x: torch.as_strided(x.t().exp(), (4, 3), (3, 1)).sin(),
    "turned_by_a_view": lambda x: torch.as_strided(x.exp().t(), (4, 3), (3, 1)).sin(),
    "view_that_is_read_as_well": lambda x: torch.as_strided((y := x.exp().t()), (4, 3), (3, 1)).sin() + y.cos(),
    "beyond_the_view": lambda x: torch.as_strided((y := x.exp()[1:]), (2, 4), (4, 1), 0) * y,
    "over_many": lambda x: torch.as_strided(x[0, None].exp().expand(3, 4), (3,), (1,)) * 2,
    "copy": lambda x: torch.as_strided_copy(x.t() * 2, (3,), (5,)) + 1,
    "written": lambda x: torch.as_strided_scatter(x.t() * 2, x.diagonal() + 1, (3,), (5,)) + 1,
    "result_of_a_result": lambda x: torch.as_strided(torch.as_strided(x.t() * 2, (3, 4), (4, 1)) + 1, (2,), (5,)),
    "custom_operator": lambda x: as_it_lies(x.t().exp()) * 2,
    "custom_operator_on_a_part": lambda x: as_it_lies(y := x.exp()[:, ::2]) * y.sum(),
    "in_rows_behind": lambda x: as_it_lies(x.t().exp().cumprod(0)).view(2, 2) * 2,
}


WITHOUT_GRADIENTS = ("written", "custom_operator", "custom_operator_on_a_part", "in_rows_behind")


def each_of(functions):
    """Return one function of many inputs, so that no two functions share a computation."""
    return lambda *inputs: [function(each) for function, each in zip(functions, inputs, strict=True)]


def gradients(function, inputs):
    results = function(*inputs)
    weights = [torch.arange(result.numel()).view(result.shape) for result in results]
    total = sum((each * weight).sum() for each, weight in zip(results, weights, strict=True))
    return results, torch.autograd.grad(total, inputs)


def some(count, **options):
    return [torch.randn(3, 4, **options) for _ in range(count)]


@pytest.mark.parametrize("device", ["fake_npu", pytest.param("cpu", marks=pytest.mark.sweep)])
def test_fallback_operators_read_results_by_pytorch_strides(device):
    function, inputs = each_of([*BY_STRIDES.values()]), some(len(BY_STRIDES))
    run = torch.compile(function, backend=nna.torch.nnadapter, options={"devices": [device]})
    for name, found, expected in zip(BY_STRIDES, run(*inputs), function(*inputs), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4, msg=lambda said, name=name: f"{name}: {said}")
    (graph,) = nna.torch.report(run).graphs
    assert graph.sessions and not graph.pending_regions


class SavesTensor(torch.autograd.Function):
    """Function whose gradient reads a saved tensor by strides."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(turned := x.t().exp())
        return turned * 2

    @staticmethod
    def backward(ctx, gradient):
        return torch.as_strided(ctx.saved_tensors[0], (3, 4), (4, 1)) * gradient.t()


@pytest.mark.sweep
# raised when PyTorch captures the function
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("device", ["fake_npu", pytest.param("cpu", marks=pytest.mark.sweep)])
def test_gradients_of_functions_that_read_by_strides(device):
    functions = [SavesTensor.apply, *(BY_STRIDES[name] for name in BY_STRIDES if name not in WITHOUT_GRADIENTS)]
    function, inputs = each_of(functions), some(len(functions), requires_grad=True)
    run = torch.compile(function, backend=nna.torch.nnadapter, options={"devices": [device]})
    torch.testing.assert_close(gradients(run, inputs), gradients(function, inputs), rtol=1e-4, atol=1e-4)


def test_saved_tensor_hooks_find_memory():
    found = []

    def pack(kept):
        found.append(kept.data_ptr() != 0 and kept.untyped_storage().data_ptr() != 0)
        return pickle.dumps(kept.clone() if len(found) % 2 else kept)

    x = torch.randn(3, 4, requires_grad=True)
    run = torch.compile(
        lambda x: x.exp().sin().t().cos(), backend=nna.torch.nnadapter, options={"devices": ["fake_npu"]}
    )
    with torch.autograd.graph.saved_tensors_hooks(pack, pickle.loads):
        result = run(x)
    result.sum().backward()
    expected = -x.exp().sin().sin() * x.exp().cos() * x.exp()
    assert found and all(found)
    torch.testing.assert_close(x.grad, expected, rtol=1e-4, atol=1e-4)


def test_empty_results_have_the_strides_of_pytorch():
    functions = (lambda x: x.exp(), lambda x: x.t().exp(), lambda x: x.sum(1, keepdim=True))
    run = torch.compile(lambda x: [f(x) for f in functions], backend=nna.torch.nnadapter)
    for found, function in zip(run(torch.ones(0, 4)), functions, strict=True):
        expected = function(torch.ones(0, 4))
        assert found.shape == expected.shape and found.stride() == expected.stride()
