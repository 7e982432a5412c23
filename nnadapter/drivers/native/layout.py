"""The C interface as one table: the members of every structure, and what every function takes.

`nnadapter/include/nnadapter_driver.h` says the same in C; a test compiles it and compares sizes and offsets. Pointers
are written as `pointer`, whatever they point to, and members of unions stand in `UNIONS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

VERSION = (1, 0)
"""NNADAPTER_VERSION_MAJOR and NNADAPTER_VERSION_MINOR."""

_STRUCTURES = {
    "Quantization": "axis:i32 count:u32 scales:pointer zero_points:pointer",
    "Operand": "name:text data_type:i32 layout:i32 lifetime:i32 rank:u32 dimensions:pointer quantization:pointer "
    "data:pointer bytes:u64 sizes:pointer",
    "Attribute": "name:text kind:i32 count:u32 value:AttributeValue sizes:pointer",
    "Operation": "type:text input_count:u32 output_count:u32 attribute_count:u32 origin_count:u32 "
    "inputs:pointer outputs:pointer attributes:pointer origins:pointer",
    "Model": "operand_count:u32 operation_count:u32 input_count:u32 output_count:u32 "
    "operands:pointer operations:pointer inputs:pointer outputs:pointer size_count:u32",
    "Tensor": "data_type:i32 rank:u32 dimensions:pointer data:pointer bytes:u64 memory:pointer memory_offset:u64",
    "Error": "message:pointer capacity:u64",
    "Verdict": "supported:i32 reason:i32 detail:pointer capacity:u64",
    "Admission": "verdict:pointer memory_bytes:u64",
    "Control": "deadline_seconds:f64 cancelled:pointer progress:pointer user:pointer",
    "CompileRequest": "model:pointer control:pointer",
    "DeserializeRequest": "data:pointer bytes:u64 control:pointer",
    "ComputeRequest": "input_count:u32 output_count:u32 inputs:pointer outputs:pointer stream:pointer control:pointer "
    "size_count:u32 sizes:pointer",
    "Writer": "write:pointer user:pointer",
    "DeviceInfo": "id:text vendor:text sub_type:text device_version:text type:i32 available:i32 reason:text",
    "Option": "value:pointer help:text choice_count:u32 has_minimum:i32 choices:pointer minimum:f64 affects_speed:i32",
    "OperationSupport": "type:text data_type_count:u32 smallest_rank:u32 largest_rank:u32 data_types:pointer "
    "limits:text",
    "Profile": "peak_flops:f64 bandwidth:f64 launch_seconds:f64 transfer_seconds:f64 transfer_bandwidth:f64 "
    "operation_seconds:f64 channels_last:i32 host_memory:i32 simulated:i32",
    "Capability": "threading:i32 memory_bytes:u64 option_count:u32 operation_count:u32 options:pointer "
    "operations:pointer limits:text profile:pointer open_sizes:i32 smallest_size:i64 largest_size:i64 "
    "largest_elements:u64",
    "MemoryStatistics": "total_bytes:u64 used_bytes:u64 peak_bytes:u64",
    "MemoryFunctions": "allocate:pointer free_memory:pointer copy_in:pointer copy_out:pointer copy_between:pointer "
    "statistics:pointer minimum_chunk:pointer",
    "StreamFunctions": "create_stream:pointer destroy_stream:pointer create_event:pointer destroy_event:pointer "
    "record_event:pointer wait_event:pointer synchronize_stream:pointer synchronize_device:pointer "
    "synchronize_event:pointer query_event:pointer",
    "SerializationFunctions": "serialize:pointer deserialize:pointer check_blob:pointer",
    "Driver": "vendor:text driver_version:text open_device:pointer close_device:pointer create_context:pointer "
    "destroy_context:pointer supported:pointer compile:pointer destroy_program:pointer create_execution:pointer "
    "destroy_execution:pointer compute:pointer list_devices:pointer describe_device:pointer admit:pointer "
    "program_memory:pointer memory:pointer streams:pointer serialization:pointer bind:pointer",
}
_UNIONS = {
    "AttributeValue": "boolean:i32 integer:i64 real:f64 string:text integers:pointer reals:pointer strings:pointer",
}
_FUNCTIONS = {
    "open_device": "status text pointer pointer",
    "close_device": "nothing pointer",
    "create_context": "status pointer u32 pointer pointer pointer",
    "destroy_context": "nothing pointer",
    "supported": "status pointer pointer pointer pointer",
    "compile": "status pointer pointer pointer pointer",
    "destroy_program": "nothing pointer",
    "create_execution": "status pointer pointer pointer",
    "destroy_execution": "nothing pointer",
    "compute": "status pointer pointer pointer",
    "list_devices": "status pointer pointer pointer",
    "describe_device": "status pointer pointer pointer",
    "admit": "status pointer pointer pointer pointer",
    "program_memory": "u64 pointer",
    "bind": "status pointer pointer pointer pointer",
    "allocate": "status pointer u64 pointer pointer",
    "free_memory": "nothing pointer",
    "copy_in": "status pointer u64 pointer u64 pointer pointer",
    "copy_out": "status pointer u64 pointer u64 pointer pointer",
    "copy_between": "status pointer u64 pointer u64 u64 pointer pointer",
    "statistics": "status pointer pointer pointer",
    "minimum_chunk": "u64 pointer",
    "create_stream": "status pointer pointer pointer",
    "destroy_stream": "nothing pointer",
    "create_event": "status pointer pointer pointer",
    "destroy_event": "nothing pointer",
    "record_event": "status pointer pointer pointer",
    "wait_event": "status pointer pointer pointer",
    "synchronize_stream": "status pointer pointer",
    "synchronize_device": "status pointer pointer",
    "synchronize_event": "status pointer pointer",
    "query_event": "i32 pointer",
    "serialize": "status pointer pointer pointer",
    "deserialize": "status pointer pointer pointer pointer",
    "check_blob": "i32 pointer pointer u64",
    "cancelled": "i32 pointer",
    "progress": "nothing pointer f64",
    "write": "status pointer pointer u64",
    "nnadapter_driver": "pointer u32",
}


Members = tuple[tuple[str, str], ...]
"""Names and types of members, in their order."""


def _members(text: str) -> Members:
    return tuple((name, type_) for name, type_ in (member.split(":") for member in text.split()))


STRUCTURES: Mapping[str, Members] = MappingProxyType(
    {name: _members(f"size:u32 version:u32 {text}") for name, text in _STRUCTURES.items()}
)
"""Every structure by its name in C, without the `NNAdapter` in front of it."""
UNIONS: Mapping[str, Members] = MappingProxyType({name: _members(text) for name, text in _UNIONS.items()})
"""Every union by a name that only Python knows."""
FUNCTIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {name: tuple(text.split()) for name, text in _FUNCTIONS.items()}
)
"""By function: the type of its result, then those of what it takes. `status` is a result that is an NNAdapterStatus;
the last thing that such a function of a driver takes is a pointer to an NNAdapterError."""
REQUIRED: tuple[str, ...] = (
    "open_device",
    "close_device",
    "create_context",
    "destroy_context",
    "supported",
    "compile",
    "destroy_program",
    "create_execution",
    "destroy_execution",
    "compute",
)
"""Functions that every driver has."""
GROUPS: Mapping[str, str] = MappingProxyType(
    {"memory": "MemoryFunctions", "streams": "StreamFunctions", "serialization": "SerializationFunctions"}
)
"""Groups of optional functions: the member of the table that points to one, and its structure."""
LATER = frozenset(("synchronize_event", "query_event", "check_blob"))
"""Functions that came to a group when there were drivers that had it: they may lack them."""
