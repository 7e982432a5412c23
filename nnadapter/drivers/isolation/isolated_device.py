"""Device in a process of its own, which is recreated after a crash or hang."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import copy
from functools import partial
from pickle import PickleBuffer
from threading import RLock, Thread
from types import MappingProxyType
from typing import Any, NamedTuple
from weakref import ReferenceType, WeakMethod, finalize, ref

from nnadapter import errors
from nnadapter.drivers.capability import Capability, DeviceInfo, DynamicShapes, MemoryStatistics, OptionValues, Profile
from nnadapter.drivers.interface import (
    UNLIMITED,
    Admission,
    Compatibility,
    Context,
    Control,
    Device,
    Execution,
    Program,
    SegmentModel,
)
from nnadapter.drivers.isolation.channels import Computation, Form, StreamResults, can_share, type_named
from nnadapter.drivers.isolation.child_process import PHASE_OF, PHASES, Child
from nnadapter.ir import Array, Model
from nnadapter.process.resources import register_after_fork
from nnadapter.records import dataclass, replace
from partition.graph import DTYPE_OF_ELEMENT_TYPE, Verdict


class RemoteHandle(NamedTuple):
    """Process and number of a remote object."""

    child: Child
    number: int


class RemoteObject:
    """Object in a device process, recreated if that process is lost. Thread-safe.

    The reference to `make` is weak, so that no cycle delays the object's end.
    """

    def __init__(self, make: Callable[[], RemoteHandle], location: RemoteHandle | None = None) -> None:
        self._make = WeakMethod(make)
        self.location: RemoteHandle | None = None
        self._lock = RLock()
        self._recreation: Thread | None = None
        if location is not None:
            self._adopt(location)
        register_after_fork(self)

    def locate(self, end: float | None = None) -> RemoteHandle:
        """Return the object's location, after recreating the object if its process was lost.

        Raises:
            DeviceTimeoutError: creation is not finished at the deadline `end`; it continues in the background.
        """
        location = self.location
        if location is not None and not location.child.lost:
            return location
        if end is not None:
            self._wait(end)
        with self._lock:
            location = self.location
            if location is None or location.child.lost:
                location = self._adopt(self._create())
            return location

    def _create(self) -> RemoteHandle:
        make = self._make()
        if make is None:  # dropped during background creation
            raise errors.ClosedError("it was closed before the device process created it; create it again")
        return make()

    def after_fork(self) -> None:
        self._lock, self._recreation = RLock(), None

    def close(self, limit_s: float) -> None:
        location, self.location = self.location, None
        if location is not None and not location.child.lost:
            location.child.ask("close", limit_s, number=location.number)

    def _adopt(self, location: RemoteHandle) -> RemoteHandle:
        self.location = location
        finalize(self, location.child.closing.put, location.number).atexit = False
        return location

    def _wait(self, end: float) -> None:
        thread = self._recreation
        if thread is None or not thread.is_alive():
            thread = self._recreation = Thread(
                target=self._create_in_background, name="nnadapter made again", daemon=True
            )
            thread.start()
        thread.join(max(end - time.monotonic(), 0.0))
        if thread.is_alive():
            raise errors.DeviceTimeoutError("the process of the device is still being restarted; run again later")

    def _create_in_background(self) -> None:
        with contextlib.suppress(errors.NNAdapterError):  # a waiting thread retries and gets the error
            self.locate()


def forms_of(model: SegmentModel) -> tuple[Form, ...] | None:
    """Return the outputs' shapes and data types; None if a shape is unknown or has no elements."""
    forms = _of_ir(model) if isinstance(model, Model) else _of_onnx(model)
    return forms if forms is not None and all(all(shape) for shape, _ in forms) else None


def _of_ir(model: Model) -> tuple[Form, ...] | None:
    if model.has_dynamic_shapes:
        return None
    types = [model.type_at(output) for output in model.outputs]
    return tuple((type_.dimensions, type_.dtype.array_type) for type_ in types)


