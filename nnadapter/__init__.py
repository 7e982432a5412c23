"""Run a model on an accelerator that supports part of it, and explain every decision.

Public names are imported on first use, so `import nnadapter` is fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnadapter.process.lazily import lazily

if TYPE_CHECKING:
    from nnadapter import backend, errors, ort, paddle, ray, torch
    from nnadapter.drivers.capability import DeviceInfo
    from nnadapter.drivers.kernel import Kernel, KernelType
    from nnadapter.eager.execution import Place, set_eager_fallback
    from nnadapter.eager.tensor import Tensor, tensor
    from nnadapter.engine.device_value import DeviceValue
    from nnadapter.include import get_include
    from nnadapter.inference.ahead_of_time import compile  # noqa: A004
    from nnadapter.inference.bench import BenchReport, bench
    from nnadapter.inference.comparison import CompareReport, compare
    from nnadapter.inference.defaults import devices, get_device, set_device
    from nnadapter.inference.partition_report import partition_report
    from nnadapter.inference.session import InferenceSession
    from nnadapter.ir.builder import ModelBuilder
    from nnadapter.kernels.registry import kernel, register_kernel, unregister_kernel
    from nnadapter.options import Options
    from nnadapter.reports.report import PartitionReport
    from nnadapter.rules import Ban, Limits, Pin, Rules
    from nnadapter.runtime.compilation import Compilation, Execution
    from nnadapter.runtime.device import Context, Device
    from nnadapter.whatif.report import WhatIf
    from nnadapter.whatif.what_if import what_if

__version__ = "0.1.0"

_HOMES = {
    "Ban": "nnadapter.rules",
    "BenchReport": "nnadapter.inference.bench",
    "CompareReport": "nnadapter.inference.comparison",
    "Compilation": "nnadapter.runtime.compilation",
    "Context": "nnadapter.runtime.device",
    "Device": "nnadapter.runtime.device",
    "DeviceInfo": "nnadapter.drivers.capability",
    "DeviceValue": "nnadapter.engine.device_value",
    "Execution": "nnadapter.runtime.compilation",
    "InferenceSession": "nnadapter.inference.session",
    "Kernel": "nnadapter.drivers.kernel",
    "KernelType": "nnadapter.drivers.kernel",
    "Limits": "nnadapter.rules",
    "ModelBuilder": "nnadapter.ir.builder",
    "Options": "nnadapter.options",
    "PartitionReport": "nnadapter.reports.report",
    "Pin": "nnadapter.rules",
    "Place": "nnadapter.eager.execution",
    "Rules": "nnadapter.rules",
    "Tensor": "nnadapter.eager.tensor",
    "WhatIf": "nnadapter.whatif.report",
    "backend": "",
    "bench": "nnadapter.inference.bench",
    "compare": "nnadapter.inference.comparison",
    "compile": "nnadapter.inference.ahead_of_time",
    "devices": "nnadapter.inference.defaults",
    "errors": "",
    "get_device": "nnadapter.inference.defaults",
    "get_include": "nnadapter.include",
    "kernel": "nnadapter.kernels.registry",
    "ort": "",
    "paddle": "",
    "partition_report": "nnadapter.inference.partition_report",
    "ray": "",
    "register_kernel": "nnadapter.kernels.registry",
    "set_device": "nnadapter.inference.defaults",
    "set_eager_fallback": "nnadapter.eager.execution",
    "tensor": "nnadapter.eager.tensor",
    "torch": "",
    "unregister_kernel": "nnadapter.kernels.registry",
    "what_if": "nnadapter.whatif.what_if",
}
"""Where each public name lives; empty for modules."""

__all__ = [
    "Ban",
    "BenchReport",
    "CompareReport",
    "Compilation",
    "Context",
    "Device",
    "DeviceInfo",
    "DeviceValue",
    "Execution",
    "InferenceSession",
    "Kernel",
    "KernelType",
    "Limits",
    "ModelBuilder",
    "Options",
    "PartitionReport",
    "Pin",
    "Place",
    "Rules",
    "Tensor",
    "WhatIf",
    "backend",
    "bench",
    "compare",
    "compile",
    "devices",
    "errors",
    "get_device",
    "get_include",
    "kernel",
    "ort",
    "paddle",
    "partition_report",
    "ray",
    "register_kernel",
    "set_device",
    "set_eager_fallback",
    "tensor",
    "torch",
    "unregister_kernel",
    "what_if",
]


__getattr__ = lazily(__name__, _HOMES)


def __dir__() -> list[str]:
    """The public names."""
    return [*__all__, "__doc__", "__name__", "__file__", "__path__", "__version__"]
