"""The kernel table: what the device's instructions can name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from nnadapter.drivers.fake_npu.kernels.attention import ATTENTION_KERNELS
from nnadapter.drivers.fake_npu.kernels.convolution import CONVOLUTION_KERNELS
from nnadapter.drivers.fake_npu.kernels.depthwise import DEPTHWISE_KERNELS
from nnadapter.drivers.fake_npu.kernels.elementwise import ELEMENTWISE_KERNELS
from nnadapter.drivers.fake_npu.kernels.gating import GATING_KERNELS
from nnadapter.drivers.fake_npu.kernels.kernel import NumpyKernel
from nnadapter.drivers.fake_npu.kernels.losses import LOSS_KERNELS
from nnadapter.drivers.fake_npu.kernels.matrix import MATRIX_KERNELS
from nnadapter.drivers.fake_npu.kernels.movement import MOVEMENT_KERNELS
from nnadapter.drivers.fake_npu.kernels.normalization import NORMALIZATION_KERNELS
from nnadapter.drivers.fake_npu.kernels.pooling import POOLING_KERNELS
from nnadapter.drivers.fake_npu.kernels.quantized_elements import QUANTIZED_ELEMENT_KERNELS
from nnadapter.drivers.fake_npu.kernels.recurrent import RECURRENT_KERNELS
from nnadapter.drivers.fake_npu.kernels.reduction import REDUCTION_KERNELS
from nnadapter.drivers.fake_npu.kernels.regions import REGION_KERNELS
from nnadapter.drivers.fake_npu.kernels.resize import RESIZE_KERNELS
from nnadapter.drivers.fake_npu.kernels.sampling import SAMPLING_KERNELS
from nnadapter.drivers.fake_npu.kernels.scattering import SCATTERING_KERNELS
from nnadapter.drivers.fake_npu.kernels.spectral import SPECTRAL_KERNELS
from nnadapter.drivers.fake_npu.kernels.states import STATE_KERNELS
from nnadapter.drivers.fake_npu.kernels.transposed_convolution import TRANSPOSED_CONVOLUTION_KERNELS
from nnadapter.drivers.fake_npu.kernels.volumes import VOLUME_KERNELS
from nnadapter.drivers.fake_npu.kernels.window_pooling import WINDOW_POOLING_KERNELS
from nnadapter.drivers.fake_npu.kernels.winograd import WINOGRAD_KERNELS

KERNELS: Mapping[str, NumpyKernel] = MappingProxyType(
    {
        **CONVOLUTION_KERNELS,
        **DEPTHWISE_KERNELS,
        **ELEMENTWISE_KERNELS,
        **GATING_KERNELS,
        **ATTENTION_KERNELS,
        **LOSS_KERNELS,
        **MATRIX_KERNELS,
        **MOVEMENT_KERNELS,
        **NORMALIZATION_KERNELS,
        **POOLING_KERNELS,
        **RECURRENT_KERNELS,
        **QUANTIZED_ELEMENT_KERNELS,
        **REDUCTION_KERNELS,
        **REGION_KERNELS,
        **RESIZE_KERNELS,
        **SAMPLING_KERNELS,
        **SCATTERING_KERNELS,
        **SPECTRAL_KERNELS,
        **STATE_KERNELS,
        **TRANSPOSED_CONVOLUTION_KERNELS,
        **VOLUME_KERNELS,
        **WINDOW_POOLING_KERNELS,
        **WINOGRAD_KERNELS,
    }
)
"""Every kernel by name."""

__all__ = ["KERNELS", "NumpyKernel"]
