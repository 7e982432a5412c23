"""Public names for driver authors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnadapter.process.lazily import lazily

if TYPE_CHECKING:
    from nnadapter.drivers import geometry
    from nnadapter.drivers.capability import (
        Capability,
        ComputePrecision,
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
        Precision,
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


__all__ = [
    "INTERFACE_VERSION",
    "NO_OPERATION",
    "SUPPORTED",
    "Admission",
    "Capability",
    "Compatibility",
    "ComputePrecision",
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
    "Precision",
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

__getattr__ = lazily(
    __name__,
    {
        "": "geometry",
        ".capability": (
            "Capability ComputePrecision DeviceInfo DeviceType DimensionBounds DynamicShapes MemoryStatistics "
            "ModelForm OperationRows OperationSupport Option OptionValues Precision Profile Threading"
        ),
        ".interface": (
            "Admission Compatibility Context Control Device DeviceTensor Driver Event Execution INTERFACE_VERSION "
            "Memory NO_OPERATION Program SegmentModel Stream"
        ),
        ".kernel": "Kernel KernelType Target",
        ".table_driver": "TableDriver",
        ".table_lowering": "lowers",
        "nnadapter.traces.trace": "Trace",
        "partition.graph": "Reason SUPPORTED Supported Unsupported Verdict all_of",
    },
)
