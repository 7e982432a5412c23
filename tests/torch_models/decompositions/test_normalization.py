from __future__ import annotations

import pytest
import torch

from nnadapter.torch.decompositions import DECOMPOSITIONS

ATEN = torch.ops.aten


@pytest.mark.parametrize("shape", [(7, 3), (2, 3, 5), (2, 3, 4, 5), (2, 3, 2, 3, 4)])
@pytest.mark.parametrize("affine", [True, False])
def test_batch_normalization_in_training(shape, affine):
    values = torch.randn(*shape) + 3
    weight, bias = (torch.randn(3), torch.randn(3)) if affine else (None, None)
    arguments = (values, weight, bias, torch.randn(3), torch.rand(3), True, 0.2, 1e-3)
    operator = ATEN._native_batch_norm_legit_functional.default
    for found, expected in zip(DECOMPOSITIONS[operator](*arguments), operator(*arguments), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_batch_normalization_of_a_frozen_layer():
    arguments = (torch.randn(2, 3, 4), torch.randn(3), None, torch.randn(3), torch.rand(3), False, 0.2, 1e-3)
    operator = ATEN._native_batch_norm_legit_functional.default
    for found, expected in zip(DECOMPOSITIONS[operator](*arguments), operator(*arguments), strict=True):
        torch.testing.assert_close(found, expected)


def test_batch_normalization_without_statistics():
    arguments = (torch.randn(2, 3, 4), torch.randn(3), torch.randn(3), True, 0.2, 1e-3)
    operator = ATEN._native_batch_norm_legit.no_stats
    for found, expected in zip(DECOMPOSITIONS[operator](*arguments), operator(*arguments), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("shape", "dim"), [((4, 3), 0), ((4, 3, 2), 0), ((4, 3), 1), ((4, 2, 3), 2)])
def test_gradients_of_a_normalized_weight(shape, dim):
    direction = torch.randn(*shape)
    length = torch.randn(*(size if axis == dim else 1 for axis, size in enumerate(shape)))
    _, norms = ATEN._weight_norm_interface(direction, length, dim)
    operator = ATEN._weight_norm_interface_backward.default
    arguments = (torch.randn(*shape), direction, length, norms, dim)
    for found, expected in zip(DECOMPOSITIONS[operator](*arguments), operator(*arguments), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("chance", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("train", [True, False, None])
def test_dropout_equals_pytorch(chance, train):
    values, operator, results = torch.randn(40, 50), ATEN.native_dropout.default, []
    for dropout in (DECOMPOSITIONS[operator], operator):
        torch.manual_seed(5)
        results.append(dropout(values, chance, train))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)
