"""What people call devices that have other names here: after the hardware, its maker, or the library in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

_CUDA = ("ort:CUDA",)
_TENSORRT = ("ort:Tensorrt", "ort:NvTensorRTRTX")
_MIGRAPHX = ("ort:MIGraphX",)
_DIRECTML = ("ort:Dml",)
_CORE_ML = ("ort:CoreML",)
_RYZEN_AI = ("ort:VitisAI",)
_ASCEND = ("ort:CANN",)
_WEB_GPU = ("ort:WebGpu",)
_QUALCOMM = ("qnn",)
_INTEL_GPU = ("openvino:GPU",)
_INTEL_NPU = ("openvino:NPU",)
_TPU = ("xla:tpu",)

COMMON_NAMES: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        **dict.fromkeys(("cuda", "nvidia", "cudnn"), _CUDA),
        **dict.fromkeys(("tensorrt", "trt"), _TENSORRT),
        **dict.fromkeys(("rocm", "hip", "amd", "migraphx"), _MIGRAPHX),
        **dict.fromkeys(("directml", "dml", "dx12"), _DIRECTML),
        **dict.fromkeys(("coreml", "ane", "mps", "metal", "apple"), _CORE_ML),
        **dict.fromkeys(("vitis", "vitisai", "ryzenai", "ryzen", "xdna"), _RYZEN_AI),
        **dict.fromkeys(("cann", "ascend", "huawei"), _ASCEND),
        **dict.fromkeys(("webgpu", "vulkan"), _WEB_GPU),
        **dict.fromkeys(("hexagon", "htp", "snapdragon", "qualcomm"), _QUALCOMM),
        **dict.fromkeys(("igpu", "xpu", "arc"), _INTEL_GPU),
        **dict.fromkeys(("tpu", "google"), _TPU),
        **dict.fromkeys(("jax", "openxla"), ("xla:cpu", "xla:gpu", *_TPU)),
        **dict.fromkeys(("nnapi", "android"), ("ort:Nnapi",)),
        **dict.fromkeys(("xnnpack",), ("ort:Xnnpack",)),
        **dict.fromkeys(("dnnl", "onednn", "mkldnn"), ("ort:Dnnl",)),
        **dict.fromkeys(("rknpu", "rockchip"), ("ort:Rknpu",)),
        **dict.fromkeys(("azure",), ("ort:Azure",)),
        **dict.fromkeys(("acl", "mali"), ("ort:ACL",)),
        **dict.fromkeys(("intel", "ov"), ("openvino:CPU", *_INTEL_GPU, *_INTEL_NPU)),
        **dict.fromkeys(("gpu",), (*_CUDA, *_MIGRAPHX, *_INTEL_GPU, *_DIRECTML, *_CORE_ML, *_WEB_GPU)),
        **dict.fromkeys(("npu", "vpu", "accelerator"), (*_INTEL_NPU, *_QUALCOMM, *_RYZEN_AI, *_ASCEND, *_CORE_ML)),
        **dict.fromkeys(("onnxruntime", "host"), ("cpu",)),
    }
)
"""Common name -> the devices that may be meant, the likeliest first."""
_SUFFIX = "executionprovider"


def devices_called(name: str) -> Sequence[str]:
    """The devices that people may mean by `name`, in any case and with ONNX Runtime's suffix or without; often none."""
    return COMMON_NAMES.get(name.lower().removesuffix(_SUFFIX), ())
