"""C driver interface in ctypes, mirroring `nnadapter/include/nnadapter_driver.h`, as a test checks."""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any

from nnadapter import errors
from nnadapter.drivers import Compatibility, DeviceType, DynamicShapes, Precision, Reason, Threading
from nnadapter.ir.operand import DataType, Layout, Lifetime

VERSION = (1, 0)

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
    "operations:pointer limits:text profile:pointer dynamic_shapes:i32 smallest_size:i64 largest_size:i64 "
    "largest_elements:u64 precisions:pointer precision_count:u32 default_precision:i32 "
    "property_count:u32 properties:pointer",
    "ComputePrecision": "precision:i32 per_channel:i32 asymmetric:i32 full_graph:i32",
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
    "program_memory:pointer memory:pointer streams:pointer serialization:pointer clone_with_constants:pointer",
}
_UNIONS = {
    "AttributeValue": "boolean:i32 integer:i64 real:f64 string:text integers:pointer reals:pointer strings:pointer"
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
    "clone_with_constants": "status pointer pointer pointer pointer",
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


def _members(text: str) -> Members:
    return tuple((name, type_) for name, type_ in (member.split(":") for member in text.split()))


STRUCTURES: Mapping[str, Members] = MappingProxyType(
    {name: _members(f"size:u32 version:u32 {text}") for name, text in _STRUCTURES.items()}
)
UNIONS: Mapping[str, Members] = MappingProxyType({name: _members(text) for name, text in _UNIONS.items()})
FUNCTIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {name: tuple(text.split()) for name, text in _FUNCTIONS.items()}
)
"""Types of the result and the parameters of each function. If the result is `status`, the last parameter is an
NNAdapterError.
"""
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
GROUPS: Mapping[str, str] = MappingProxyType(
    {"memory": "MemoryFunctions", "streams": "StreamFunctions", "serialization": "SerializationFunctions"}
)
"""Member of the driver's function table -> structure with a group of optional functions."""
LATER = frozenset(("synchronize_event", "query_event", "check_blob"))
"""Functions that were added later; older drivers lack them."""


_TYPES: dict[str, Any] = {
    "i32": ctypes.c_int32,
    "u32": ctypes.c_uint32,
    "i64": ctypes.c_int64,
    "u64": ctypes.c_uint64,
    "f64": ctypes.c_double,
    "text": ctypes.c_char_p,
    "pointer": ctypes.c_void_p,
    "status": ctypes.c_int32,
    "nothing": None,
}


def _declare(base: type, name: str, members: Members) -> Any:
    return type(f"NNAdapter{name}", (base,), {"_fields_": [(member, _TYPES[type_]) for member, type_ in members]})


for _name, _union_members in UNIONS.items():
    _TYPES[_name] = _declare(ctypes.Union, _name, _union_members)

CLASSES: Mapping[str, Any] = MappingProxyType(
    {name: _declare(ctypes.Structure, name, members) for name, members in STRUCTURES.items()}
)
SIGNATURES: Mapping[str, Any] = MappingProxyType(
    {name: ctypes.CFUNCTYPE(*(_TYPES[type_] for type_ in types)) for name, types in FUNCTIONS.items()}
)
ATTRIBUTE_VALUE: Any = _TYPES["AttributeValue"]
CODED_VERSION = VERSION[0] << 16 | VERSION[1]


def make(name: str, /, **members: Any) -> Any:
    """Return a structure with these members; its size and version are set."""
    structure = CLASSES[name](**members)
    structure.size, structure.version = ctypes.sizeof(structure), CODED_VERSION
    return structure


