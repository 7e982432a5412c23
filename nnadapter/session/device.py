"""Devices by name, the process's default devices, and contexts: devices opened with options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakKeyDictionary, WeakSet

from nnadapter import errors
from nnadapter.drivers.boundary import blamed_nodes, open_context
from nnadapter.drivers.capability import Capability, DeviceInfo, MemoryStatistics, ModelForm, OptionValue, Profile
from nnadapter.drivers.interface import Admission, Compatibility, Program, SegmentModel
from nnadapter.drivers.interface import Context as DriverContext
from nnadapter.drivers.registry import devices as _registered
from nnadapter.drivers.registry import open_device, open_isolated
from nnadapter.drivers.selection import canonical, select_one
from nnadapter.drivers.tensor_copies import TENSORS
from nnadapter.ir.model import Model
from nnadapter.kernels import calling_kernels
from nnadapter.options import default_devices, set_default_devices
from nnadapter.process.resources import Closable, close_all, new_re_lock
from nnadapter.records import replace
from nnadapter.traces.trace import Trace
from partition.graph import SUPPORTED, Supported, Unsupported, Verdict

if TYPE_CHECKING:
    from nnadapter.converters.export import Export
    from nnadapter.drivers.kernel import Kernel


class ExportingContext(DriverContext):
    """Context that exports adapter IR to ONNX for a driver's context, and passes ONNX models unchanged."""

    def __init__(self, inner: DriverContext, capability: Capability) -> None:
        self.inner = inner
        self._capability = capability
        self._exports: WeakKeyDictionary[Model, Export] = WeakKeyDictionary()

    def supported(self, model: SegmentModel) -> Sequence[Verdict]:
        if not isinstance(model, Model):
            return self.inner.supported(model)
        exported = self._exported(model)
        count = len(exported.model.graph.node)
        by_node = list(self.inner.supported(exported.model))
        if len(by_node) != count:
            raise errors.DriverError(
                f"the driver returned {len(by_node)} verdicts for {count} nodes, expected one for each; "
                "report it to the vendor"
            )
        return [
            exported.refusals.get(position) or _joined([by_node[node] for node in nodes])
            for position, nodes in enumerate(exported.nodes)
        ]

    def admit(self, model: SegmentModel) -> Admission:
        if not isinstance(model, Model):
            return self.inner.admit(model)
        exported = self._exported(model)
        for refusal in exported.refusals.values():
            return Admission(verdict=refusal)
        admission = self.inner.admit(exported.model)
        if not isinstance(admission, Admission) or not admission.runs_as:
            return admission  # the caller checks its type
        is_complete = len(admission.runs_as) == len(exported.model.graph.node)
        runs_as = tuple(admission.runs_as[nodes[0]] for nodes in exported.nodes) if is_complete else ()
        return replace(admission, runs_as=runs_as)

    def profile(self) -> Profile | None:
        return self.inner.profile()

    def kernels(self) -> Sequence[Kernel]:
        return self.inner.kernels()

    def compile(self, model: SegmentModel) -> Program:
        return self._compiled(self.inner.compile, model)

    def compile_whole_graph(self, model: SegmentModel) -> Program:
        return self._compiled(self.inner.compile_whole_graph, model)

    def clone_with_constants(self, program: Program, model: SegmentModel) -> Program | None:
        return None if isinstance(model, Model) else self.inner.clone_with_constants(program, model)

    def deserialize(self, blob: bytes) -> Program:
        return self.inner.deserialize(blob)

    def deserialize_view(self, blob: memoryview) -> Program:
        return self.inner.deserialize_view(blob)

    def check_blob(self, blob: memoryview) -> Compatibility | None:
        return self.inner.check_blob(blob)

    def with_trace(self, trace: Trace, lane: str) -> DriverContext:
        return ExportingContext(self.inner.with_trace(trace, lane), self._capability)

    def close(self) -> None:
        self._exports.clear()
        self.inner.close()

    def _exported(self, model: Model) -> Export:
        export = self._exports.get(model)
        if export is None:
            from nnadapter.converters.export import export_model  # lazily: only exports need it
            from nnadapter.onnx.references import inlined

            export = export_model(model)
            if not self._capability.supports_external_initializers:
                export = replace(export, model=inlined(export.model))
            self._exports[model] = export
        return export

    def _compiled(self, compile_model: Any, model: SegmentModel) -> Program:
        if not isinstance(model, Model):
            program: Program = compile_model(model)
            return program
        exported = self._exported(model)
        for refusal in exported.refusals.values():
            raise errors.CompilationError(f"the model has an operation that ONNX cannot express: {refusal.detail}")
        try:
            program = compile_model(exported.model)
        except errors.CompilationError as error:
            refused = _by_operation(blamed_nodes(error, len(exported.model.graph.node)), exported)
            raise errors.CompilationError(str(error), refused=refused) from error
        return program


def _joined(verdicts: Sequence[Verdict]) -> Verdict:
    return next((verdict for verdict in verdicts if not isinstance(verdict, Supported)), SUPPORTED)


