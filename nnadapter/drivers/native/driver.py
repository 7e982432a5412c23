"""Drivers in shared libraries: devices, capabilities, contexts and verdicts."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from enum import EnumType
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import numpy as np

from nnadapter import errors
from nnadapter.drivers.capability import (
    Capability,
    ComputePrecision,
    DeviceInfo,
    DeviceType,
    DimensionBounds,
    DynamicShapes,
    MemoryStatistics,
    ModelForm,
    OperationSupport,
    Option,
    OptionValues,
    Profile,
    Threading,
    precisions_of,
)
from nnadapter.drivers.interface import UNLIMITED, Admission, Compatibility, Context, Control, Device, Driver, Program
from nnadapter.drivers.native import c_interface, models, requests
from nnadapter.ir import DataType, Model, Operation, verify
from nnadapter.ir.structure import SpecializedModel
from nnadapter.process.resources import ObjectPool, close_all, new_lock
from partition.graph import SUPPORTED, Reason, Unsupported, Verdict

DETAIL_BYTES = 512


class VerdictSink:
    """Reusable C structures for verdicts, which drivers fill in."""

    def __init__(self, count: int, *, supported: bool = False) -> None:
        self._holder = c_interface.Holder()
        self._count = count
        self._details = bytearray(max(count, 1) * DETAIL_BYTES)
        self._nothing = bytes(max(count, 1))
        self._start = ctypes.addressof(ctypes.c_char.from_buffer(self._details))
        places = [{"detail": self._start + index * DETAIL_BYTES, "capacity": DETAIL_BYTES} for index in range(count)]
        self._room = c_interface.StructPool("Verdict", [{"supported": int(supported), **place} for place in places])
        self._all_supported = c_interface.StructPool("Verdict", [{"supported": 1, **place} for place in places]).bytes
        self.addresses = self._room.addresses
        self.array = self._holder.pointers(self.addresses)

    def cleared(self) -> VerdictSink:
        self._room.clear()
        self._details[::DETAIL_BYTES] = self._nothing
        return self

    def read(self) -> list[Verdict]:
        if self._room.bytes == self._all_supported:
            return [SUPPORTED] * self._count
        return [self._read(index, verdict) for index, verdict in enumerate(self._room.structures)]

    def _read(self, index: int, verdict: Any) -> Verdict:
        if verdict.supported == 1:
            return SUPPORTED
        room = self._start + index * DETAIL_BYTES  # the driver may have changed its pointer
        detail = c_interface.read_text(ctypes.string_at(room, DETAIL_BYTES).partition(b"\0")[0])
        if verdict.supported == 0 and verdict.reason in c_interface.REASONS:
            return Unsupported(
                c_interface.REASONS[verdict.reason], detail or "the driver gave no reason; ask its vendor"
            )
        answer = f"supported {verdict.supported} with reason {verdict.reason}"
        return Unsupported(
            Reason.DRIVER_ERROR, f"the driver returned an invalid verdict, {answer}: {detail}".rstrip(": ")
        )


_SMALL = 16


class _Built(NamedTuple):
    holder: c_interface.Holder
    address: int
    sizes: models.NumberedSizes | None = None


_NONE_BUILT = None, _Built(c_interface.Holder(), 0)


class NativeContext(Context):
    """Context of a C driver. A lock serializes calls, as the C interface promises."""

    def __init__(self, functions: c_interface.Functions, device: int, handle: int) -> None:
        self._functions, self._device, self._handle = functions, device, handle
        self._lock = new_lock()
        self._slots = ObjectPool(_new_slot, functions, device)
        self._last: tuple[Model | None, _Built] = _NONE_BUILT
        self._admitted = VerdictSink(1, supported=True)
        self._admission = c_interface.StructPool("Admission", [{"verdict": self._admitted.addresses[0]}])
        self._unlimited = c_interface.Holder()
        self._compiling = c_interface.StructPool(
            "CompileRequest", [{"control": requests.build_control(UNLIMITED, self._unlimited)}]
        )
        self._signatures = requests.DynamicSignatures()
        self._sinks: dict[int, VerdictSink] = {}

    def supported(self, model: Model) -> Sequence[Verdict]:
        # keeps the model alive if another thread replaces `_last`
        _holder, address, _ = self._built(model)
        with self._lock:
            verdicts = self._sink(model.operation_count)
            self._functions.call("supported", self._handle, address, verdicts.array)
            answers = verdicts.read()
        return list(map(_checked_attributes, model.operations, answers)) if model.has_dynamic_shapes else answers

    def admit(self, model: Model) -> Admission:
        if "admit" not in self._functions:
            return Admission()
        _holder, address, _ = self._built(model)
        with self._lock:
            verdicts = self._admitted.cleared()
            self._admission.clear()
            self._functions.call("admit", self._handle, address, self._admission.addresses[0])
            (verdict,), nbytes = verdicts.read(), int(self._admission.structures[0].memory_bytes)
        return Admission(verdict=verdict, facts={"memory_bytes": nbytes}) if nbytes else Admission(verdict=verdict)

    def compile(self, model: Model) -> requests.NativeProgram:
        return self.compile_within(model, UNLIMITED)

    def compile_within(self, model: Model, control: Control) -> requests.NativeProgram:
        holder, address, sizes = self._take_built(model)
        with self._lock:
            _passing, request = self._request(address, control)
            handle = self._functions.create_handle(
                "compile", self._handle, request, failure=errors.CompilationError, misuse=errors.CompilationError
            )
        dynamic_signature = None if sizes is None else self._signatures.of(model, sizes)
        return self._program(handle, _signature_of(model), holder, dynamic_signature)

    def clone_with_constants(self, program: Program, model: Model) -> requests.NativeProgram | None:
        assert isinstance(program, requests.NativeProgram), "programs of a context are its own"
        return self.bind_within(program, model, UNLIMITED)

    def bind_within(
        self, program: requests.NativeProgram, model: Model, control: Control
    ) -> requests.NativeProgram | None:
        if "clone_with_constants" not in self._functions:
            return None
        holder, address, _ = self._take_built(model)
        with self._lock:
            _passing, request = self._request(address, control)
            handle = program.bound(request)
        return None if handle is None else self._program(handle, _signature_of(model), holder)

    def _program(
        self,
        handle: int,
        signature: requests.CallSignature,
        holder: c_interface.Holder,
        dynamic: requests.RunSignature | None = None,
    ) -> requests.NativeProgram:
        return requests.NativeProgram(self._functions, self._device, handle, signature, holder, self._slots, dynamic)

    def deserialize(self, blob: bytes) -> requests.NativeProgram:
        if "deserialize" not in self._functions:
            return super().deserialize(blob)  # type: ignore[return-value]  # raises
        return self._deserialized(blob)

    def deserialize_view(self, blob: memoryview) -> Program:
        if "deserialize" not in self._functions:
            return super().deserialize_view(blob)
        return self._deserialized(blob, is_checked=True)

    def _deserialized(self, blob: bytes | memoryview, *, is_checked: bool = False) -> requests.NativeProgram:
        types, data = requests.unseal(self._functions.driver, blob, is_checked=is_checked)
        holder = c_interface.Holder()
        array = holder.keep(np.frombuffer(data, np.uint8))
        control = requests.build_control(UNLIMITED, holder)
        request = c_interface.make(
            "DeserializeRequest", data=models.contents(array), bytes=array.nbytes, control=control
        )
        with self._lock:
            handle = self._functions.create_handle(
                "deserialize",
                self._handle,
                ctypes.addressof(request),
                failure=errors.IncompatibleProgramError,
                misuse=errors.IncompatibleProgramError,
            )
        return self._program(handle, requests.CallSignature(types), holder)

    def check_blob(self, blob: memoryview) -> Compatibility | None:
        """Return the driver's answer; unknown answers become RECOMPILE, which is always safe."""
        if "check_blob" not in self._functions:
            return None
        written = requests.written_by(self._functions.driver, blob)
        if written is None:
            return Compatibility.INCOMPATIBLE
        array = np.frombuffer(written, np.uint8)
        with self._lock:
            code = self._functions.plain("check_blob", self._handle, models.contents(array), array.nbytes)
        return c_interface.COMPATIBILITIES.get(code, Compatibility.RECOMPILE) if code else None

    def _request(self, model: int, control: Control) -> tuple[c_interface.Holder, int]:
        if control is not UNLIMITED:
            passing = c_interface.Holder()
            return passing, passing.make(
                "CompileRequest", model=model, control=requests.build_control(control, passing)
            )
        self._compiling.clear()
        self._compiling.structures[0].model = model
        return self._unlimited, self._compiling.addresses[0]

    def _sink(self, count: int) -> VerdictSink:
        if count > _SMALL:
            return VerdictSink(count)
        sink = self._sinks.get(count)
        if sink is None:
            sink = self._sinks[count] = VerdictSink(count)
        return sink.cleared()

    def _take_built(self, model: Model) -> _Built:
        built = self._built(model)
        self._last = _NONE_BUILT
        return built

    def _built(self, model: Model) -> _Built:
        if isinstance(model, SpecializedModel):
            built_model: _Built = model.prepared(_build_specialized, _build_specialized)
            return built_model
        last, built = self._last
        if last is not model:
            verify(model)
            holder, sizes = c_interface.Holder(), models.NumberedSizes(model) if model.has_dynamic_shapes else None
            built = _Built(holder, models.build(model, holder, sizes), sizes)
            self._last = model, built
        return built

    def close(self) -> None:
        self._last = _NONE_BUILT
        close_all(self._slots.clear())
        self._functions.plain("destroy_context", self._handle)


