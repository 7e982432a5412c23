"""ONNX Runtime's execution providers by name; conversion of `providers` and `provider_options` to device requests."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from nnadapter.drivers.registry import HardwareNeeds, Machine, device_of, sources
from nnadapter.drivers.selection import CPU, DeviceRequest
from nnadapter.errors import DriverWarning, FallbackWarning, InvalidOptionError
from nnadapter.onnx.onnxruntime_limits import CPU_PROVIDER
from nnadapter.optional_parts import optional_part

DRIVER = "ort"
SUFFIX = "ExecutionProvider"

_BUILD = "a build of ONNX Runtime that has it"
SUPPLIERS: Mapping[str, str] = MappingProxyType(
    {
        "ACLExecutionProvider": f"{_BUILD}, for Arm",
        "CANNExecutionProvider": "`pip install onnxruntime-cann` instead of onnxruntime, with Huawei's CANN toolkit",
        "CoreMLExecutionProvider": "onnxruntime on macOS",
        "CUDAExecutionProvider": (
            "`pip uninstall onnxruntime && pip install 'onnxruntime-gpu[cuda,cudnn]'`, with an NVIDIA GPU"
        ),
        "DmlExecutionProvider": "`pip install onnxruntime-directml` instead of onnxruntime, on Windows",
        "JsExecutionProvider": "ONNX Runtime in a browser",
        "MIGraphXExecutionProvider": "AMD's ROCm build of ONNX Runtime",
        "NnapiExecutionProvider": "ONNX Runtime on Android",
        "NvTensorRTRTXExecutionProvider": "`pip install onnxruntime-ep-nv-tensorrt-rtx`",
        "OpenVINOExecutionProvider": "`pip install onnxruntime-ep-openvino`, or the device openvino",
        "QNNExecutionProvider": "`pip install 'nnadapter[qnn]'`",
        "TensorrtExecutionProvider": "`pip install onnxruntime-gpu` instead of onnxruntime, with NVIDIA's TensorRT",
        "VitisAIExecutionProvider": "AMD's Ryzen AI software",
        "WebGpuExecutionProvider": "`pip install onnxruntime-ep-webgpu`",
        "WebNNExecutionProvider": "ONNX Runtime in a browser",
    }
)


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

GRAPHICS = frozenset(
    f"{name}{SUFFIX}" for name in ("CUDA", "Dml", "Js", "MIGraphX", "NvTensorRTRTX", "Tensorrt", "WebGpu")
)
BY_KERNELS = frozenset(("CUDAExecutionProvider", "WebGpuExecutionProvider"))
"""Providers with kernels for dynamic shapes; other providers need static shapes or are untested."""

PLACES: Mapping[str, str] = MappingProxyType({CPU_PROVIDER: "cpu", "CUDAExecutionProvider": "cuda"})
"""Provider with device-resident values -> ONNX Runtime's name of its memory. The CPU's entry is for tests."""

OWN_OPTIONS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {"CUDAExecutionProvider": MappingProxyType({"use_tf32": "0"})}
)
"""Provider -> our default options, such as float32 products without TF32."""

NO_HARDWARE = "ONNX Runtime supports it, but this machine lacks the hardware"


def device_name(provider: str) -> str:
    """Return the device name of a provider, such as `ort:CUDA`."""
    return f"{DRIVER}:{short_name(provider)}"


def provider_at(place: str) -> str | None:
    """Return the provider with device memory of this name (`cuda`); None for host memory."""
    return next(
        (provider for provider, where in PLACES.items() if where == place.lower() and provider != CPU_PROVIDER), None
    )


def short_name(provider: str) -> str:
    """Return `CUDA` for `CUDAExecutionProvider`."""
    return provider.removesuffix(SUFFIX)


def full_name(name: str, providers: Iterable[str]) -> str:
    """Return the provider with this name, in any case, with or without suffix; otherwise `name`."""
    lowercase_name = name.lower()
    return next(
        (provider for provider in providers if lowercase_name in (provider.lower(), short_name(provider).lower())), name
    )


def how_to_get(provider: str) -> str:
    """Return a clause for the end of a sentence that explains how to install a provider."""
    return f"to get it, use {SUPPLIERS.get(provider, _BUILD)}"


def has_hardware(provider: str) -> bool:
    """Return whether this machine has a provider's hardware, as far as known."""
    return provider not in NEEDS or NEEDS[provider].met_by(Machine())


