from __future__ import annotations

import warnings
from math import inf, nan

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F  # noqa: N812

import nnadapter as nna
from nnadapter.drivers import Reason
from nnadapter.errors import FallbackWarning, InvalidModelError
from nnadapter.torch.operators import decomposition_table

pytestmark = pytest.mark.filterwarnings("ignore:.*degrees of freedom")
NUMBERS = torch.tensor(
    [-inf, -200, -100, -5, -1, -1e-3, -1e-8, -0.0, 0, 1e-8, 1e-3, 1, 5, 100, 200, inf, nan], dtype=torch.float32
)
CORNERS = torch.tensor([-inf, -1, -0.0, 0, 1, inf, nan])
HALVES = torch.tensor([[200, 300], [-100, 8]], dtype=torch.float16)
INTS = torch.tensor([2**40 + 1, -(2**40) - 1, 3 * 16777217, -7])
INFINITE = torch.tensor([[1, inf, 2], [-inf, 3, nan], [inf, inf, 4]])
DOUBLES = torch.tensor([1e300, -1e300, inf, -inf, nan, 3], dtype=torch.float64)
INDEX, SOURCE = torch.tensor([0, 0, 1]), torch.tensor([-inf, -4, 5])
ONE, NANS = torch.tensor(3.0), torch.full((2, 2), nan)
ORDERS = (0, 0.5, 1, 2, 3, 6, -2, inf, -inf)


def reduced(values, reduce, source=SOURCE, owns=(True, False)):
    return [torch.scatter_reduce(values, 0, INDEX, source, reduce, include_self=own) for own in owns]


CASES = {
    "exponentials": lambda: [torch.expm1(NUMBERS), torch.log1p(NUMBERS), F.logsigmoid(NUMBERS[1:-1])],
    "sums of exponentials": lambda: [
        function(NUMBERS, NUMBERS.flip(0) * 0.5) for function in (torch.logaddexp, torch.logaddexp2)
    ],
    "angles": lambda: [torch.angle(NUMBERS), torch.atan2(CORNERS[:, None], CORNERS)],
    "steps": lambda: [
        torch.heaviside(NUMBERS, ONE),
        torch.xlogy(torch.zeros(7), CORNERS),
        torch.logit(CORNERS.sigmoid(), 0.1),
    ],
    "remainders": lambda: [torch.tensor([1e8, 1e10, 5, -5, -1e-8]) % torch.tensor([3, 3, inf, inf, 3]), NUMBERS % 3.0],
    "quotients": lambda: [torch.div(INTS, 3, rounding_mode=mode) for mode in ("trunc", "floor")],
    "tens": lambda: [torch.round(torch.tensor([25.0, 35, 45, 1234]), decimals=-1)],
    "float64": lambda: [
        torch.isinf(DOUBLES),
        torch.isposinf(DOUBLES),
        torch.log2(DOUBLES),
        DOUBLES.new_full((6,), 1.1),
    ],
    "diagonals": lambda: [INFINITE.trace(), INFINITE.expand(2, 3, 3).diagonal(-1, 2, 0) + 0],
    "means at indices": lambda: reduced(torch.tensor([-10, 20, 30]), "mean", torch.tensor([1, -4, 5]), [False]),
    "extremes at indices": lambda: [
        *reduced(NUMBERS[:3], "amax", owns=[True]),
        *reduced(NUMBERS[:3], "amin", -SOURCE, [False]),
    ],
    "longer sources": lambda: [
        function(torch.zeros(4, 3), 0, torch.tensor([[0, 1], [2, 3]]), torch.arange(12.0).view(4, 3) + 1)
        for function in (torch.scatter, torch.scatter_add)
    ],
    "norms": lambda: [torch.linalg.vector_norm(HALVES, order) for order in (0, 2, 3, inf)],
    "normalized": lambda: [
        F.normalize(HALVES),
        F.cosine_similarity(HALVES, HALVES.flip(0)),
        torch.dist(HALVES, -HALVES),
    ],
    "means of integers": lambda: [INTS.mean(0, dtype=torch.float32), torch.mean(INTS, dtype=torch.float64)],
    "running products": lambda: [torch.arange(1, 6, dtype=torch.int32).cumprod(0, dtype=torch.int32)],
    "variances": lambda: [torch.var(CORNERS[1:5], correction=2.5), *torch.std_mean(HALVES, 1, keepdim=True)],
    "statistics of nothing": lambda: [*torch.var_mean(CORNERS[:0])],
    "truth of nothing": lambda: [CORNERS[:0].any(), CORNERS[:0].all()],
    "products": lambda: [
        torch.addmm(NANS, *2 * [torch.ones(2, 2)], beta=0),
        torch.baddbmm(NANS[None], *2 * [torch.ones(1, 2, 2)], beta=0, alpha=2),
    ],
    "ranges": lambda: [torch.arange(2**24, 2**24 + 3, 1, dtype=torch.int32)],
}
"""Every decomposition once."""
RANK_0 = {
    "rank 0": lambda: [
        *(ONE.amax(0), ONE.amin(-1), ONE.any(0), ONE.all(-1), ONE.prod(0), ONE.topk(1)[1], torch.linalg.norm(ONE)),
        torch.scatter(ONE, 0, torch.tensor(0), ONE + 1),
    ],
}
MORE_CASES = {
    "more diagonals": lambda: [INFINITE.diagonal(1) + 0],
    "more means at indices": lambda: [
        *reduced(torch.tensor([10.0, 20, 30]), "mean", torch.tensor([1.0, 3, 5])),
        *reduced(torch.tensor([-10, 20, 30]), "mean", torch.tensor([1, -4, 5])),
        torch.scatter_reduce(ONE, 0, torch.tensor(0), ONE * 2, "mean"),
    ],
    "more extremes at indices": lambda: [*reduced(NUMBERS[:3], "amax"), *reduced(NUMBERS[:3], "amin", -SOURCE)],
    "more norms": lambda: [torch.linalg.vector_norm(HALVES, order) for order in ORDERS],
    "norms of all axes": lambda: [torch.linalg.vector_norm(HALVES.float(), order, keepdim=True) for order in ORDERS],
    "more running products": lambda: [INTS[2:].cumprod(0), HALVES.cumprod(-1), ONE.cumprod(0)],
    "more variances": lambda: [torch.var(CORNERS[1:5], correction=each) for each in (0, 1, 9)],
    "more statistics of nothing": lambda: [*torch.std_mean(CORNERS[:0, None], 0), CORNERS[:0, None].any(0)],
}
ALL_CASES = {**CASES, **RANK_0, **MORE_CASES}
COMPILED = (
    "exponentials",
    "quotients",
    "float64",
    "diagonals",
    "means at indices",
    "longer sources",
    "norms",
    "ranges",
)
"""Cases that every run compiles: the ones that the exporter's own functions handle, and some decomposed ones."""
TOLERANCES = {torch.float32: 2e-5, torch.float16: 3e-3, torch.float64: 1e-10}