def _new_slot(functions: c_interface.Functions, device: int) -> requests.ExecutionSlot:
    return requests.ExecutionSlot(requests.NativeStream(functions, device) if "create_stream" in functions else None)


def _checked_attributes(operation: Operation, verdict: Verdict) -> Verdict:
    name = models.symbolic_real_attribute(operation) if verdict else ""
    detail = f"{name} of {operation.type} is a symbolic real number, which C drivers do not support"
    return Unsupported(Reason.UNSUPPORTED_ATTRIBUTE, detail) if name else verdict


def _build_specialized(model: SpecializedModel) -> _Built:
    verify(model)
    templates: models.ModelTemplates = model.of.group.prepared(models.ModelTemplates, models.ModelTemplates)
    holder = c_interface.Holder()
    address = templates.build(model, holder)
    return _Built(holder, models.build(model, holder) if address is None else address)


def _signature_of(model: Model) -> requests.CallSignature:
    if isinstance(model, SpecializedModel):
        signature: requests.CallSignature = model.prepare_signature(
            requests.CallSignature, lambda types: requests.CallSignature(requests.NativeSignature(*types))
        )
        return signature
    return requests.CallSignature(
        requests.NativeSignature(*(tuple(map(model.type_at, operands)) for operands in (model.inputs, model.outputs)))
    )