def _by_operation(refused: Mapping[int, Unsupported], exported: Export) -> dict[int, Unsupported]:
    blamed: dict[int, Unsupported] = {}
    for position, nodes in enumerate(exported.nodes):
        blamed.update((position, refused[node]) for node in nodes if node in refused)
    return blamed


def taking_ir(capability: Capability, context: DriverContext) -> tuple[Capability, DriverContext]:
    """Return a context that accepts adapter IR, and its capability."""
    if capability.form is ModelForm.IR:
        return capability, context
    return replace(capability, form=ModelForm.IR), ExportingContext(context, capability)


class Handle:
    """Open resource of a device. Closing is thread-safe and idempotent, and waits for calls in progress.

    Args:
        parent: handle that closes this handle before itself.
        owned: driver object that `close` closes; an error becomes a DriverWarning.
    """

    def __init__(self, parent: Handle | None, owned: Closable | None = None) -> None:
        self._lock = new_re_lock()
        self._closed = False
        self._owned = owned
        self._children: WeakSet[Handle] = WeakSet()
        if parent is not None:
            parent._adopt(self)

    @property
    def closed(self) -> bool:
        return self._closed

    def check_open(self) -> None:
        if self._closed:
            raise errors.ClosedError(f"{self} is closed; create another one")

    def close(self) -> None:
        """Close everything created from this handle, then free its resources."""
        with self._lock:
            self._closed = True
            children = list(self._children)
        for child in children:
            child.close()
        with self._lock:
            owned, self._owned = self._owned, None
        if owned is not None:
            close_all([owned])

    def __enter__(self) -> Self:
        self.check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _adopt(self, child: Handle) -> None:
        with self._lock:
            self.check_open()
            self._children.add(child)


class Device(Handle):
    """Device, opened once per process and shared. Closing it only closes everything created from it.

    Source: NNAdapterDevice_acquire, _release, _getName.
    """

    def __init__(self, name: str, isolate: bool = False) -> None:
        self._name, self.is_isolated = canonical(name), isolate
        self._device = open_isolated(self._name) if isolate else open_device(self._name)
        self._capability = self._device.capability
        super().__init__(None)

    @classmethod
    def acquire(cls, name: str, *, isolate: bool = False) -> Self:
        """Return a device by name: `fake_npu`, or `fake_npu:1` if a driver has several.

        With `isolate`, the driver runs in a process of its own, so that a crash becomes an error (docs/failures.md).

        Raises:
            DeviceNotFoundError, DeviceUnavailableError, InvalidOptionError: the device does not exist or cannot be
                used.
        """
        return cls(name, isolate)

    @property
    def name(self) -> str:
        return self._name

    @property
    def capability(self) -> Capability:
        """Limits, options and supported operations of the device."""
        return self._capability

    def memory_statistics(self) -> MemoryStatistics | None:
        """Return the use of the device's own memory, or None if it has none or reports none. Raises DriverError."""
        try:
            TENSORS.free_orphans()
            return self._device.memory_statistics()
        except errors.NNAdapterError:
            raise
        except errors.FAILURES as error:
            raise errors.DriverError(
                f"device {self._name!r} did not report its memory use: {errors.describe(error)}; "
                "report it to the vendor",
                device=self._name,
            ) from error

    def __repr__(self) -> str:
        return f"Device({self._name!r})"


class Context(Handle):
    """Device opened with options, for compilations. Source: NNAdapterContext_create, _destroy.

    Args:
        device: an open device. Models are exported to ONNX for devices that require it.
        **options: options of the device by name; `device.capability.options` lists them.

    Raises:
        InvalidOptionError: an option does not exist or is not valid, or `device` is not a Device.
        DeviceUnavailableError: the driver failed to create a context.
        ClosedError: the device was closed.
    """

    def __init__(self, device: Device, **options: Any) -> None:
        if not isinstance(device, Device):
            raise errors.InvalidOptionError(f"a context needs an nnadapter.Device, got {device!r}; use Device.acquire")
        device.check_open()
        selected = select_one(device.name, options, device.is_isolated)
        self._device = device
        self._options = MappingProxyType(dict(selected.options))
        capability, context = taking_ir(device.capability, open_context(selected)[1])
        self.driver_context = calling_kernels(device.name, capability, context)
        super().__init__(device, self.driver_context)

    @property
    def device(self) -> Device:
        return self._device

    @property
    def options(self) -> Mapping[str, OptionValue]:
        return self._options

    def __repr__(self) -> str:
        return f"Context({self._device.name!r})"


def devices() -> tuple[DeviceInfo, ...]:
    """Return all devices of all drivers, each with a reason if it is unavailable."""
    return _registered()


def set_device(name: str) -> None:
    """Make `name` the default device of sessions. Raises DeviceNotFoundError or DeviceUnavailableError."""
    open_device(name)
    set_default_devices([name])


def get_device() -> str:
    """Return the default device of sessions; the first if there are several."""
    return default_devices()[0]
