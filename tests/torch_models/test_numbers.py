"""Constants of programs, compiled and exported, in float64 and near 0 and 1, compared with PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import nnadapter as nna
from nnadapter.errors import InvalidModelError

F = torch.nn.functional
WAYS = ["compiled", "exported"]


class Doubles(torch.nn.Module):
    """Operators of every kind that has a numeric argument."""

    def forward(self, x):
        return (
            x * 1.1 + 0.3,
            1.1 - x / 0.7,
            torch.add(x, x, alpha=0.1),
            torch.sub(x, x, alpha=0.1),
            x.clamp(-0.1, 0.3),
            1.1**x,
            torch.where(x > 0.1, x, 0.3),
            x.masked_fill(x > 0, 0.1),
            torch.full_like(x, 0.3) + torch.full((3,), 0.7, dtype=x.dtype) * torch.tensor(0.9, dtype=x.dtype),
            torch.addcmul(x, x, x, value=0.1),
            torch.addmm(x, x, x, beta=0.1, alpha=0.3),
            F.leaky_relu(x, 0.1),
            F.elu(x, 0.3),
            F.softplus(x, beta=1.1),
            F.hardtanh(x, -0.1, 0.3),
            torch.add(x, 1.1, alpha=3),
            torch.linalg.vector_norm(x, 3.3),
        )


class Small(torch.nn.Module):
    """Arithmetic with numbers that differ little from 0 and 1."""

    def forward(self, x):
        return x / (x.sum() + 1e-10), torch.log(x + 1e-12), (x + 1e6) * 0.999995, (x + 1e6) / 0.999995, x - 1e-9


def results_of(module, x, way, device="cpu"):
    """Return a module's results, computed by a session."""
    if way == "compiled":
        torch._dynamo.reset()
        with torch.no_grad():
            return torch.compile(module, backend="nnadapter", options={"devices": [device]})(x)
    with nna.InferenceSession(torch.export.export(module, (x,)), devices=device) as session:
        return [
            torch.from_numpy(np.array(each)) for each in session.run(None, {session.get_inputs()[0].name: x.numpy()})
        ]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_constants_in_float64_models_are_not_rounded(way):
    x = torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for position, (got, expected) in enumerate(zip(results_of(Doubles(), x, way), Doubles()(x), strict=True)):
        torch.testing.assert_close(got, expected, rtol=1e-13, atol=1e-13, msg=lambda text, at=position: f"{at}: {text}")


@pytest.mark.parametrize("way", WAYS)
def test_tiny_numbers_are_not_dropped(way):
    x = torch.zeros(3)
    for got, expected in zip(results_of(Small(), x, way), Small()(x), strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("way", WAYS)
def test_numbers_computed_from_sizes_equal_pytorch(way, dtype):
    class Sized(torch.nn.Module):
        def forward(self, x):
            """Compute results from values [H, W] with integers, fractions, and floor division of negative numbers."""
            rows, columns = x.shape
            return (
                x > columns / 3,
                rows / 2 <= x,
                x == columns / 5,
                x + rows / 7,
                x + (columns - 9) // 2,
                (x * 2)[:, : -(-columns // 2)],
                torch.full((columns,), rows / 7) + x[0],
                torch.full_like(x, columns),
                x.clamp(max=columns + 2),
            )

    size = dict.fromkeys((0, 1), torch.export.Dim.DYNAMIC)
    sizes = ((3, 5), (4, 8), (2, 13))
    if way == "exported":
        with nna.InferenceSession(
            torch.export.export(Sized(), (torch.ones(3, 5, dtype=dtype),), dynamic_shapes=(size,)), devices="cpu"
        ) as session:
            outputs = [session.run(None, {"x": (torch.ones(shape) * 2).to(dtype).numpy()}) for shape in sizes]
    else:
        torch._dynamo.reset()
        run = torch.compile(Sized(), backend="nnadapter", options={"devices": ["cpu"]}, dynamic=True)
        with torch.no_grad():
            outputs = [[each.numpy() for each in run((torch.ones(shape) * 2).to(dtype))] for shape in sizes]
    for results, shape in zip(outputs, sizes, strict=True):
        for got, expected in zip(results, Sized()((torch.ones(shape) * 2).to(dtype)), strict=True):
            np.testing.assert_allclose(got, expected.numpy(), rtol=1e-6, strict=True)


@pytest.mark.parametrize("way", WAYS)
def test_lengths_of_generated_sequences_equal_pytorch(way):
    class Sequences(torch.nn.Module):
        def forward(self, x):
            reals = torch.linspace(0.1, 0.9, 7, dtype=torch.float64)
            return x[0] + torch.arange(0, 1.1, 0.1), x[0, 0] + reals, x[0] * torch.hamming_window(6)

    for got, expected in zip(results_of(Sequences(), x := torch.ones(1, 1), way), Sequences()(x), strict=True):
        torch.testing.assert_close(got, expected)


def test_rewrite_rules_exist_in_the_tested_version():
    from onnxscript.rewriter.rules import common

    from nnadapter.torch.models import RULES

    assert [name for name in RULES if not hasattr(common, name)] == []


def test_smoothed_labels_are_refused():
    class Loss(torch.nn.Module):
        def forward(self, x):
            return F.cross_entropy(x, torch.tensor([0, 3, 1]), label_smoothing=0.1)

    program = torch.export.export(Loss(), (torch.randn(3, 5),))
    with pytest.raises(InvalidModelError, match="smoothed labels"):
        nna.InferenceSession(program, devices="cpu")


def test_multiplication_by_one_is_dropped():
    program = torch.export.export(torch.nn.ELU(), (torch.ones(3),))
    with nna.InferenceSession(program, devices="cpu") as session:
        assert [node.op_type for node in session.report().nodes] == ["Elu"]


def test_sizes_are_computed_in_float64():
    class Scaled(torch.nn.Module):
        def forward(self, x):
            """Resize 30 elements to 20, not 21: 30 * 0.7 is less than 21 in floating point."""
            return F.interpolate(x, scale_factor=0.7, mode="nearest-exact"), x * (x.shape[2] / 7)

    size = torch.export.Dim("size", min=4, max=99)
    program = torch.export.export(Scaled(), (torch.randn(1, 2, 16),), dynamic_shapes=({2: size},))
    with nna.InferenceSession(program, devices="cpu") as session:
        for length in (30, 17, 11):
            x = torch.randn(1, 2, length)
            for got, expected in zip(session.run(None, {"x": x.numpy()}), Scaled()(x), strict=True):
                np.testing.assert_allclose(got, expected.numpy(), rtol=1e-6)