_DATA_TYPES = {code: data_type for data_type, code in c_interface.DATA_TYPES.items()}


def device_infos(functions: c_interface.Functions) -> tuple[DeviceInfo, ...]:
    """Return the driver's devices; one default entry if it cannot list any."""
    if "list_devices" not in functions:
        return (DeviceInfo(name=functions.driver, vendor=functions.vendor, version=functions.version),)
    array, count = ctypes.c_void_p(), ctypes.c_uint32()
    functions.call("list_devices", ctypes.addressof(array), ctypes.addressof(count))
    return tuple(_info(functions, address) for address in _addresses("device infos", array.value, count.value))


def capability_of(functions: c_interface.Functions, device: int) -> Capability:
    """Return the capability of an opened device."""
    default = next(code for code, threading in c_interface.THREADINGS.items() if threading is Threading.SERIAL)
    capability = c_interface.make("Capability", threading=default)
    if "describe_device" in functions:
        functions.call("describe_device", device, ctypes.addressof(capability))
    addresses = _addresses("precisions", capability.precisions, capability.precision_count)
    precisions = tuple(map(_precision, addresses)) or precisions_of("float32")
    declared: dict[str, Any] = {
        "form": ModelForm.IR,
        "precisions": precisions,
        "default_precision": _enum_value("default_precision", c_interface.PRECISIONS, capability.default_precision)
        if capability.default_precision
        else precisions[0].precision,
        "threading": _enum_value("threading", c_interface.THREADINGS, capability.threading),
        "dynamic_shapes": _enum_value("dynamic_shapes", c_interface.DYNAMIC_SHAPES, capability.dynamic_shapes),
        "dimension_bounds": _bounds(capability),
        "memory_bytes": capability.memory_bytes or None,
        "options": tuple(map(_option, _addresses("options", capability.options, capability.option_count))),
        "operations": tuple(
            map(_operation, _addresses("operations", capability.operations, capability.operation_count))
        ),
        "limits": c_interface.read_text(capability.limits),
        "profile": _profile(capability.profile) if capability.profile else None,
    }
    others = {name: hint for name, hint in get_type_hints(Capability).items() if name not in declared}
    properties = _addresses("properties", capability.properties, capability.property_count)
    return Capability(**declared, **dict(_property(others, address) for address in properties))


