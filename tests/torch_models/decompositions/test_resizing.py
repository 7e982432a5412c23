"""Resizing with scales derived from rounded sizes, compared with PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import nnadapter as nna
from nnadapter.errors import InvalidModelError

SHAPES = ((16, 24), (17, 23), (11, 29))


class Resized(torch.nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, x):
        return torch.nn.functional.interpolate(x, **self.options)


def program_of(module):
    height, width = (torch.export.Dim(name, min=4, max=99) for name in ("height", "width"))
    return torch.export.export(module, (torch.randn(1, 2, 16, 24),), dynamic_shapes=({2: height, 3: width},))


@pytest.mark.sweep
@pytest.mark.parametrize("scale", [2.0, 0.5, (0.6, 3.0)])
def test_nearest_elements_equal_pytorch(scale):
    module = Resized(mode="nearest", scale_factor=scale)
    with nna.InferenceSession(program_of(module), devices="cpu") as session:
        for height, width in SHAPES:
            x = torch.randn(1, 2, height, width)
            np.testing.assert_array_equal(session.run(None, {"x": x.numpy()})[0], module(x).numpy())


@pytest.mark.sweep
@pytest.mark.parametrize("mode", ["nearest", "bicubic"])
def test_scale_that_may_keep_a_dynamic_length_is_refused(mode):
    with pytest.raises(InvalidModelError, match="may keep a length"):
        nna.InferenceSession(program_of(Resized(mode=mode, scale_factor=1.05)), devices="cpu")


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1.05, (1.05, 1.3), (2.3, 0.7)])
def test_unchanged_and_doubled_lengths(scale):
    module, x = Resized(mode="nearest", scale_factor=scale), torch.randn(1, 2, 2, 9)
    with nna.InferenceSession(torch.export.export(module, (x,)), devices="cpu") as session:
        np.testing.assert_array_equal(session.run(None, {"x": x.numpy()})[0], module(x).numpy())


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"scale_factor": 0.7},
        {"scale_factor": 0.5},
        {"size": (9, 31), "align_corners": True},
    ],
)
@torch.no_grad()
def test_unsupported_antialiasing_runs_in_pytorch(options):
    module = Resized(mode="bilinear", antialias=True, **options)
    with pytest.raises(InvalidModelError, match="antialiasing"):
        nna.InferenceSession(program_of(module), devices="cpu")
    torch._dynamo.reset()
    run = torch.compile(module, backend="nnadapter", options={"devices": ["cpu"]}, dynamic=True)
    for height, width in SHAPES[:2]:
        x = torch.randn(1, 2, height, width)
        torch.testing.assert_close(run(x), module(x))
    (graph,) = nna.torch.report(run).graphs
    assert any("antialiasing" in facts.detail for facts in graph.fallback_operators)


@torch.no_grad()
def test_antialiasing_with_fixed_output_size_is_delegated():
    module = Resized(mode="bicubic", antialias=True, size=(9, 31))
    torch._dynamo.reset()
    run = torch.compile(module, backend="nnadapter", options={"devices": ["cpu"]})
    torch.testing.assert_close(run(x := torch.randn(1, 2, 16, 24)), module(x), rtol=1e-5, atol=1e-5)
    (graph,) = nna.torch.report(run).graphs
    assert graph.delegated == graph.operators
