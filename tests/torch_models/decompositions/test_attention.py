from __future__ import annotations

import pytest
import torch

from nnadapter.torch.decompositions import DECOMPOSITIONS

FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
CASES = {
    "plain": {},
    "scaled": {"scale": 0.3},
    "causal": {"is_causal": True},
    "shared heads": {"heads": 2},
    "added mask": {"attn_mask": torch.randn(6, 7)},
    "hiding mask": {"attn_mask": torch.zeros(2, 1, 6, 7).masked_fill(torch.arange(7) > 4, float("-inf"))},
}


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_attention_and_its_gradient(options):
    options = {**options}
    heads = options.pop("heads", 4)
    query, key, value = (torch.randn(2, count, length, 8) for count, length in ((4, 6), (heads, 7), (heads, 7)))
    expected = FORWARD(query, key, value, **options)
    for found, wanted in zip(DECOMPOSITIONS[FORWARD](query, key, value, **options), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    options = {"is_causal": False, **options}
    arguments = (torch.randn_like(expected[0]), query, key, value, *expected, 0.0, options.pop("is_causal"))
    for found, wanted in zip(
        DECOMPOSITIONS[BACKWARD](*arguments, **options), BACKWARD(*arguments, **options), strict=True
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
