"""Devices of a compiled model, and its programs on them: deserialized, or compiled again from the segment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from nnadapter.compiled_models.messages import PROGRAM, Message, read_options
from nnadapter.drivers.boundary import ask_compatibility, checked_program, clone_with_constants, has_of, open_context
from nnadapter.drivers.capability import Capability
from nnadapter.drivers.failures import named_call
from nnadapter.drivers.interface import Compatibility, Context, Program, is_streaming
from nnadapter.drivers.registry import device_info
from nnadapter.drivers.selection import CPU, HOSTS, DeviceRequest, Isolate, named_requests, select_one
from nnadapter.errors import (
    FAILURES,
    DeviceNotFoundError,
    DeviceUnavailableError,
    InvalidOptionError,
    NNAdapterError,
    describe,
)
from nnadapter.files.container.format import Container
from nnadapter.kernels import calling_kernels
from nnadapter.options import Fallback, fallback_at
from nnadapter.planning.absent import Absents
from nnadapter.process.resources import close_all
from nnadapter.running.by_trace import making
from nnadapter.traces.trace import Trace
from partition.verdict import Unsupported

if TYPE_CHECKING:
    import onnxruntime


Requests = DeviceRequest | Sequence[DeviceRequest]


@dataclass(frozen=True, eq=False)
class FileDevice:
    """A device that segments of a file run on."""

    name: str
    capability: Capability
    context: Context
    has_memory: bool
    is_streaming: bool
    """Its steps are enqueued where that saves a wait."""
    has_raw_inputs: bool
    """Its own code gets the addresses of inputs."""
    is_isolated: bool
    """It has a process of its own."""
    kept: tuple[str, str]
    """Version and hardware of the device that the file was compiled with."""

    @cached_property
    def is_as_kept(self) -> bool:
        """Its driver and its hardware are those; asked where a driver does not judge its programs itself."""
        info = device_info(self.name)
        return (info.version or info.distribution, info.sub_type) == self.kept

    @property
    def accelerates(self) -> bool:
        """Whether nodes on it count as delegated."""
        return self.capability.role.accelerates

    def close(self) -> None:
        """Close the context."""
        named_call(self.name, "close")(close_all, [self.context])


@dataclass(frozen=True, eq=False)
class FileDevices:
    """The devices of a file, but for the CPU, whose segments need none."""

    opened: Mapping[str, FileDevice] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)
    """Name -> why it is not used."""

    @property
    def accelerators(self) -> frozenset[str]:
        """Names of the devices on which nodes count as delegated."""
        return frozenset(name for name, device in self.opened.items() if device.accelerates)

    @property
    def owning(self) -> frozenset[str]:
        """Names of the devices that have memory of their own."""
        return frozenset(name for name, device in self.opened.items() if device.has_memory)

    @property
    def streaming(self) -> frozenset[str]:
        """See `Setting.streaming`."""
        return frozenset(name for name, device in self.opened.items() if device.is_streaming)

    def close(self) -> None:
        """Close every context."""
        close_all(self.opened.values())


def open_devices(
    records: Sequence[Message],
    requests: Requests | None,
    fallback: Fallback,
    session_options: onnxruntime.SessionOptions | None,
    trace: Trace,
    isolate: Isolate = False,
) -> FileDevices:
    """Open the devices that a file was compiled for.

    Args:
        records: of the file's devices.
        requests: those that the person wants; None for all of the file's, with the options that they were given.
        fallback: where it is `allow`, the CPU takes the place of a device that is not there; unless it is `forbid`,
            that of one that fails as it is opened.
        session_options: ONNX Runtime's own.
        trace: of the session.
        isolate: devices that have a process of their own.

    Raises:
        DeviceNotFoundError, DeviceUnavailableError: a device is not there.
        InvalidOptionError: the person names a device that the file was not compiled for, or options do not fit.
    """
    wanted = None if requests is None else named_requests(requests)
    kept = {record.name for record in records}
    for name in () if wanted is None else wanted:
        if name not in kept and name not in HOSTS:
            raise InvalidOptionError(
                f"the model was compiled for {', '.join(map(repr, sorted(kept)))}, and device {name!r} is asked for; "
                "compile it for that one, or leave devices out"
            )
    opened: dict[str, FileDevice] = {}
    absent: dict[str, str] = {}
    absents = Absents(fallback_at(fallback, "load"))
    try:
        for record in records:
            if record.name == CPU:
                continue
            if wanted is not None and record.name not in wanted:
                absent[record.name] = "it is not among the devices that were asked for"
                continue
            try:
                options = {} if wanted is None else wanted[record.name]
                device = absents.opened(record.name, partial(_open, record, options, session_options, trace, isolate))
                if device is None:
                    absent[record.name] = absents[-1].message
                else:
                    opened[record.name] = device
            except (DeviceNotFoundError, DeviceUnavailableError) as error:
                if fallback_at(fallback, "load") != "allow":
                    raise _absent(record.name, error) from error
                absent[record.name] = describe(error)
    except BaseException:
        close_all(opened.values())
        raise
    return FileDevices(opened, absent)


def _open(
    record: Message,
    options: Mapping[str, object],
    session_options: onnxruntime.SessionOptions | None,
    trace: Trace,
    isolate: Isolate,
) -> FileDevice:
    selected = select_one(record.name, {**read_options(record.options), **options}, isolate)
    device, context = open_context(selected, trace)
    if session_options is not None:
        context = context.with_session_options(session_options)
    context = calling_kernels(selected.name, device.capability, context)
    try:
        has_memory, has_streams, is_raw = (has_of(selected.name, device, attribute) for attribute in _ASKED)
    except BaseException:
        close_all([context])
        raise
    streams = is_streaming(device.capability.threading, has_memory=has_memory, has_streams=has_streams)
    kept = record.version, record.hardware
    own = selected.limits is not None
    return FileDevice(selected.name, device.capability, context, has_memory, streams, is_raw, own, kept)


_ASKED = ("has_memory", "has_streams", "has_raw_inputs")


def _absent(name: str, error: NNAdapterError) -> NNAdapterError:
    return DeviceUnavailableError(
        f"the model was compiled for device {name!r}, which cannot be used here: {describe(error)}; use it where the "
        "device is, or have the CPU take its place with Options(fallback='allow')"
    )


_FITTING = frozenset((Compatibility.IDENTICAL, Compatibility.COMPATIBLE))
_WHY = {
    Compatibility.INCOMPATIBLE: "its program is another device's, or another version of its driver wrote it",
    Compatibility.RECOMPILE: "driver, device or options are others",
}


def reason_against(device: FileDevice, blob: memoryview, about: tuple[int, Sequence[str]]) -> str:
    """Return why a device would not run a program as it is, by what its driver says of the header; empty if it would.

    Where the driver does not tell, the host compares versions and devices.

    Args:
        device: of the file.
        blob: the program.
        about: the segment, and names of its nodes.
    """
    says = named_call(device.name, "check_blob", *about)(ask_compatibility, device.context, blob)
    if isinstance(says, Unsupported):
        return says.detail
    if says is None:
        says = Compatibility.IDENTICAL if device.is_as_kept else Compatibility.RECOMPILE
    return "" if says in _FITTING else _WHY[says]


@dataclass(frozen=True, eq=False)
class Programs:
    """Asks drivers for programs."""

    container: Container
    """The file."""
    trace: Trace

    def deserialized(
        self, device: FileDevice, part: int, about: tuple[int, Sequence[str]], notes: list[str]
    ) -> Program | None:
        """The program that the driver wrote; None where it does not fit."""
        blob = self.container.contents(part, PROGRAM)
        why = reason_against(device, blob, about)
        if not why:
            try:
                with making(self.trace, device.name, "deserialize", *about):
                    deserialize = named_call(device.name, "deserialize", *about)
                    return checked_program(deserialize(device.context.deserialize_view, blob))
            except FAILURES as error:
                why = describe(error)
        notes.append(f"segment {about[0]} was compiled again for {device.name}: {why}")
        return None

    def compiled(
        self, device: FileDevice, model: Any, twin: Program | None, alone: bool, about: tuple[int, Sequence[str]]
    ) -> Program:
        """The program of a kept segment."""
        if twin is not None:
            with making(self.trace, device.name, "clone_with_constants", *about):
                bound = named_call(device.name, "clone_with_constants", *about)(
                    clone_with_constants, device.context, twin, model
                )
            if bound is not None:
                return checked_program(bound)
        call = "compile_whole_graph" if alone else "compile"
        with making(self.trace, device.name, "compile", *about):
            compiled = named_call(device.name, call, *about)(getattr(device.context, call), model)
            return checked_program(compiled)