def _property(hints: Mapping[str, Any], address: int) -> tuple[str, Any]:
    """Return name and value of a field of the capability; the registry checks its type."""
    name, value = models.read_attribute(address)
    hint = _enum_value("property", dict(sorted(hints.items())), name)
    return name, _enum_value(name, hint._value2member_map_, value) if isinstance(hint, EnumType) else value


def _bounds(capability: Any) -> DimensionBounds | None:
    if c_interface.DYNAMIC_SHAPES[capability.dynamic_shapes] is not DynamicShapes.BOUNDED:
        return None
    return DimensionBounds(
        smallest=capability.smallest_size,
        largest=capability.largest_size or None,
        largest_elements=capability.largest_elements or None,
    )


def _info(functions: c_interface.Functions, address: int) -> DeviceInfo:
    device_info = c_interface.read("DeviceInfo", address)
    id_ = c_interface.read_text(device_info.id)
    versions = (functions.version, c_interface.read_text(device_info.device_version))
    available = bool(device_info.available)
    return DeviceInfo(
        name=functions.driver if id_ in ("", "0") else f"{functions.driver}:{id_}",
        vendor=c_interface.read_text(device_info.vendor) or functions.vendor,
        type=_enum_value("type", c_interface.DEVICE_TYPES, device_info.type)
        if device_info.type
        else DeviceType.ACCELERATOR,
        sub_type=c_interface.read_text(device_info.sub_type),
        version=" / ".join(version for version in versions if version),
        available=available,
        reason=""
        if available
        else c_interface.read_text(device_info.reason) or "the driver gives no reason; ask its vendor",
    )


def _option(address: int) -> Option:
    option = c_interface.read("Option", address)
    if not option.value:
        raise errors.DriverError(
            "an option of the driver has no value, expected an NNAdapterAttribute with its default; report it to the "
            "vendor"
        )
    name, default = models.read_attribute(option.value)
    return Option(
        name=name,
        default=default,
        help=c_interface.read_text(option.help),
        choices=models.read_texts(option.choices, option.choice_count),
        minimum=_minimum(default, option.minimum) if option.has_minimum else None,
        affects_speed=bool(option.affects_speed),
    )


def _minimum(default: object, minimum: float) -> float | int:
    return int(minimum) if isinstance(default, int) else minimum


def _operation(address: int) -> OperationSupport:
    operation = c_interface.read("OperationSupport", address)
    return OperationSupport(
        type=c_interface.read_text(operation.type),
        dtypes=_data_types(operation.data_types, operation.data_type_count),
        ranks=(operation.smallest_rank, operation.largest_rank),
        limits=c_interface.read_text(operation.limits),
    )


def _data_types(address: int | None, count: int) -> frozenset[DataType]:
    if not address or not count:
        return frozenset()
    return frozenset(
        _enum_value("data type", _DATA_TYPES, code) for code in (ctypes.c_int32 * count).from_address(address)
    )


def _precision(address: int) -> ComputePrecision:
    row = c_interface.read("ComputePrecision", address)
    return ComputePrecision(
        precision=_enum_value("precision", c_interface.PRECISIONS, row.precision),
        per_channel=bool(row.per_channel),
        asymmetric=bool(row.asymmetric),
        full_graph=bool(row.full_graph),
    )