class StructPool:
    """Array of C structures that drivers overwrite; `clear` restores the initial contents."""

    def __init__(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        contents = [bytes(make(name, **members)) for members in rows]
        self._as_new = b"".join(contents)
        self.bytes = bytearray(self._as_new)
        kind = CLASSES[name]
        self.structures = [kind.from_buffer(self.bytes, index * ctypes.sizeof(kind)) for index in range(len(contents))]
        self.addresses = list(map(ctypes.addressof, self.structures))

    def clear(self) -> None:
        self.bytes[:] = self._as_new


def read(name: str, address: int) -> Any:
    """Copy the structure at an address, up to its declared `size`; members beyond are 0."""
    kind = CLASSES[name]
    structure = kind()
    declared_size = ctypes.c_uint32.from_address(address).value
    ctypes.memmove(ctypes.addressof(structure), address, min(declared_size, ctypes.sizeof(kind)))
    return structure


def read_pointers(address: int | None, count: int) -> tuple[int | None, ...]:
    """Return an array of pointers; empty if null."""
    return tuple((ctypes.c_void_p * count).from_address(address)) if address and count else ()


def read_text(value: bytes | None) -> str:
    """Decode a string; empty if null."""
    return (value or b"").decode("utf-8", "replace")


class Holder:
    """Owner of ctypes objects, which must live as long as C code uses their addresses."""

    def __init__(self) -> None:
        self.objects: list[Any] = []

    def keep(self, thing: Any) -> Any:
        self.objects.append(thing)
        return thing

    def make(self, name: str, /, **members: Any) -> int:
        return ctypes.addressof(self.keep(make(name, **members)))

    def values(self, type_: str, values: Iterable[Any]) -> int | None:
        elements: Sequence[Any] = tuple(values)
        return ctypes.addressof(self.keep((_TYPES[type_] * len(elements))(*elements))) if elements else None

    def pointers(self, addresses: Iterable[int | None]) -> int | None:
        return self.values("pointer", addresses)

    def texts(self, texts: Iterable[str]) -> int | None:
        return self.values("text", (text.encode() for text in texts))


class Status(IntEnum):
    """Status of a C function: NNAdapterStatus."""

    OK = 0
    FAILED = 1
    INVALID_ARGUMENT = 2
    OUT_OF_MEMORY = 3
    DEVICE_UNAVAILABLE = 4
    DEVICE_LOST = 5
    INCOMPATIBLE_PROGRAM = 6
    CANCELLED = 7
    DEADLINE_EXCEEDED = 8
    TRANSIENT = 9


class AttributeCode(IntEnum):
    """Kind of an attribute or option in C."""

    KIND_BOOL = 1
    KIND_INT = 2
    KIND_FLOAT = 3
    KIND_STRING = 4
    KIND_INTS = 5
    KIND_FLOATS = 6
    KIND_STRINGS = 7


DATA_TYPES: Mapping[DataType, int] = MappingProxyType(
    {data_type: code for code, data_type in enumerate(DataType, start=1)}
)
LAYOUTS: Mapping[Layout, int] = MappingProxyType({Layout.NCHW: 1, Layout.NHWC: 2})
LIFETIMES: Mapping[Lifetime, int] = MappingProxyType(
    {lifetime: code for code, lifetime in enumerate(Lifetime, start=1)}
)
DEVICE_TYPES: Mapping[int, DeviceType] = MappingProxyType(dict(enumerate(DeviceType, start=1)))
THREADINGS: Mapping[int, Threading] = MappingProxyType(dict(enumerate(Threading, start=1)))
COMPATIBILITIES: Mapping[int, Compatibility] = MappingProxyType(dict(enumerate(Compatibility, start=1)))
DYNAMIC_SHAPES: Mapping[int, DynamicShapes] = MappingProxyType(dict(enumerate(DynamicShapes)))
PRECISIONS: Mapping[int, Precision] = MappingProxyType(dict(enumerate(Precision, start=1)))
REASONS: Mapping[int, Reason] = MappingProxyType(
    dict(
        enumerate(
            (
                Reason.UNSUPPORTED_OPERATION,
                Reason.UNSUPPORTED_ATTRIBUTE,
                Reason.UNSUPPORTED_DTYPE,
                Reason.UNSUPPORTED_RANK,
                Reason.NOT_CONSTANT,
                Reason.SWITCHED_OFF,
                Reason.MEMORY_LIMIT,
                Reason.SEGMENT_LIMIT,
                Reason.DEVICE_REFUSED,
            ),
            start=1,
        )
    )
)


MESSAGE_BYTES = 1024
_ERROR_CLASSES: Mapping[Status, type[errors.NNAdapterError]] = {
    Status.OUT_OF_MEMORY: errors.OutOfMemoryError,
    Status.DEVICE_UNAVAILABLE: errors.DeviceUnavailableError,
    Status.DEVICE_LOST: errors.DeviceLostError,
    Status.INCOMPATIBLE_PROGRAM: errors.IncompatibleProgramError,
    Status.CANCELLED: errors.CancelledError,
    Status.TRANSIENT: errors.TransientError,
}


class _ErrorBuffer(threading.local):
    """Buffer for the last NNAdapterError of a thread."""

    def __init__(self) -> None:
        self.message = ctypes.create_string_buffer(MESSAGE_BYTES)
        error = {"message": ctypes.addressof(self.message), "capacity": MESSAGE_BYTES}
        self._error = StructPool("Error", [error])
        (self._address,) = self._error.addresses

    def cleared(self) -> int:
        self.message[0] = b"\0"
        self._error.clear()
        return self._address


_ROOM = _ErrorBuffer()
_OK = int(Status.OK)


class Functions:
    """C functions of one driver; optional functions that it lacks are absent."""

    def __init__(self, driver: str, functions: Mapping[str, Any], vendor: str = "", version: str = "") -> None:
        self.driver = driver
        self.vendor = vendor
        self.version = version
        self._functions = dict(functions)

    def __contains__(self, name: str) -> bool:
        return name in self._functions

    def plain(self, name: str, *arguments: Any) -> Any:
        return self._functions[name](*arguments)

    def call(
        self,
        name: str,
        *arguments: Any,
        failure: type[errors.NNAdapterError] = errors.DriverError,
        misuse: type[errors.NNAdapterError] = errors.DriverError,
    ) -> None:
        """Call a function that returns a status.

        Raises:
            NNAdapterError: `failure` for FAILED and DEADLINE_EXCEEDED, `misuse` for INVALID_ARGUMENT, otherwise the
                class that belongs to the status.
        """
        status = self._functions[name](*arguments, _ROOM.cleared())
        if status != _OK:
            raise self._error(name, status, failure, misuse)

    def create_handle(self, name: str, *arguments: Any, **kinds: Any) -> int:
        """Call a function that outputs a new handle; raise DriverError if the handle is null."""
        handle = self.create_handle_or_none(name, *arguments, **kinds)
        if handle is None:
            raise errors.DriverError(f"{self.driver}: {name} returned OK with a null handle; report it to the vendor")
        return handle

    def create_handle_or_none(
        self,
        name: str,
        *arguments: Any,
        failure: type[errors.NNAdapterError] = errors.DriverError,
        misuse: type[errors.NNAdapterError] = errors.DriverError,
    ) -> int | None:
        handle = ctypes.c_void_p()
        status = self._functions[name](*arguments, ctypes.addressof(handle), _ROOM.cleared())
        if status != _OK:
            raise self._error(name, status, failure, misuse)
        return handle.value

    def _error(
        self, name: str, status: Any, failure: type[errors.NNAdapterError], misuse: type[errors.NNAdapterError]
    ) -> errors.NNAdapterError:
        kinds = {**_ERROR_CLASSES, Status.INVALID_ARGUMENT: misuse}
        return kinds.get(status, failure)(self._sentence(name, status, read_text(_ROOM.message.value)))

    def _sentence(self, name: str, status: int, message: str) -> str:
        status_text = Status(status).name if status in Status._value2member_map_ else f"unknown status {status}"
        sentence = " ".join(message.split())
        return (
            f"{self.driver}: {sentence}"
            if sentence
            else f"{self.driver}: {name} returned {status_text} without a message; ask its vendor"
        )


_MAGIC = b"\x7fELF"
_HEADER, _SEGMENT = 64, 56
"""Bytes of the 64-bit ELF header and of a program header."""


def missing_bytes(path: Path) -> int:
    """Return how many bytes a truncated ELF file lacks; 0 if none, or for other formats.

    Source: Tool Interface Standard, Executable and Linking Format 1.2; System V ABI, ELF-64 object file format.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        header = file.read(_HEADER)
        if header[:4] != _MAGIC or len(header) < _HEADER or header[4] != 2:  # 32-bit files are refused by the loader
            return 0
        order = "<" if header[5] == 1 else ">"
        start, sections = struct.unpack_from(f"{order}QQ", header, 32)
        entry, count, section, section_count = struct.unpack_from(f"{order}4H", header, 54)
        end = max(start + entry * count, sections + section * section_count)
        if end <= size and entry >= _SEGMENT:
            file.seek(start)
            table = file.read(entry * count)
            ends = (sum(struct.unpack_from(f"{order}Q16xQ", table, entry * index + 8)) for index in range(count))
            end = max(end, *ends, 0)
    return int(max(0, end - size))


SYMBOL = "nnadapter_driver"
_PREAMBLE = 8  # size and version


def load(driver: str, path: Path) -> Functions:
    """Load a library, which stays loaded, and return its functions.

    Raises:
        DeviceUnavailableError: the library cannot be used.
    """
    table = _table(path)
    _check_version(path, table)
    driver_table = read("Driver", table)
    functions = _functions("Driver", driver_table)
    missing = [name for name in REQUIRED if name not in functions]
    if missing:
        raise errors.DeviceUnavailableError(
            f"{path} lacks the required functions {', '.join(missing)}; its vendor must implement them"
        )
    for member, structure in GROUPS.items():
        functions.update(_group(path, member, structure, getattr(driver_table, member)))
    return Functions(driver, functions, read_text(driver_table.vendor), read_text(driver_table.driver_version))


def _table(path: Path) -> int:
    if not path.is_file():
        raise errors.DeviceUnavailableError(f"the driver's library {path} does not exist; install the driver again")
    try:
        missing = missing_bytes(path)
        if missing:
            raise errors.DeviceUnavailableError(f"the last {missing} bytes of {path} are missing; reinstall the driver")
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise errors.DeviceUnavailableError(
            f"the driver's library did not load: {' '.join(str(error).split())}; "
            "install its dependencies, or a build for this machine"
        ) from error
    try:
        give = SIGNATURES[SYMBOL]((SYMBOL, library))
    except AttributeError:
        raise errors.DeviceUnavailableError(
            f"{path} exports no {SYMBOL}; it is not a driver, or was built with hidden symbols"
        ) from None
    address = give(CODED_VERSION)
    if not address:
        raise errors.DeviceUnavailableError(
            f"{path} does not support driver interface {_dotted(VERSION)}; install a driver for {VERSION[0]}.x"
        )
    return int(address)


def _check_version(path: Path, table: int) -> None:
    size, coded = (ctypes.c_uint32 * 2).from_address(table)
    version = (coded >> 16, coded & 0xFFFF)
    if version[0] != VERSION[0] or version[1] > VERSION[1]:
        raise errors.DeviceUnavailableError(
            f"{path} was written for driver interface {_dotted(version)}, this nnadapter has {_dotted(VERSION)}; "
            f"install a driver for {VERSION[0]}.x or another nnadapter"
        )
    if size < _PREAMBLE:
        raise errors.DeviceUnavailableError(
            f"the NNAdapterDriver of {path} has the size {size}, expected its sizeof; its vendor must set `size`"
        )


def _functions(structure: str, table: Any) -> dict[str, Any]:
    names = [name for name, _ in STRUCTURES[structure] if name in FUNCTIONS]
    addresses = {name: getattr(table, name) for name in names}
    return {name: SIGNATURES[name](address) for name, address in addresses.items() if address}


def _group(path: Path, member: str, structure: str, address: int | None) -> dict[str, Any]:
    """Return the functions of a group; empty if absent. Except those in `LATER`, all must be present."""
    if not address:
        return {}
    functions = _functions(structure, read(structure, address))
    missing = [name for name, _ in STRUCTURES[structure] if name in FUNCTIONS.keys() - LATER and name not in functions]
    if missing:
        raise errors.DeviceUnavailableError(
            f"{path} has the functions {member!r} without {', '.join(missing)}; its vendor must implement all or none"
        )
    return functions


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
