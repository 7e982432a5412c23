"""The kernel table: what the device's instructions can name. A family is imported when one of its kernels is named."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from nnadapter.drivers.fake_npu.kernels.kernel import NumpyKernel

FAMILIES: Mapping[str, str] = {
    "attention": "attention rotary_embedding",
    "convolution": "convolution pointwise_convolution",
    "depthwise": "depthwise_convolution",
    "elementwise": "add and bitwise_and bitwise_or bitwise_xor cast divide equal float_modulo floor_divide greater "
    "greater_equal less less_equal maximum minimum modulo multiply not_equal or power prelu round_to_half shift_left "
    "shift_right subtract sum unary where xor",
    "gating": "swiglu",
    "losses": "negative_log_likelihood",
    "matrix": "determinant einsum fully_connected matmul triangle unpack_weight",
    "movement": "bit_cast concat copy diagonal expand gather gather_elements pad range slice split tile transpose",
    "normalization": "instance_normalization layer_normalization local_response_normalization log_softmax "
    "lp_normalization mean_variance_normalization rms_normalization softmax",
    "pooling": "average_pool max_pool",
    "quantized_elements": "center dequantize look_up quantize requantize",
    "recurrent": "gru lstm rnn",
    "reduction": "arg_max arg_min hardmax reduce_max reduce_mean reduce_min reduce_prod reduce_sum running_product "
    "running_sum top_k",
    "regions": "max_roi_pool roi_align",
    "resize": "resize_linear resize_nearest",
    "sampling": "affine_grid deformable_convolution grid_sample",
    "scattering": "gather_nd one_hot reverse_sequence scatter_elements scatter_nd tensor_scatter",
    "spectral": "fourier_transform short_time_fourier_transform",
    "states": "causal_convolution linear_attention",
    "transposed_convolution": "transposed_convolution",
    "volumes": "columns_to_image transposed_volume_convolution volume_convolution",
    "window_pooling": "average_pool_axes max_pool_axes max_pool_with_indices max_unpool p_norm_pool",
}
"""Which kernels each module has, in its `KERNELS`."""
_FAMILY_OF = {name: family for family, names in FAMILIES.items() for name in names.split()}


class _Kernels(dict[str, NumpyKernel]):
    def __missing__(self, name: str) -> NumpyKernel:
        self.update(import_module(f"{__name__}.{_FAMILY_OF[name]}").KERNELS)
        return self[name]


KERNELS = _Kernels()
"""A kernel by its name."""

__all__ = ["FAMILIES", "KERNELS", "NumpyKernel"]