def _profile(address: int) -> Profile:
    profile = c_interface.read("Profile", address)
    _size, _version, *members = c_interface.STRUCTURES["Profile"]
    convert: Mapping[str, Callable[[Any], Any]] = {"f64": float, "i32": bool}
    return Profile(**{name: convert[type_](getattr(profile, name)) for name, type_ in members})


def _addresses(kind: str, array: int | None, count: int) -> tuple[int, ...]:
    addresses = c_interface.read_pointers(array, count)
    valid_addresses = tuple(address for address in addresses if address)
    if len(valid_addresses) < count:
        nulls = count - len(valid_addresses)
        raise errors.DriverError(f"the driver returned {count} {kind}, of which {nulls} are null; ask its vendor")
    return valid_addresses


def _enum_value(name: str, table: Any, code: object) -> Any:
    if code not in table:
        raise errors.DriverError(
            f"the driver's {name} is {code}, expected one of {', '.join(map(str, table))}; report it to the vendor"
        )
    return table[code]


class NativeDriver(Driver):
    """Driver in a shared library."""

    def __init__(self, name: str, path: Path) -> None:
        self._functions = c_interface.load(name, path)
        self.library_path = path

    def open(self, device_id: str) -> NativeDevice:
        handle = self._functions.create_handle(
            "open_device", device_id.encode(), failure=errors.DeviceUnavailableError, misuse=errors.DeviceNotFoundError
        )
        try:
            return NativeDevice(self._functions, handle)
        except errors.DriverError as error:
            self._functions.plain("close_device", handle)
            raise errors.DeviceUnavailableError(f"{self._functions.driver}: {error}") from error

    def devices(self) -> Sequence[DeviceInfo]:
        return device_infos(self._functions)


class NativeDevice(Device):
    """Device of a C driver. Memory and streams are optional."""

    has_raw_inputs = True

    def __init__(self, functions: c_interface.Functions, handle: int) -> None:
        self._functions, self._handle = functions, handle
        self._capability = capability_of(functions, handle)

    @property
    def capability(self) -> Capability:
        return self._capability

    def create_context(self, options: OptionValues) -> NativeContext:
        holder = c_interface.Holder()
        array = holder.pointers([models.option(holder, name, value) for name, value in options.items()])
        handle = self._functions.create_handle(
            "create_context",
            self._handle,
            len(options),
            array,
            failure=errors.DeviceUnavailableError,
            misuse=errors.InvalidOptionError,
        )
        return NativeContext(self._functions, self._handle, handle)

    @property
    def has_memory(self) -> bool:
        return "allocate" in self._functions

    @property
    def has_streams(self) -> bool:
        """True if the driver has streams and `synchronize_event`, which older drivers lack."""
        return self._knows_streams and "synchronize_event" in self._functions

    @property
    def _knows_streams(self) -> bool:
        return "create_stream" in self._functions

    def allocate(self, nbytes: int) -> requests.DeviceMemory:
        self._need("memory", self.has_memory)
        return requests.DeviceMemory(self._functions, self._handle, nbytes)

    def memory_statistics(self) -> MemoryStatistics | None:
        return requests.statistics_of(self._functions, self._handle) if self.has_memory else None

    @property
    def minimum_chunk(self) -> int:
        self._need("memory", self.has_memory)
        return int(self._functions.plain("minimum_chunk", self._handle))

    def create_stream(self) -> requests.NativeStream:
        self._need("streams", self._knows_streams)
        return requests.NativeStream(self._functions, self._handle)

    def create_event(self) -> requests.NativeEvent:
        self._need("streams", self._knows_streams)
        return requests.NativeEvent(self._functions, self._handle)

    def synchronize(self) -> None:
        self._need("streams", self._knows_streams)
        self._functions.call("synchronize_device", self._handle)

    def close(self) -> None:
        self._functions.plain("close_device", self._handle)

    def _need(self, feature: str, is_available: bool) -> None:
        if not is_available:
            raise errors.DriverError(
                f"driver {self._functions.driver!r} has no functions for {feature}; they are optional, so check "
                "has_memory and has_streams first"
            )
