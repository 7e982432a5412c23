"""Kernel table; a module is imported when one of its kernels is first used."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from nnadapter.drivers.fake_npu.kernels.kernel import NumpyKernel

FAMILIES: Mapping[str, str] = {
    "attention": "attention causal_convolution linear_attention rotary_embedding",
    "convolution": "columns_to_image convolution depthwise_convolution determinant einsum fully_connected matmul "
    "pointwise_convolution transposed_convolution transposed_volume_convolution triangle unpack_weight "
    "volume_convolution",
    "elementwise": "add and bitwise_and bitwise_or bitwise_xor cast center dequantize divide equal float_modulo "
    "floor_divide greater greater_equal less less_equal look_up maximum minimum modulo multiply not_equal or power "
    "prelu quantize requantize round_to_half shift_left shift_right subtract sum swiglu unary where xor",
    "movement": "bit_cast concat copy diagonal expand gather gather_elements gather_nd one_hot pad range "
    "reverse_sequence scatter_elements scatter_nd slice split tensor_scatter tile transpose",
    "normalization": "arg_max arg_min fourier_transform hardmax instance_normalization layer_normalization "
    "local_response_normalization log_softmax lp_normalization mean_variance_normalization negative_log_likelihood "
    "reduce_max reduce_mean reduce_min reduce_prod reduce_sum rms_normalization running_product running_sum "
    "short_time_fourier_transform softmax top_k",
    "recurrent": "gru lstm rnn",
    "sampling": "affine_grid deformable_convolution grid_sample max_roi_pool resize_linear resize_nearest roi_align",
    "windows": "average_pool average_pool_axes max_pool max_pool_axes max_pool_with_indices max_unpool p_norm_pool",
}
_FAMILY_OF = {name: family for family, names in FAMILIES.items() for name in names.split()}


class _Kernels(dict[str, NumpyKernel]):
    def __missing__(self, name: str) -> NumpyKernel:
        self.update(import_module(f"{__name__}.{_FAMILY_OF[name]}").KERNELS)
        return self[name]


KERNELS = _Kernels()

__all__ = ["FAMILIES", "KERNELS", "NumpyKernel"]
