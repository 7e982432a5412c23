"""Everything that a driver author imports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnadapter.process.lazily import lazily

if TYPE_CHECKING:
    from nnadapter.drivers import geometry
    from nnadapter.drivers.capability import (
        Capability,
        DeviceInfo,
        DeviceType,
        DimensionBounds,
        DynamicShapes,
        MemoryStatistics,
        ModelForm,
        OperationRows,
        OperationSupport,
        Option,
        OptionValues,
        Profile,
        Threading,
    )
    from nnadapter.drivers.interface import (
        INTERFACE_VERSION,
        NO_OPERATION,
        Admission,
        Compatibility,
        Context,
        Control,
        Device,
        DeviceTensor,
        Driver,
        Event,
        Execution,
        Memory,
        Program,
        SegmentModel,
        Stream,
    )
    from nnadapter.drivers.kernel import Kernel, KernelType, Target
    from nnadapter.drivers.table_driver import TableDriver
    from nnadapter.drivers.table_lowering import lowers
    from nnadapter.traces.trace import Trace
    from partition.graph import SUPPORTED, Reason, Supported, Unsupported, Verdict, all_of

_HOMES = {
    "Admission": "nnadapter.drivers.interface",
    "Capability": "nnadapter.drivers.capability",
    "Compatibility": "nnadapter.drivers.interface",
    "Context": "nnadapter.drivers.interface",
    "Control": "nnadapter.drivers.interface",
    "Device": "nnadapter.drivers.interface",
    "DeviceInfo": "nnadapter.drivers.capability",
    "DeviceTensor": "nnadapter.drivers.interface",
    "DeviceType": "nnadapter.drivers.capability",
    "Driver": "nnadapter.drivers.interface",
    "Event": "nnadapter.drivers.interface",
    "Execution": "nnadapter.drivers.interface",
    "INTERFACE_VERSION": "nnadapter.drivers.interface",
    "Kernel": "nnadapter.drivers.kernel",
    "KernelType": "nnadapter.drivers.kernel",
    "Memory": "nnadapter.drivers.interface",
    "MemoryStatistics": "nnadapter.drivers.capability",
    "ModelForm": "nnadapter.drivers.capability",
    "NO_OPERATION": "nnadapter.drivers.interface",
    "DynamicShapes": "nnadapter.drivers.capability",
    "OperationRows": "nnadapter.drivers.capability",
    "OperationSupport": "nnadapter.drivers.capability",
    "Option": "nnadapter.drivers.capability",
    "OptionValues": "nnadapter.drivers.capability",
    "Profile": "nnadapter.drivers.capability",
    "Program": "nnadapter.drivers.interface",
    "Reason": "partition.graph",
    "SUPPORTED": "partition.graph",
    "SegmentModel": "nnadapter.drivers.interface",
    "DimensionBounds": "nnadapter.drivers.capability",
    "Stream": "nnadapter.drivers.interface",
    "Supported": "partition.graph",
    "TableDriver": "nnadapter.drivers.table_driver",
    "Target": "nnadapter.drivers.kernel",
    "Threading": "nnadapter.drivers.capability",
    "Trace": "nnadapter.traces.trace",
    "Unsupported": "partition.graph",
    "Verdict": "partition.graph",
    "all_of": "partition.graph",
    "geometry": "",
    "lowers": "nnadapter.drivers.table_lowering",
}
"""Where each public name lives."""

__all__ = [
    "INTERFACE_VERSION",
    "NO_OPERATION",
    "SUPPORTED",
    "Admission",
    "Capability",
    "Compatibility",
    "Context",
    "Control",
    "Device",
    "DeviceInfo",
    "DeviceTensor",
    "DeviceType",
    "DimensionBounds",
    "Driver",
    "DynamicShapes",
    "Event",
    "Execution",
    "Kernel",
    "KernelType",
    "Memory",
    "MemoryStatistics",
    "ModelForm",
    "OperationRows",
    "OperationSupport",
    "Option",
    "OptionValues",
    "Profile",
    "Program",
    "Reason",
    "SegmentModel",
    "Stream",
    "Supported",
    "TableDriver",
    "Target",
    "Threading",
    "Trace",
    "Unsupported",
    "Verdict",
    "all_of",
    "geometry",
    "lowers",
]

__getattr__ = lazily(__name__, _HOMES)
