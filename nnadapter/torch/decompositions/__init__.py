"""Decompositions of ATen operators without an ONNX form, mostly gradients, applied before PyTorch's exporter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._decomp import get_decompositions
from torch._inductor import inductor_prims
from torch.ops import aten

from nnadapter.torch.decompositions import elementwise, indexing, layers

Decomposition = Callable[..., Any]

_OF_PYTORCH = get_decompositions(
    [aten.nll_loss_forward.default, aten.nll_loss2d_forward.default, aten.hardtanh_backward.default]
)
"""PyTorch's decompositions of operators. Its exporter errs in divisors of loss gradients and in gradients at bounds."""


def _merged(*tables: Mapping[torch._ops.OpOverload, Decomposition]) -> dict[torch._ops.OpOverload, Decomposition]:
    operators = dict.fromkeys(operator for table in tables for operator in table)
    overload_decompositions = {
        overload: [table[overload] for table in tables if overload in table] for overload in operators
    }
    return {
        overload: several[0] if len(several) == 1 else elementwise.of_first_match(*several)
        for overload, several in overload_decompositions.items()
    }


DECOMPOSITIONS: Mapping[torch._ops.OpOverload, Decomposition] = {
    **_merged(
        elementwise.OF_PRODUCTS,
        elementwise.OF_DOUBLES,
        elementwise.OF_ELEMENTS,
        elementwise.OF_REDUCTIONS,
        indexing.OF_SCATTERING,
        indexing.OF_INDICES,
        elementwise.OF_EXTREMES,
        indexing.NEAREST,
        _OF_PYTORCH,
    ),
    aten.diagonal_scatter.default: indexing.diagonal_scatter,
    aten.convolution_backward.default: layers.convolution_backward,
    aten.max_pool2d_with_indices_backward.default: layers.max_pool_with_indices_backward,
    aten.max_pool3d_with_indices_backward.default: layers.max_pool_with_indices_backward,
    aten.adaptive_max_pool2d_backward.default: layers.adaptive_max_pool_backward,
    aten.avg_pool2d_backward.default: layers.average_pool_backward,
    aten.avg_pool3d_backward.default: layers.average_pool_backward,
    aten._adaptive_avg_pool2d.default: layers.adaptive_average_pool,
    aten._adaptive_avg_pool3d.default: layers.adaptive_average_pool,
    aten._adaptive_avg_pool2d_backward.default: layers.adaptive_average_pool_backward,
    aten._adaptive_avg_pool3d_backward.default: layers.adaptive_average_volume_pool_backward,
    aten.native_batch_norm.default: layers.batch_norm,
    aten._native_batch_norm_legit.default: layers.batch_norm,
    aten._native_batch_norm_legit_functional.default: layers.batch_norm_functional,
    aten._native_batch_norm_legit.no_stats: layers.batch_norm_without_statistics,
    aten._weight_norm_interface_backward.default: layers.weight_norm_backward,
    aten.copy.default: indexing.copy,
    aten.lstm.input: layers.lstm,
    aten.native_dropout.default: layers.native_dropout,
    aten.sign.default: elementwise.sign,
    aten.div.Tensor_mode: elementwise.divided,
    aten.div.Scalar_mode: elementwise.divided,
    aten.floor_divide.default: elementwise.floor_divided,
    **dict.fromkeys(
        (aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor), elementwise.remainder
    ),
    aten.round.decimals: elementwise.round_decimals,
    inductor_prims.fma: elementwise.multiplied_and_added,  # steps of compiled optimizers
    aten.scaled_dot_product_attention.default: layers.attention_of_any_mask,
    aten._scaled_dot_product_flash_attention_for_cpu.default: layers.attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: layers.attention_backward,
    aten._native_multi_head_attention.default: layers.multi_head_attention,
    aten._transformer_encoder_layer_fwd.default: layers.encoder_layer,
}
"""Decompositions of ATen operators that have no ONNX form, or a wrong one."""