def _of_onnx(model: Any) -> tuple[Form, ...] | None:
    forms = []
    for output in model.graph.output:
        tensor = output.type.tensor_type
        name = DTYPE_OF_ELEMENT_TYPE.get(tensor.elem_type)
        if name is None or not tensor.HasField("shape"):
            return None
        try:
            dtype = type_named(name)
        except ValueError:  # strings
            return None
        forms.append((tuple(dimension.dim_value for dimension in tensor.shape.dim), dtype))
    return tuple(forms)


class IsolatedExecution(Execution):
    """Execution in a device process."""

    def __init__(self, program: RemoteObject, forms: Sequence[Form] | None, limit: Callable[[str], float]) -> None:
        self._program, self._forms, self._limit = program, forms, limit
        self._limit_s = limit("compute")
        self._sizes: Sequence[Any] | None = None
        self.remote = RemoteObject(self._create)
        self.remote.locate()

    @property
    def number(self) -> int:
        return self.remote.locate().number

    def compute(self, inputs: Sequence[Array]) -> Sequence[Array]:
        return self._run(inputs)

    def compute_within(self, inputs: Sequence[Array], control: Control) -> Sequence[Array]:
        """Compute; kill the process if the driver does not stop in time."""
        return self._run(inputs, control=control)

    def compute_into(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Sequence[Array]:
        return self._run(inputs, outputs)

    def specialize(self, sizes: Sequence[Any]) -> Execution:
        execution = copy(self)
        execution._sizes = sizes
        return execution

    def close(self) -> None:
        self.remote.close(self._limit("close"))

    def _run(
        self, inputs: Sequence[Array], into: Sequence[Array] = (), control: Control = UNLIMITED
    ) -> Sequence[Array]:
        seconds = control.deadline_seconds
        location = self.remote.locate(time.monotonic() + seconds if seconds else None)
        computation = Computation(location.number, inputs, self._forms, into, self._sizes, control)
        results: Sequence[Array] = location.child.run(computation, self._limit_s)
        return results

    def _create(self) -> RemoteHandle:
        location = self._program.locate()
        number = location.child.ask("create_execution", self._limit("create_execution"), program=location.number)
        return RemoteHandle(location.child, number)


_SLOW_S = 0.5
"""Compile time in seconds above which a program is serialized for fast recovery."""


@dataclass(slots=True)
class Recipe:
    """Inputs for recreating a program in a new process."""

    request: str
    """Name of the request that created the program. The bytes for `deserialize_view` are already verified."""
    model: SegmentModel | None = None
    blob: Any = None


class IsolatedProgram(Program):
    """Program in a device process."""

    def __init__(
        self, context: IsolatedContext, recipe: Recipe, location: RemoteHandle | None = None, seconds: float = 0.0
    ) -> None:
        self.context = context
        self.forms = None if recipe.model is None else forms_of(recipe.model)
        self._recipe = recipe
        self._memory: tuple[int, int, Mapping[Hashable, int]] | None = None
        self.remote = RemoteObject(self._recreate, location)
        if seconds >= _SLOW_S:
            self.serialize()

    def create_execution(self) -> Execution:
        return IsolatedExecution(self.remote, self.forms, self.context.limit)

    @property
    def memory_bytes(self) -> int:
        return self._memory_facts[0]

    @property
    def execution_bytes(self) -> int:
        return self._memory_facts[1]

    @property
    def shared_bytes(self) -> Mapping[Hashable, int]:
        return {(id(self.context), key): nbytes for key, nbytes in self._memory_facts[2].items()}

    @property
    def _memory_facts(self) -> tuple[int, int, Mapping[Hashable, int]]:
        if self._memory is None:
            location = self.remote.locate()
            answer = location.child.ask("memory", self.context.limit("memory"), program=location.number)
            if not (isinstance(answer, tuple) and len(answer) == 3 and isinstance(answer[2], dict)):
                device = location.child.device
                raise errors.DriverError(
                    f"device {device!r} did not report the memory of a program; report it to the vendor", device=device
                )
            self._memory = answer
        return self._memory

    def serialize(self) -> bytes | None:
        recipe = self._recipe
        if recipe.blob is not None:
            return bytes(recipe.blob)
        location = self.remote.locate()
        blob: bytes | None = location.child.ask("serialize", self.context.limit("serialize"), program=location.number)
        recipe.blob = blob
        return blob

    def close(self) -> None:
        self.remote.close(self.context.limit("close"))

    def _recreate(self) -> RemoteHandle:
        recipe, context = self._recipe, self.context
        if recipe.blob is not None:
            location = context.remote.locate()
            try:
                limit, blob = context.limit("deserialize"), PickleBuffer(recipe.blob)
                how = recipe.request if recipe.model is None else "deserialize"
                number = location.child.ask(how, limit, context=location.number, blob=blob)
                return RemoteHandle(location.child, number)
            except errors.DeviceLostError:
                raise
            except errors.NNAdapterError:
                if recipe.model is None:
                    raise
                recipe.blob = None
        if recipe.model is None:
            raise errors.IncompatibleProgramError(
                "the program has neither model nor serialized bytes, so a new device process cannot create it"
            )
        return context.compiled(recipe.request, recipe.model)


class IsolatedContext(Context):
    """Context in a device process. `limits` are seconds by phase."""

    def __init__(self, device: IsolatedDevice, options: Mapping[str, Any], limits: Mapping[str, float]) -> None:
        self.device, self.limits = device, limits
        self._options = options
        self.remote = RemoteObject(self._create)
        self.remote.locate()

    def supported(self, model: SegmentModel) -> Sequence[Verdict]:
        verdicts: list[Verdict] = self._ask("supported", model)[1]
        return verdicts

    def admit(self, model: SegmentModel) -> Admission:
        admission: Admission = self._ask("admit", model)[1]
        return admission

    def profile(self) -> Profile | None:
        location = self.remote.locate()
        profile: Profile | None = location.child.ask("profile", self.limit("profile"), context=location.number)
        return profile

    def compile(self, model: SegmentModel) -> Program:
        return self._compiled("compile", model)

    def compile_whole_graph(self, model: SegmentModel) -> Program:
        return self._compiled("compile_whole_graph", model)

    def clone_with_constants(self, program: Program, model: SegmentModel) -> Program | None:
        assert isinstance(program, IsolatedProgram), "programs of a context are its own"
        program_location, location = program.remote.locate(), self.remote.locate()
        if program_location.child is not location.child:
            return None
        location, number = self._ask("clone_with_constants", model, program=program_location.number)
        if number is None:
            return None
        return IsolatedProgram(self, Recipe("compile", model), RemoteHandle(location.child, number))

    def deserialize(self, blob: bytes) -> Program:
        return self._deserialized("deserialize", blob)

    def deserialize_view(self, blob: memoryview) -> Program:
        return self._deserialized("deserialize_view", blob)

    def _deserialized(self, command: str, blob: bytes | memoryview) -> Program:
        program = IsolatedProgram(self, Recipe(command, blob=blob))
        program.remote.locate()
        return program

    def check_blob(self, blob: memoryview) -> Compatibility | None:
        location, limit = self.remote.locate(), self.limit("check_blob")
        compatibility: Compatibility | None = location.child.ask(
            "check_blob", limit, context=location.number, blob=PickleBuffer(blob)
        )
        return compatibility

    def compute_at(self, model: SegmentModel, jobs: Sequence[tuple[int, Sequence[int], Sequence[Array]]]) -> Any:
        """Run jobs (execution number, sizes, inputs) of a model. Jobs that violate the model's guards are skipped.

        Returns:
            Results, positions of inputs that the driver changed, and positions of the jobs that ran.
        """
        (results, changed), positions = self._ask("compute_at", model, jobs=jobs)[1]
        return results, changed, positions

    def close(self) -> None:
        location = self.remote.location
        if location is not None:
            location.child.users.discard(self.remote)
        self.remote.close(self.limit("close"))

    def limit(self, command: str) -> float:
        return self.limits[PHASE_OF[command]]

    def compiled(self, command: str, model: SegmentModel) -> RemoteHandle:
        location, number = self._ask(command, model)
        return RemoteHandle(location.child, number)

    def _compiled(self, command: str, model: SegmentModel) -> Program:
        started = time.perf_counter()
        location = self.compiled(command, model)
        return IsolatedProgram(self, Recipe(command, model), location, time.perf_counter() - started)

    def _create(self) -> RemoteHandle:
        child = self.device.child_for(self.remote, self.limits["open"])
        return RemoteHandle(child, child.ask("create_context", self.limit("create_context"), options=self._options))

    def _ask(self, command: str, model: SegmentModel, **arguments: Any) -> tuple[RemoteHandle, Any]:
        location = self.remote.locate()
        child = location.child
        with child.model_lock:
            number, last = child.model
            if last is not model:
                number += 1
                child.ask("take_model", self.limit("take_model"), number=number, model=model)
                child.model = number, model
            return location, child.ask(command, self.limit(command), context=location.number, model=number, **arguments)


TIME_LIMIT_S = 30.0
_UNUSED_S = 1.0
"""Seconds after which a process without open contexts ends."""
_FREE_LOSSES = 3
"""Number of consecutive losses after which restarts are delayed."""
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 30.0


_NO_LIMITS: Mapping[str, float] = MappingProxyType({})


Job = tuple[Execution, Sequence[Array]]


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory and handles of a device process; 0 if unknown."""

    resident_bytes: int
    handles: int


@dataclass(frozen=True, slots=True)
class Computed:
    """Result of one computation."""

    results: list[Array]
    changed_inputs: tuple[int, ...]


class IsolatedDevice(Device):
    """Device in a process of its own.

    Args:
        time_limit_s: limit of each request, except opening.
        opening_s: limit of the opening by this constructor.
        stays: keep the process while no context is open.

    Raises:
        NNAdapterError: see `open_isolated`.
    """

    def __init__(
        self, name: str, *, time_limit_s: float | None = None, opening_s: float | None = None, stays: bool = True
    ) -> None:
        if not can_share():
            raise errors.DeviceUnavailableError(
                f"device {name!r} cannot be isolated: this system cannot pass file descriptors between processes; "
                "use it without isolation"
            )
        self.name = name
        self._limits = PHASES
        if time_limit_s is not None:
            self._limits = {**dict.fromkeys(PHASES, time_limit_s), "open": PHASES["open"]}
        self._stays = stays
        self._lock = RLock()
        self._child: Child | None = None
        self._losses = 0
        self._paused_until = 0.0
        self._unused_since = time.monotonic()
        self._is_closed = False
        register_after_fork(self)
        answer = self.child(opening_s).opening_answer
        capability, row = answer if isinstance(answer, tuple) and len(answer) == 2 else (None, None)
        if not isinstance(capability, Capability) or not isinstance(row, DeviceInfo):
            text = f"device {name!r} did not report its capability; report it to the vendor"
            raise errors.DriverError(text, device=name, phase="open")
        ir_sizes = capability.dynamic_shapes if capability.form.value == "onnx" else DynamicShapes.NONE
        self.full_capability = capability
        self._capability = replace(
            capability, supports_external_initializers=False, dynamic_shapes=ir_sizes, dimension_bounds=None
        )
        self.info = replace(row, capability=self._capability)

    @property
    def capability(self) -> Capability:
        """Capability of the device, except that models always include weights, and adapter IR has static shapes."""
        return self._capability

    @property
    def loss_reason(self) -> str:
        child = self._child
        return "" if child is None or child.is_ended else child.lost

    @property
    def process_id(self) -> int:
        return self.child().process_id

    def create_context(
        self, options: OptionValues | Mapping[str, Any], limits: Mapping[str, float] = _NO_LIMITS
    ) -> IsolatedContext:
        """Create a context. Omitted options get defaults; `limits` override the device's time limits."""
        return IsolatedContext(self, dict(options), {**self._limits, **limits})

    def memory_statistics(self) -> MemoryStatistics | None:
        statistics: MemoryStatistics | None = self.ask("memory_statistics")
        return statistics

    def compute(self, jobs: Sequence[Job], *, at_once: bool = False) -> list[Computed]:
        """Run jobs in sequence, or concurrently in threads if `at_once`; fetch results after the last job."""
        results, changed = self.ask("compute", jobs=_numbered(jobs), at_once=at_once)
        return [Computed(*outcome) for outcome in zip(results, changed, strict=True)]

    def compute_on_streams(self, first_jobs: Sequence[Job], second_jobs: Sequence[Job]) -> StreamResults | None:
        jobs = {"first_jobs": _numbered(first_jobs), "second_jobs": _numbered(second_jobs)}
        stream_results: StreamResults | None = self.ask("compute_on_streams", **jobs)
        return stream_results

    def compute_on_device(self, jobs: Sequence[Job]) -> StreamResults | None:
        stream_results: StreamResults | None = self.ask("compute_on_device", jobs=_numbered(jobs))
        return stream_results

    def footprint(self) -> Footprint:
        return Footprint(*self.ask("footprint"))

    def ask(self, command: str, **arguments: Any) -> Any:
        return self.child().ask(command, self._limits[PHASE_OF[command]], **arguments)

    def child(self, limit_s: float | None = None) -> Child:
        """Return the process; start one if necessary.

        Raises:
            DeviceLostError: the device is closed, or paused after repeated crashes.
        """
        child = self._child
        if child is None or child.lost:
            child = self._started(self._limits["open"] if limit_s is None else limit_s)
        child.wait_until_open()
        return child

    def child_for(self, context: RemoteObject, limit_s: float) -> Child:
        """Return the process, and register `context` as a user."""
        while True:
            child = self.child(limit_s)
            with self._lock:
                if not child.lost:
                    child.users.add(context)
                    return child

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            if self._child is not None:
                self._child.end(f"device {self.name!r} was closed", on_purpose=not self.loss_reason)

    def after_fork(self) -> None:
        self._lock, self._child, self._losses, self._paused_until = RLock(), None, 0, 0.0

    def _started(self, limit_s: float) -> Child:
        with self._lock:
            child = self._child
            if self._is_closed:
                raise errors.DeviceLostError(
                    f"device {self.name!r} was closed; open it again", device=self.name, phase="open"
                )
            if child is not None and not child.lost:
                return child
            if child is not None and not child.is_ended:
                self._note_loss(child)
            remaining = self._paused_until - time.monotonic()
            if remaining > 0:
                raise errors.DeviceLostError(
                    f"device {self.name!r} was lost {self._losses} times without computing anything, and is paused for "
                    f"{remaining:.1f} s (last loss: {child.lost if child is not None else ''}); run again later",
                    device=self.name,
                    phase="open",
                )
            self._unused_since = time.monotonic()
            child = self._child = Child(self.name, limit_s, partial(_end_if_unused, ref(self)))
            finalize(self, child.end, f"device {self.name!r} was released", on_purpose=True).atexit = False
            return child

    def _note_loss(self, child: Child) -> None:
        if child.is_counted:
            return
        child.is_counted = True
        self._losses = 1 if child.has_delivered else self._losses + 1
        paused = self._losses - _FREE_LOSSES
        pause = _FIRST_PAUSE_S * 2.0 ** min(paused - 1, 20) if paused > 0 else 0.0
        self._paused_until = time.monotonic() + min(pause, _LONGEST_PAUSE_S)

    def end_if_unused(self, child: Child) -> None:
        with self._lock:
            if self._stays or child.users:
                self._unused_since = time.monotonic()
            elif time.monotonic() - self._unused_since > _UNUSED_S:
                child.end(f"device {self.name!r} was not used", on_purpose=True)


def _end_if_unused(device: ReferenceType[IsolatedDevice], child: Child) -> None:
    """End an unused process. A bound method instead of this function would keep the device alive."""
    living_device = device()
    if living_device is not None:
        living_device.end_if_unused(child)


def _numbered(jobs: Sequence[Job]) -> list[tuple[int, list[Array]]]:
    return [(number_of(execution), list(inputs)) for execution, inputs in jobs]


def number_of(execution: Execution) -> int:
    """Return the number of a remote execution."""
    if not isinstance(execution, IsolatedExecution):
        raise errors.DriverError(f"got {type(execution).__name__}, expected an execution of an isolated device")
    return execution.number
