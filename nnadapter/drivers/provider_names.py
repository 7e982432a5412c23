"""Names of execution providers, and where those come from that are not there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from nnadapter.drivers.registry import HardwareNeeds, Machine
from nnadapter.onnx.onnxruntime_limits import CPU_PROVIDER

DRIVER = "ort"
"""The driver's name."""
SUFFIX = "ExecutionProvider"
"""What ONNX Runtime's names end in; people leave it out."""

_BUILD = "a build of ONNX Runtime that has it"
SUPPLIERS: Mapping[str, str] = MappingProxyType(
    {
        "ACLExecutionProvider": f"{_BUILD}, for Arm",
        "CANNExecutionProvider": "`pip install onnxruntime-cann` beside Huawei's CANN toolkit, instead of onnxruntime",
        "CoreMLExecutionProvider": "onnxruntime on macOS",
        "CUDAExecutionProvider": (
            "`pip uninstall onnxruntime && pip install 'onnxruntime-gpu[cuda,cudnn]'`, where there is an NVIDIA GPU"
        ),
        "DmlExecutionProvider": "`pip install onnxruntime-directml` instead of onnxruntime, on Windows",
        "JsExecutionProvider": "ONNX Runtime in a browser",
        "MIGraphXExecutionProvider": "AMD's ROCm build of ONNX Runtime",
        "NnapiExecutionProvider": "ONNX Runtime on Android",
        "NvTensorRTRTXExecutionProvider": "`pip install onnxruntime-ep-nv-tensorrt-rtx`",
        "OpenVINOExecutionProvider": "`pip install onnxruntime-ep-openvino`, or the device openvino",
        "QNNExecutionProvider": "`pip install 'nnadapter[qnn]'`",
        "TensorrtExecutionProvider": "`pip install onnxruntime-gpu` instead of onnxruntime, beside NVIDIA's TensorRT",
        "VitisAIExecutionProvider": "AMD's Ryzen AI software",
        "WebGpuExecutionProvider": "`pip install onnxruntime-ep-webgpu`",
        "WebNNExecutionProvider": "ONNX Runtime in a browser",
    }
)
"""How to get a provider, in words."""


_EVERYWHERE = ("Linux", "Windows")
_NVIDIA = HardwareNeeds(_EVERYWHERE, ("dev/nvidia[0-9]*", "dev/dxg", "dev/nvmap"))
NEEDS: Mapping[str, HardwareNeeds] = MappingProxyType(
    {
        "CANNExecutionProvider": HardwareNeeds(("Linux",), ("dev/davinci[0-9]*",)),
        "CoreMLExecutionProvider": HardwareNeeds(("Darwin",)),
        "CUDAExecutionProvider": _NVIDIA,
        "DmlExecutionProvider": HardwareNeeds(("Windows",)),
        "MIGraphXExecutionProvider": HardwareNeeds(("Linux",), ("dev/kfd",)),
        "NnapiExecutionProvider": HardwareNeeds(("Android",)),
        "NvTensorRTRTXExecutionProvider": _NVIDIA,
        "OpenVINOExecutionProvider": HardwareNeeds(_EVERYWHERE),
        "QNNExecutionProvider": HardwareNeeds(_EVERYWHERE),
        "TensorrtExecutionProvider": _NVIDIA,
        "VitisAIExecutionProvider": HardwareNeeds(_EVERYWHERE, ("sys/class/accel/*/device/vendor",), "0x1022"),
        "WebGpuExecutionProvider": HardwareNeeds(
            (*_EVERYWHERE, "Darwin"), ("dev/dri/renderD*", "dev/nvidia[0-9]*", "dev/dxg")
        ),
    }
)
"""What a provider needs of the machine; one that is not named here is in no package, or for no computer."""

GRAPHICS = frozenset(
    f"{name}{SUFFIX}" for name in ("CUDA", "Dml", "Js", "MIGraphX", "NvTensorRTRTX", "Tensorrt", "WebGpu")
)
"""Providers for graphics processors; what others are for is theirs to say."""
BY_KERNELS = frozenset(("CUDAExecutionProvider", "WebGpuExecutionProvider"))
"""Providers that run node by node, each by a kernel that knows sizes when it runs: a segment may leave its sizes open.

Others compile a segment for fixed sizes, or nobody has seen that they do not.
"""

PLACES: Mapping[str, str] = MappingProxyType({CPU_PROVIDER: "cpu", "CUDAExecutionProvider": "cuda"})
"""Where values of a provider lie, as ONNX Runtime calls a kind of device, if sessions may leave them there.

The CPU's, which is another device, computes here in tests.
"""

OWN_OPTIONS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {"CUDAExecutionProvider": MappingProxyType({"use_tf32": "0"})}
)
"""What a provider is told where nobody says otherwise: float32 is multiplied in float32, as on every device."""

NO_HARDWARE = "ONNX Runtime has it, and this machine none of the hardware that it is for"
"""Why a provider cannot be used."""


def device_name(provider: str) -> str:
    """The device that a provider is."""
    return f"{DRIVER}:{short_name(provider)}"


def provider_at(place: str) -> str | None:
    """The provider whose values lie at a place, as ONNX Runtime calls a kind of device; None for the host's memory."""
    return next(
        (provider for provider, where in PLACES.items() if where == place.lower() and not is_cpu(provider)), None
    )


def short_name(provider: str) -> str:
    """What a person writes for a provider: `CUDA` for `CUDAExecutionProvider`."""
    return provider.removesuffix(SUFFIX)


def full_name(name: str, providers: Iterable[str]) -> str:
    """Return the provider of `providers` that `name` stands for, with or without its suffix; else `name`."""
    lowercase_name = name.lower()
    return next(
        (provider for provider in providers if lowercase_name in (provider.lower(), short_name(provider).lower())), name
    )


def how_to_get(provider: str) -> str:
    """What to do about a provider that is not there, as the end of a sentence."""
    return f"get it by {SUPPLIERS.get(provider, _BUILD)}"


def has_hardware(provider: str) -> bool:
    """Whether this machine has what a provider needs, as far as that is known: nothing is loaded for it."""
    return provider not in NEEDS or NEEDS[provider].met_by(Machine())


def is_cpu(provider: str) -> bool:
    """Whether it is ONNX Runtime's own CPU provider, which is the device `cpu`."""
    return provider == CPU_PROVIDER
