"""Run a model on an accelerator that supports part of it, and explain every decision.

Public names are imported on first use, so `import nnadapter` is fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnadapter.process.lazily import lazily

if TYPE_CHECKING:
    from nnadapter import backend, errors, ort, paddle, ray, torch
    from nnadapter.drivers import DeviceInfo, Kernel, KernelType
    from nnadapter.eager.execution import Place, set_eager_fallback
    from nnadapter.eager.tensor import Tensor, tensor
    from nnadapter.engine.device_value import DeviceValue
    from nnadapter.include import get_include
    from nnadapter.ir.builder import ModelBuilder
    from nnadapter.kernels.registry import kernel, register_kernel, unregister_kernel
    from nnadapter.options import Options
    from nnadapter.quantization.quantize import quantize
    from nnadapter.report.report import PartitionReport
    from nnadapter.report.what_if import what_if
    from nnadapter.report.what_if_facts import WhatIf
    from nnadapter.rules import Ban, Limits, Pin, Rules
    from nnadapter.session.ahead_of_time import (
        compile,  # noqa: A004
        partition_report,
    )
    from nnadapter.session.bench import BenchReport, bench
    from nnadapter.session.comparison import CompareReport, compare
    from nnadapter.session.compilation import Compilation, Execution
    from nnadapter.session.device import Context, Device, devices, get_device, set_device
    from nnadapter.session.session import InferenceSession
    from nnadapter.tuning.report import TuneReport
    from nnadapter.tuning.tune import tune

__version__ = "0.1.0"


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
    "TuneReport",
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
    "quantize",
    "ray",
    "register_kernel",
    "set_device",
    "set_eager_fallback",
    "tensor",
    "torch",
    "tune",
    "unregister_kernel",
    "what_if",
]


__getattr__ = lazily(
    __name__,
    {
        "": "backend errors ort paddle ray torch",
        ".drivers.capability": "DeviceInfo",
        ".drivers.kernel": "Kernel KernelType",
        ".eager.execution": "Place set_eager_fallback",
        ".eager.tensor": "Tensor tensor",
        ".engine.device_value": "DeviceValue",
        ".include": "get_include",
        ".ir.builder": "ModelBuilder",
        ".kernels.registry": "kernel register_kernel unregister_kernel",
        ".options": "Options",
        ".quantization.quantize": "quantize",
        ".report.report": "PartitionReport",
        ".report.what_if": "what_if",
        ".report.what_if_facts": "WhatIf",
        ".rules": "Ban Limits Pin Rules",
        ".session.ahead_of_time": "compile partition_report",
        ".session.bench": "BenchReport bench",
        ".session.comparison": "CompareReport compare",
        ".session.compilation": "Compilation Execution",
        ".session.device": "Context Device devices get_device set_device",
        ".session.session": "InferenceSession",
        ".tuning.report": "TuneReport",
        ".tuning.tune": "tune",
    },
)


def __dir__() -> list[str]:
    return [*__all__, "__doc__", "__name__", "__file__", "__path__", "__version__"]