_QNN = "QNNExecutionProvider"
_READERS: Mapping[str, Collection[str]] = {
    "gpu_graph_id": GRAPHICS,
    "qnn.htp_perf_mode": (_QNN,),
    "qnn.htp_perf_mode_post_run": (_QNN,),
    "qnn.lora_config": (_QNN,),
    "qnn.rpc_control_latency": (_QNN,),
}
"""Entry of run options -> the only providers that read it. Source: onnxruntime_run_options_config_keys.h."""


def provider_of_device(name: str) -> str:
    """Return the execution provider of a device, or the device's name if it has none."""
    if name == CPU:
        return CPU_PROVIDER
    driver, _, device_id = device_of(name).partition(":")
    return full_name(device_id, optional_part("installed_providers")()) if driver == DRIVER and device_id else name


def devices_of_providers(
    providers: Sequence[Any], provider_options: Sequence[Mapping[str, Any]] | None = None
) -> list[DeviceRequest]:
    """Return the devices for a client's providers, in order.

    Names of devices are unchanged, and installed providers become `ort:NAME`. Other providers are skipped with a
    warning.
    """
    requests: list[DeviceRequest] = []
    for name, options in _pairs(providers, provider_options):
        if name == CPU_PROVIDER:
            requests.append(CPU)
        elif not name.endswith(SUFFIX) or name.partition(":")[0] in sources():
            requests.append((name, options))
        elif name in optional_part("installed_providers")() and not optional_part("why_provider_is_unusable")(name):
            option_entries = tuple(f"{key}={value}" for key, value in options.items())
            requests.append((device_name(name), {"provider_options": option_entries}))
        else:
            warnings.warn(
                f"provider {name!r} is not available in this installation and is ignored; "
                "`nnadapter devices` lists the available devices",
                FallbackWarning,
                stacklevel=3,
            )
    return requests or [CPU]


def options_of_cpu(
    providers: Sequence[Any] | None, provider_options: Sequence[Mapping[str, Any]] | None
) -> Mapping[str, Any]:
    """Return the options for ONNX Runtime's CPU provider in a client's list."""
    pairs = _pairs(providers or (), provider_options if providers else None)
    return next((options for name, options in pairs if name == CPU_PROVIDER), {})


def warn_of_unread_entries(entries: Mapping[str, str], devices: Sequence[str]) -> None:
    """Warn of run option entries that no device of the session reads."""
    providers = {_QNN if device_of(name).partition(":")[0] == "qnn" else provider_of_device(name) for name in devices}
    for key, value in entries.items():
        if key in _READERS and providers.isdisjoint(_READERS[key]):
            warnings.warn(
                f"the run options ask for {key!r} = {value!r}, which none of the session's devices "
                f"({', '.join(devices)}) reads; remove the entry, or add a device that reads it",
                DriverWarning,
                stacklevel=2,
            )


def _pairs(
    providers: Sequence[Any], provider_options: Sequence[Mapping[str, Any]] | None
) -> list[tuple[str, Mapping[str, Any]]]:
    if isinstance(providers, str):
        raise InvalidOptionError(f"providers are a list of names, got {providers!r}; pass [{providers!r}]")
    if not isinstance(providers, Sequence):
        raise InvalidOptionError(
            f"providers are a list of names, got {type(providers).__name__!r}; sessions take options by name: "
            "options=Options(...), sess_options=SessionOptions()"
        )
    if provider_options is not None and len(provider_options) != len(providers):
        raise InvalidOptionError(
            f"providers and provider_options must have equal lengths, got {len(providers)} and {len(provider_options)}"
        )
    pairs: list[tuple[str, Mapping[str, Any]]] = []
    for position, provider in enumerate(providers):
        name, options = provider if isinstance(provider, tuple) else (provider, {})
        pairs.append((name, provider_options[position] if provider_options is not None else options))
    return pairs
