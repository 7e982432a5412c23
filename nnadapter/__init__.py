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
    from nnadapter.ir.builder import ModelBuilder
    from nnadapter.options import Options
    from nnadapter.reporting import partition_report
    from nnadapter.reports.facts import PartitionReport
    from nnadapter.runtime.compilation import Compilation
    from nnadapter.runtime.context import Context
    from nnadapter.runtime.device import Device
    from nnadapter.runtime.execution import Execution
    from nnadapter.session import InferenceSession

_HOMES = {
    "CompareReport": "nnadapter.comparing",
    "Compilation": "nnadapter.runtime.compilation",
    "Context": "nnadapter.runtime.context",
    "Device": "nnadapter.runtime.device",
    "DeviceInfo": "nnadapter.drivers.capability",
    "Execution": "nnadapter.runtime.execution",
    "InferenceSession": "nnadapter.session",
    "ModelBuilder": "nnadapter.ir.builder",
    "Options": "nnadapter.options",
    "PartitionReport": "nnadapter.reports.facts",
    "backend": "",
    "compare": "nnadapter.comparing",
    "devices": "nnadapter.defaults",
    "errors": "",
    "get_device": "nnadapter.defaults",
    "ort": "",
    "partition_report": "nnadapter.reporting",
    "set_device": "nnadapter.defaults",
}
"""Where each public name lives; empty for modules."""

__all__ = [
    "CompareReport",
    "Compilation",
    "Context",
    "Device",
    "DeviceInfo",
    "Execution",
    "InferenceSession",
    "ModelBuilder",
    "Options",
    "PartitionReport",
    "backend",
    "compare",
    "devices",
    "errors",
    "get_device",
    "ort",
    "partition_report",
    "set_device",
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