def differences(names, found, expected):
    """Yield the results that differ from PyTorch's in a number or data type."""
    assert len(found) == len(expected)
    for name, one, other in zip(names, found, expected, strict=True):
        tolerance = TOLERANCES.get(other.dtype, 0)
        try:
            torch.testing.assert_close(one, other, rtol=tolerance, atol=min(tolerance, 1e-40), equal_nan=True)
        except AssertionError as error:
            yield f"{name}: {one.tolist()}, expected {other.tolist()} ({str(error).splitlines()[0]})"


def results_of(cases):
    return [result for make in cases.values() for result in make()]


def names_of_results(cases):
    return [name for name, make in cases.items() for _ in make()]


def compiled(function, device="fake_npu"):
    torch._dynamo.reset()
    return torch.compile(function, backend=nna.torch.nnadapter, options={"devices": [device], "fallback": "allow"})


@pytest.mark.parametrize(
    ("device", "cases"),
    [
        ("fake_npu", {name: CASES[name] for name in COMPILED}),
        pytest.param("fake_npu", ALL_CASES, marks=pytest.mark.sweep, id="fake_npu, all"),
        pytest.param("cpu", ALL_CASES, marks=pytest.mark.sweep, id="cpu, all"),
    ],
)
def test_numbers_and_data_types_equal_pytorch(device, cases):
    found = compiled(lambda: results_of(cases), device)()
    assert not list(differences(names_of_results(cases), found, results_of(cases)))


def test_decompositions_equal_pytorch():
    table = dict(decomposition_table())
    for name, make in CASES.items():
        expected = make()
        found = make_fx(lambda: tuple(make()), decomposition_table=table)()()  # noqa: B023  called at once
        assert not list(differences([name] * len(expected), found, expected))


@pytest.mark.sweep
def test_session_of_a_module_equals_pytorch():
    class Module(torch.nn.Module):
        def forward(self, values):
            return tuple(results_of(ALL_CASES)), values + 1

    with nna.InferenceSession(Module(), (ONE,), devices=["fake_npu"]) as session:
        result = session.run(None, {session.get_inputs()[0].name: ONE.numpy()})
    results = list(map(torch.from_numpy, result[:-1]))
    assert not list(differences(names_of_results(ALL_CASES), results, results_of(ALL_CASES)))


