"""Everything that a driver author imports."""

from nnadapter.drivers.capability import (
    Capability,
    DeviceInfo,
    DeviceType,
    MemoryStatistics,
    ModelForm,
    OpenSizes,
    OperationSupport,
    Option,
    OptionValues,
    SizeBounds,
    Threading,
)
from nnadapter.drivers.control import Control
from nnadapter.drivers.interface import (
    INTERFACE_VERSION,
    NO_OPERATION,
    Admission,
    Compatibility,
    Context,
    Device,
    DeviceTensor,
    Driver,
    Execution,
    Memory,
    Program,
    SegmentModel,
)
from nnadapter.drivers.kernel import Kernel, KernelType, Target
from nnadapter.drivers.profile import Profile
from nnadapter.drivers.streams import Event, Stream
from nnadapter.traces.trace import Trace
from partition.verdict import SUPPORTED, Reason, Supported, Unsupported, Verdict, all_of

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
    "Driver",
    "Event",
    "Execution",
    "Kernel",
    "KernelType",
    "Memory",
    "MemoryStatistics",
    "ModelForm",
    "OpenSizes",
    "OperationSupport",
    "Option",
    "OptionValues",
    "Profile",
    "Program",
    "Reason",
    "SegmentModel",
    "SizeBounds",
    "Stream",
    "Supported",
    "Target",
    "Threading",
    "Trace",
    "Unsupported",
    "Verdict",
    "all_of",
]
