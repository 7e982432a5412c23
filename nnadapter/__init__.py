"""Run ONNX models on accelerators that understand only part of them, and explain every decision.

Names are imported on first use, so that `import nnadapter` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nnadapter import backend, errors, ort
    from nnadapter.comparing import CompareReport, compare
    from nnadapter.defaults import devices, get_device, set_device
    from nnadapter.drivers.capability import DeviceInfo
    from nnadapter.including import get_include
    from nnadapter.ir.builder import ModelBuilder
    from nnadapter.missing.facts import WhatIf
    from nnadapter.missing.what_if import what_if
    from nnadapter.options import Options
    from nnadapter.reporting import partition_report
    from nnadapter.reports.facts import PartitionReport
    from nnadapter.rules import Ban, Limits, Pin, Rules
    from nnadapter.runtime.compilation import Compilation
    from nnadapter.runtime.context import Context
    from nnadapter.runtime.device import Device
    from nnadapter.runtime.execution import Execution
    from nnadapter.session import InferenceSession

_HOMES = {
    "Ban": "nnadapter.rules",
    "CompareReport": "nnadapter.comparing",
    "Compilation": "nnadapter.runtime.compilation",
    "Context": "nnadapter.runtime.context",
    "Device": "nnadapter.runtime.device",
    "DeviceInfo": "nnadapter.drivers.capability",
    "Execution": "nnadapter.runtime.execution",
    "InferenceSession": "nnadapter.session",
    "Limits": "nnadapter.rules",
    "ModelBuilder": "nnadapter.ir.builder",
    "Options": "nnadapter.options",
    "PartitionReport": "nnadapter.reports.facts",
    "Pin": "nnadapter.rules",
    "Rules": "nnadapter.rules",
    "WhatIf": "nnadapter.missing.facts",
    "backend": "",
    "compare": "nnadapter.comparing",
    "devices": "nnadapter.defaults",
    "errors": "",
    "get_device": "nnadapter.defaults",
    "get_include": "nnadapter.including",
    "ort": "",
    "partition_report": "nnadapter.reporting",
    "set_device": "nnadapter.defaults",
    "what_if": "nnadapter.missing.what_if",
}
"""Where each public name lives; empty for modules."""

__all__ = [
    "Ban",
    "CompareReport",
    "Compilation",
    "Context",
    "Device",
    "DeviceInfo",
    "Execution",
    "InferenceSession",
    "Limits",
    "ModelBuilder",
    "Options",
    "PartitionReport",
    "Pin",
    "Rules",
    "WhatIf",
    "backend",
    "compare",
    "devices",
    "errors",
    "get_device",
    "get_include",
    "ort",
    "partition_report",
    "set_device",
    "what_if",
]


def __getattr__(name: str) -> Any:
    """Import a public name on its first use."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'nnadapter' has no attribute {name!r}")
    value = getattr(import_module(home), name) if home else import_module(f"nnadapter.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names."""
    return [*__all__, "__doc__", "__name__", "__file__", "__path__"]