def test_quantized_numbers_are_clamped():
    from torch.ao.quantization.fx import _decomposed  # noqa: F401  registers the operators

    quantized = torch.ops.quantized_decomposed

    class Module(torch.nn.Module):
        def forward(self, x):
            levels = quantized.quantize_per_tensor(x, 0.2, 7, 0, 255, torch.uint8)
            return (
                quantized.quantize_per_tensor(x, 0.1, 3, -128, 127, torch.int8),
                quantized.quantize_per_tensor(x, 0.1, 3, -10, 20, torch.int8),
                quantized.dequantize_per_tensor(levels, 0.2, 7, 0, 255, torch.uint8),
            )

    x = torch.tensor([-100.0, -1.26, -0.05, 0, 0.05, 0.149, 1.7, 2.25, 100])
    with nna.InferenceSession(Module(), (x,), devices=["fake_npu"]) as session:
        result = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    names = ("all of int8", "a part of int8", "dequantized")
    assert not list(differences(names, list(map(torch.from_numpy, result)), Module()(x)))


INEXACT = {
    "erfc": torch.erfc,
    "erfcx": torch.special.erfcx,
    "log_ndtr": torch.special.log_ndtr,
    "logcumsumexp": lambda x: torch.logcumsumexp(x, 0),
}


def test_inexactly_exported_functions_run_in_pytorch():
    def function(x):
        return [each(x) for each in INEXACT.values()]

    values = torch.tensor([-200.0, 3.5, 5.0, 8.3, 12.0])
    run = compiled(function)
    assert not list(differences(INEXACT, run(values), function(values)))
    stayed = [row.operator for row in nna.torch.report(run).graphs[0].fallback_operators]
    assert {"aten.erfc.default", "aten.special_erfcx.default", "aten.logcumsumexp.default"} <= set(stayed)


def test_inexactly_exported_module_is_refused():
    class Module(torch.nn.Module):
        def forward(self, x):
            return torch.logdet(x)

    with pytest.raises(InvalidModelError, match="overflows with the determinant"):
        nna.InferenceSession(Module(), (torch.eye(3),), devices=["fake_npu"])


def test_scalar_reductions_and_determinants_run_without_warnings():
    def function(x, matrix):
        return [*RANK_0["rank 0"](), x.squeeze(0).amax(0), torch.linalg.det(matrix)]

    torch._dynamo.reset()
    run = torch.compile(function, backend=nna.torch.nnadapter, options={"devices": ["fake_npu"]})
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        result = run(ONE, torch.tensor([[1.0, 2], [3, 5]]))
    torch.testing.assert_close(result, function(ONE, torch.tensor([[1.0, 2], [3, 5]])))
    assert nna.torch.report(run).graphs[0].fallback_operators == ()


def test_strides_equal_pytorch():
    def function(x, row):
        padded = F.pad(row, (1, 2))
        (gradient,) = torch.autograd.grad(padded, row, torch.ones_like(padded))
        return [*torch.unsafe_chunk(x, 5, 1), gradient]

    arguments = torch.randn(5, 5, 5), torch.randn(1, 3, requires_grad=True)
    found, expected = compiled(function)(*arguments), function(*arguments)
    assert [each.stride() for each in found] == [each.stride() for each in expected]


@pytest.mark.parametrize("is_training", [True, False])
def test_saved_batch_normalization_statistics_have_the_type_of_weights(is_training):
    def function(x, mean, variance):
        return torch.native_batch_norm(x, None, None, mean, variance, is_training, 0.1, 1e-5)

    x = torch.randn(4, 3, 2, dtype=torch.float16)
    for dtype in (torch.float16, torch.float32):
        statistics = torch.zeros(3, dtype=dtype), torch.ones(3, dtype=dtype)
        run = compiled(function)
        result = run(x, *(statistic.clone() for statistic in statistics))
        assert "driver_error" not in {row.reason for row in nna.torch.report(run).graphs[0].fallback_operators}
        expected = function(x, *(statistic.clone() for statistic in statistics))
        torch.testing.assert_close(result, expected, rtol=1e-2, atol=1e-2)


def test_mutating_custom_operator_is_reported_by_name():
    @torch.library.custom_op("nnadapter_tests::double", mutates_args={"x"})
    def double(x: torch.Tensor) -> None:
        x.mul_(2)

    def function(x):
        y = x + 1
        double(y)
        return y * 3

    run = compiled(function)
    torch.testing.assert_close(run(torch.ones(2)), torch.full((2,), 12.0))
    (row,) = nna.torch.report(run).graphs[0].fallback_operators
    assert (row.operator, row.reason) == ("nnadapter_tests.double.default", Reason.UNSUPPORTED_OPERATION)
    assert "mutates its inputs" in row.detail
