"""Table of decompositions that apply before PyTorch's exporter writes ONNX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions
from torch._inductor import inductor_prims
from torch.ops import aten

from nnadapter.torch.decompositions.elementwise import (
    OF_DOUBLES,
    OF_ELEMENTS,
    OF_EXTREMES,
    OF_PRODUCTS,
    OF_REDUCTIONS,
    divided,
    floor_divided,
    multiplied_and_added,
    of_first_match,
    remainder,
    round_decimals,
    sign,
)
from nnadapter.torch.decompositions.indexing import NEAREST, OF_INDICES, OF_SCATTERING, copy, diagonal_scatter
from nnadapter.torch.decompositions.layers import (
    adaptive_average_pool,
    adaptive_average_pool_backward,
    adaptive_average_volume_pool_backward,
    adaptive_max_pool_backward,
    attention,
    attention_backward,
    attention_of_any_mask,
    average_pool_backward,
    batch_norm,
    batch_norm_functional,
    batch_norm_without_statistics,
    convolution_backward,
    encoder_layer,
    lstm,
    max_pool_with_indices_backward,
    multi_head_attention,
    native_dropout,
    weight_norm_backward,
)

Decomposition = Callable[..., Any]

_OF_PYTORCH = get_decompositions(
    [aten.nll_loss_forward.default, aten.nll_loss2d_forward.default, aten.hardtanh_backward.default]
)
"""PyTorch's decompositions where its exporter is wrong: divisors of loss gradients, and gradients at bounds."""


def _merged(*tables: Mapping[torch._ops.OpOverload, Decomposition]) -> dict[torch._ops.OpOverload, Decomposition]:
    operators = dict.fromkeys(operator for table in tables for operator in table)
    overload_decompositions = {
        overload: [table[overload] for table in tables if overload in table] for overload in operators
    }
    return {
        overload: several[0] if len(several) == 1 else of_first_match(*several)
        for overload, several in overload_decompositions.items()
    }


DECOMPOSITIONS: Mapping[torch._ops.OpOverload, Decomposition] = {
    **_merged(
        OF_PRODUCTS,
        OF_DOUBLES,
        OF_ELEMENTS,
        OF_REDUCTIONS,
        OF_SCATTERING,
        OF_INDICES,
        OF_EXTREMES,
        NEAREST,
        _OF_PYTORCH,
    ),
    aten.diagonal_scatter.default: diagonal_scatter,
    aten.convolution_backward.default: convolution_backward,
    aten.max_pool2d_with_indices_backward.default: max_pool_with_indices_backward,
    aten.max_pool3d_with_indices_backward.default: max_pool_with_indices_backward,
    aten.adaptive_max_pool2d_backward.default: adaptive_max_pool_backward,
    aten.avg_pool2d_backward.default: average_pool_backward,
    aten.avg_pool3d_backward.default: average_pool_backward,
    aten._adaptive_avg_pool2d.default: adaptive_average_pool,
    aten._adaptive_avg_pool3d.default: adaptive_average_pool,
    aten._adaptive_avg_pool2d_backward.default: adaptive_average_pool_backward,
    aten._adaptive_avg_pool3d_backward.default: adaptive_average_volume_pool_backward,
    aten.native_batch_norm.default: batch_norm,
    aten._native_batch_norm_legit.default: batch_norm,
    aten._native_batch_norm_legit_functional.default: batch_norm_functional,
    aten._native_batch_norm_legit.no_stats: batch_norm_without_statistics,
    aten._weight_norm_interface_backward.default: weight_norm_backward,
    aten.copy.default: copy,
    aten.lstm.input: lstm,
    aten.native_dropout.default: native_dropout,
    aten.sign.default: sign,
    aten.div.Tensor_mode: divided,
    aten.div.Scalar_mode: divided,
    aten.floor_divide.default: floor_divided,
    **dict.fromkeys((aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor), remainder),
    aten.round.decimals: round_decimals,
    inductor_prims.fma: multiplied_and_added,  # steps of compiled optimizers
    aten.scaled_dot_product_attention.default: attention_of_any_mask,
    aten._scaled_dot_product_flash_attention_for_cpu.default: attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: attention_backward,
    aten._native_multi_head_attention.default: multi_head_attention,
    aten._transformer_encoder_layer_fwd.default: encoder_layer,
}
"""Operators without an ONNX form, or with a wrong one."""


def decompositions() -> dict[torch._ops.OpOverload, Decomposition]:
    """Return PyTorch's decompositions for core ATen, overridden by ours."""
    return {**core_aten_decompositions(), **DECOMPOSITIONS}
