"""Exported gradients on fake_npu, compared with eager PyTorch: no node runs on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.torch.exported import compiled, gradients, refused

IMAGE = (2, 4, 9, 8)
MODULES = {
    "convolution": (nn.Conv2d(4, 6, 3, 2, 1, groups=2), IMAGE),
    "transposed convolution": (nn.ConvTranspose2d(4, 6, 3, 2, 1, 1), IMAGE),
    "convolution of sequences": (nn.Conv1d(4, 6, 3, dilation=2), (2, 4, 9)),
    "convolution of volumes": (nn.Conv3d(2, 3, 2), (2, 2, 4, 3, 5)),
    "batch normalization": (nn.BatchNorm2d(4), IMAGE),
    "layer normalization": (nn.LayerNorm(8), IMAGE),
    "group normalization": (nn.GroupNorm(2, 4), IMAGE),
    "largest": (nn.MaxPool2d(3, 2, 1), IMAGE),
    "averages": (nn.AvgPool2d(3, 2, 1, count_include_pad=False), IMAGE),
    "averages of stretches": (nn.AdaptiveAvgPool2d((4, 3)), IMAGE),
    "larger by lines": (nn.Upsample(scale_factor=2, mode="bilinear"), IMAGE),
    "gelu": (nn.GELU(), IMAGE),
    "silu": (nn.SiLU(), IMAGE),
    "attention": (lambda x: functional.scaled_dot_product_attention(x, x, x, is_causal=True), IMAGE),
}
LIKE_OTHERS = {
    *("silu", "averages of stretches", "group normalization", "larger by lines"),
    *("convolution", "transposed convolution", "convolution of sequences", "convolution of volumes"),
}
"""Consist of the same operators as other cases; test_convolution.py covers all convolutions."""


def check(function, leaves, *arguments):
    on_device, sessions = compiled(function)
    expected = gradients(function, leaves, arguments)
    for found, wanted in zip(gradients(on_device, leaves, arguments), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert len(sessions) == 2
    assert refused(sessions) == set()


@pytest.mark.sweep
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name, marks=pytest.mark.sweep if name in LIKE_OTHERS else ())
        for name, case in MODULES.items()
    ],
)
def test_gradients_of_modules(case):
    module, shape = case
    values = torch.randn(*shape, requires_grad=True)
    check(module, [values, *getattr(module, "parameters", list)()], values)


def test_gradients_of_an_embedding():
    table = nn.Embedding(10, 4, padding_idx=0)
    check(table, [*table.parameters()], torch.tensor([[1, 2, 0], [2, 2, 9]]))


@pytest.mark.sweep
def test_gradients_of_a_classification_loss():
    logits, classes = torch.randn(5, 3, requires_grad=True), torch.tensor([0, 2, -100, 1, 2])
    check(lambda x, y: functional.cross_entropy(x, y, label_smoothing=0.1), [logits], logits, classes)
