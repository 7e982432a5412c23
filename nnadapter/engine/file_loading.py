"""Loader of a compiled file: opens its devices, and deserializes its programs or compiles its segments.

In the graph of its plans each segment is one node, since the file lacks the model's nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from nnadapter import errors
from nnadapter.drivers import Capability, Compatibility, Context, Program, Threading, Trace, Unsupported
from nnadapter.drivers.arenas import Arenas
from nnadapter.drivers.boundary import ask_compatibility, checked_program, clone_with_constants, has_of, open_context
from nnadapter.drivers.failures import NamedCalls, named_call
from nnadapter.drivers.interface import is_streaming
from nnadapter.drivers.registry import device_info
from nnadapter.drivers.selection import CPU, HOSTS, DeviceRequest, Isolate, named_requests, select_one
from nnadapter.engine import messages
from nnadapter.engine.binder import Bindable, Binder
from nnadapter.engine.bound_steps import Substitute
from nnadapter.engine.compiled import RunnablePlan
from nnadapter.engine.compiled_file import CompiledFile
from nnadapter.engine.executor import CompiledPlan, CpuFallback
from nnadapter.engine.fallback import Incidents, fall_back, run_failure
from nnadapter.engine.plan_devices import PlanDevices, evict_nothing, making
from nnadapter.errors import describe
from nnadapter.files.messages import Message
from nnadapter.kernels import calling_kernels
from nnadapter.options import Fallback, fallback_at
from nnadapter.planning.absent import Absents
from nnadapter.planning.overlap import Overlap, Reads, enqueued_of, needs_of, waiting
from nnadapter.process.resources import close_all
from nnadapter.records import dataclass, field
from partition.graph import Graph, Node
from partition.plan import Plan, Segment, Step, make_plan

if TYPE_CHECKING:
    import onnxruntime

    from nnadapter.engine.shape_sets import ShapeSet


Requests = DeviceRequest | Sequence[DeviceRequest]


@dataclass(frozen=True, eq=False)
class FileDevice:
    """Opened device that runs steps of a compiled model."""

    name: str
    capability: Capability
    context: Context
    has_memory: bool
    is_streaming: bool
    """True if steps are enqueued on a stream when that saves a wait."""
    has_raw_inputs: bool
    """True if native code of the driver gets the addresses of inputs."""
    is_isolated: bool
    recorded: tuple[str, str]
    """Driver version and hardware at compile time."""

    @cached_property
    def is_unchanged(self) -> bool:
        info = device_info(self.name)
        return (info.version or info.distribution, info.sub_type) == self.recorded

    @property
    def accelerates(self) -> bool:
        return self.capability.role.accelerates

    def close(self) -> None:
        named_call(self.name, "close")(close_all, [self.context])


@dataclass(frozen=True, eq=False)
class FileDevices:
    """Opened devices of a compiled file except the CPU, and the reason for each absence."""

    opened: Mapping[str, FileDevice] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)

    @property
    def accelerators(self) -> frozenset[str]:
        return frozenset(name for name, device in self.opened.items() if device.accelerates)

    @property
    def owning(self) -> frozenset[str]:
        return frozenset(name for name, device in self.opened.items() if device.has_memory)

    @property
    def streaming(self) -> frozenset[str]:
        return frozenset(name for name, device in self.opened.items() if device.is_streaming)

    def close(self) -> None:
        close_all(self.opened.values())


def open_devices(
    records: Sequence[Message],
    requests: Requests | None,
    fallback: Fallback,
    session_options: onnxruntime.SessionOptions | None,
    trace: Trace,
    isolate: Isolate = False,
) -> FileDevices:
    """Open the devices that `records` of a file describe.

    `requests` are the requested devices; None requests all, with the options at compile time. The CPU replaces missing
    devices if `fallback` is `allow`, and devices that fail to open if it is `allow` or `warn`.

    Raises:
        DeviceNotFoundError, DeviceUnavailableError: a device is missing.
        InvalidOptionError: a requested device is not in the file, or its options are invalid.
    """
    requested = None if requests is None else named_requests(requests)
    recorded = {record.name for record in records}
    for name in () if requested is None else requested:
        if name not in recorded and name not in HOSTS:
            raise errors.InvalidOptionError(
                f"the model was compiled for {', '.join(map(repr, sorted(recorded)))}, but device {name!r} was "
                "requested; compile it for that device, or request no devices"
            )
    opened: dict[str, FileDevice] = {}
    absent: dict[str, str] = {}
    absents = Absents(fallback_at(fallback, "load"))
    try:
        for record in records:
            if record.name == CPU:
                continue
            if requested is not None and record.name not in requested:
                absent[record.name] = "it was not requested"
                continue
            try:
                options = {} if requested is None else requested[record.name]
                device = absents.opened(
                    record.name, partial(_open_device, record, options, session_options, trace, isolate)
                )
                if device is None:
                    absent[record.name] = absents[-1].message
                else:
                    opened[record.name] = device
            except (errors.DeviceNotFoundError, errors.DeviceUnavailableError) as error:
                if fallback_at(fallback, "load") != "allow":
                    raise _absent_error(record.name, error) from error
                absent[record.name] = describe(error)
    except BaseException:
        close_all(opened.values())
        raise
    return FileDevices(opened, absent)


def _open_device(
    record: Message,
    options: Mapping[str, object],
    session_options: onnxruntime.SessionOptions | None,
    trace: Trace,
    isolate: Isolate,
) -> FileDevice:
    selected = select_one(record.name, {**messages.read_options(record.options), **options}, isolate)
    device, context = open_context(selected, trace)
    if session_options is not None:
        context = context.with_session_options(session_options)
    context = calling_kernels(selected.name, device.capability, context)
    try:
        has_memory, has_streams, is_raw = (has_of(selected.name, device, attribute) for attribute in _DEVICE_TRAITS)
    except BaseException:
        close_all([context])
        raise
    streams = is_streaming(device.capability.threading, has_memory=has_memory, has_streams=has_streams)
    recorded = record.version, record.hardware
    has_own_limits = selected.limits is not None
    return FileDevice(selected.name, device.capability, context, has_memory, streams, is_raw, has_own_limits, recorded)


_DEVICE_TRAITS = ("has_memory", "has_streams", "has_raw_inputs")


def _absent_error(name: str, error: errors.NNAdapterError) -> errors.NNAdapterError:
    return errors.DeviceUnavailableError(
        f"the model was compiled for device {name!r}, which cannot be used here: {describe(error)}; run it where the "
        "device is, or replace it by the CPU with Options(fallback='allow')"
    )


_FITTING = frozenset((Compatibility.IDENTICAL, Compatibility.COMPATIBLE))
_UNFIT_REASONS = {
    Compatibility.INCOMPATIBLE: "its program is from another device or driver version",
    Compatibility.RECOMPILE: "driver, device or options have changed",
}


def reason_against(device: FileDevice, blob: memoryview, about: tuple[int, Sequence[str]]) -> str:
    """Return the reason why a device cannot run a stored program; empty if it can.

    `blob` is the serialized program, `about` the segment and its node names. If the driver does not check programs, its
    version and the hardware must not have changed since compilation.
    """
    compatibility = named_call(device.name, "check_blob", *about)(ask_compatibility, device.context, blob)
    if isinstance(compatibility, Unsupported):
        return compatibility.detail
    if compatibility is None:
        compatibility = Compatibility.IDENTICAL if device.is_unchanged else Compatibility.RECOMPILE
    return "" if compatibility in _FITTING else _UNFIT_REASONS[compatibility]


NO_STORED_PROGRAM = "no program of it is stored"
"""End of the report note on a segment that was compiled because it had no stored program. This is no failure."""


@dataclass(frozen=True, eq=False, kw_only=True)
class FilePlan(RunnablePlan):
    """Plan of a compiled file that is ready to run; `record` is its Plan message."""

    record: Message


class LoadedProgram(NamedTuple):
    """Program of a step, its device, and the values that it reads."""

    program: Program
    device: str
    inputs: tuple[str, ...]
    takes_sizes: bool = False


@dataclass(eq=False)
class Loader:
    """Loader of the plans of one compiled file."""

    file: CompiledFile
    devices: FileDevices
    fallback: Fallback
    trace: Trace
    session_options: onnxruntime.SessionOptions | None = None
    make_room: Callable[[], bool] = evict_nothing
    make_cpu_fallback: Callable[[errors.NNAdapterError], CpuFallback] | None = None
    arenas: Arenas = field(init=False)

    def __post_init__(self) -> None:
        self.segments = messages.Segments(self.file.container)
        opened = self.devices.opened
        self.arenas = Arenas(shared=any(device.is_isolated for device in opened.values()))
        self._plan_devices = PlanDevices(
            accelerators=self.devices.accelerators,
            owning=self.devices.owning,
            threading={
                CPU: Threading.REENTRANT,
                **{name: device.capability.threading for name, device in opened.items()},
            },
            trace=self.trace,
            raw=frozenset(name for name, device in opened.items() if device.has_raw_inputs),
            pauses=fallback_at(self.fallback, "run") != "forbid",
            make_room=self.make_room,
        )
        self._uses_host = False
        self.incidents = Incidents(self.fallback, self.trace)

    def close(self) -> None:
        """Free the memory of intermediate values, and shrink ONNX Runtime's arena."""
        self.arenas.close()
        if self._uses_host:
            from nnadapter.drivers.onnxruntime.sessions import shrink_arena

            shrink_arena()

    @property
    def pause_texts(self) -> tuple[str, ...]:
        return self._plan_devices.pause_texts

    def load(self, record: Message) -> FilePlan:
        """Load a plan with its programs; `record` is its Plan message.

        Raises:
            CompiledModelError: the file is damaged, or nothing in it runs here.
            CompilationError: a segment cannot be compiled again.
        """
        notes: list[str] = []
        loaded: dict[int, LoadedProgram] = {}
        try:
            shape_set = self.shape_set_of(record)
            self.load_steps(record, shape_set, range(len(record.steps)), loaded, notes)
            if record is self.file.original_model:
                notes.append("the CPU ran the original model: the file has no plan for these shapes")
            plan = self._bind(record, shape_set, loaded)
            return FilePlan(plan=plan, record=record, notes=tuple(dict.fromkeys(notes)), shapes=shape_set)
        except BaseException as error:
            close_all(loaded_step.program for loaded_step in loaded.values())
            if isinstance(error, (KeyError, IndexError, TypeError)):
                raise self.file.container.damaged(f"a plan is inconsistent ({describe(error)})") from error
            raise

    def shape_set_of(self, record: Message) -> ShapeSet | None:
        if not record.HasField("open"):
            return None
        from nnadapter.engine.shape_messages import read_shape_set

        return read_shape_set(record.open, self.file.shapes(record), self.segments)

    def load_steps(
        self,
        record: Message,
        shape_set: ShapeSet | None,
        positions: Iterable[int],
        loaded: dict[int, LoadedProgram],
        notes: list[str],
    ) -> None:
        """Load the programs of steps at `positions` into `loaded`; add deviations from the file to `notes`."""
        for number in positions:
            loaded[number] = self._load_step(number, record, shape_set, loaded, notes)

    def _load_step(
        self,
        number: int,
        record: Message,
        shape_set: ShapeSet | None,
        earlier: Mapping[int, LoadedProgram],
        notes: list[str],
    ) -> LoadedProgram:
        step, is_sole = record.steps[number], len(record.steps) == 1
        about = (number, list(step.nodes))
        if step.device == CPU:
            return LoadedProgram(self._load_cpu_program(step.segment, step, is_sole), CPU, tuple(step.segment.inputs))
        device = self.devices.opened.get(step.device)
        if device is None:
            reason = self.devices.absent.get(step.device, "it is not a device of the file")
            return self._load_cpu_segment(step, reason, notes)
        if step.HasField("program"):
            program = self.deserialize(device, step.program.part, about, notes)
            if program is not None:
                return LoadedProgram(program, step.device, tuple(step.program.inputs), bool(step.segment.places))
        if not step.HasField("segment"):
            return self._load_cpu_segment(
                step, "its program is incompatible, and the file has no segment to compile", notes
            )
        similar = earlier[step.twin].program if step.HasField("twin") else None
        try:
            model = self.segments.model(step.segment, None if shape_set is None else shape_set.trace)
            program = self.compile(device, model, similar, is_sole, about)
        except errors.CompiledModelError:
            raise
        except errors.FAILURES as error:
            return self._load_after_failure(number, step, error, notes)
        if not step.HasField("program"):
            notes.append(f"segment {number} was compiled for {step.device}: {NO_STORED_PROGRAM}")
        return LoadedProgram(program, step.device, tuple(step.segment.inputs), bool(step.segment.places))

    def _load_after_failure(self, number: int, step: Message, error: BaseException, notes: list[str]) -> LoadedProgram:
        reason = f"it failed to compile segment {number}: {describe(error)}"
        failed = Step(
            segment=number,
            device=step.device,
            nodes=(number,),
            inputs=tuple(step.inputs),
            constants=(),
            outputs=tuple(step.outputs),
            released=(),
        )
        if self.incidents.policy("compile") != "forbid":
            loaded = self._load_cpu_segment(step, reason, notes)
        text, nodes = f"device {step.device!r} had to compile its segment again: {reason}", list(step.nodes)
        fall_back("compile", failed, nodes, text, "the CPU runs it", error, self.incidents)
        return loaded

    def deserialize(
        self, device: FileDevice, part: int, about: tuple[int, Sequence[str]], notes: list[str]
    ) -> Program | None:
        """Deserialize a stored program; None, with a reason in `notes`, if it is incompatible or fails."""
        blob = self.file.container.contents(part, messages.PROGRAM)
        reason = reason_against(device, blob, about)
        if not reason:
            try:
                with making(self.trace, device.name, "deserialize", *about):
                    deserialize = named_call(device.name, "deserialize", *about)
                    return checked_program(deserialize(device.context.deserialize_view, blob))
            except errors.FAILURES as error:
                reason = describe(error)
        notes.append(f"segment {about[0]} was compiled again for {device.name}: {reason}")
        return None

    def compile(
        self, device: FileDevice, model: Any, similar: Program | None, is_sole: bool, about: tuple[int, Sequence[str]]
    ) -> Program:
        """Clone the program `similar` with the constants of `model` if possible; otherwise compile."""
        context, calls = device.context, NamedCalls(device.name, *about)
        if similar is not None:
            with making(self.trace, device.name, "clone_with_constants", *about):
                clone = calls["clone_with_constants"](clone_with_constants, context, similar, model)
            if clone is not None:
                return checked_program(clone)
        call = "compile_whole_graph" if is_sole else "compile"
        with making(self.trace, device.name, "compile", *about):
            return checked_program(calls[call](getattr(context, call), model))

    def _load_cpu_segment(self, step: Message, reason: str, notes: list[str]) -> LoadedProgram:
        if not step.HasField("instead"):
            raise errors.CompiledModelError(
                f"{self.file.container.name!r}: device {step.device!r} cannot run its segment ({reason}), and the file "
                "has no fallback for the CPU; compile the model again with fallback allowed",
                file=self.file.container.name,
            )
        notes.append(f"the CPU runs a segment that was compiled for {step.device}: {reason}")
        return LoadedProgram(self._load_cpu_program(step.instead, step, False), CPU, tuple(step.instead.inputs))

    def _load_cpu_program(self, segment: Message, step: Message, is_sole: bool) -> Program:
        from nnadapter.drivers.onnxruntime.program import load_program

        self._uses_host = True
        model = messages.loadable_part(segment, self.segments, self.session_options)
        return load_program(
            model,
            self.session_options,
            spins=is_sole,
            single_threaded=segment.single_threaded,
            border=(len(segment.inputs), len(step.outputs)),
            without=tuple(segment.without),
        )

    def _bind(self, record: Message, sizes: ShapeSet | None, loaded: Mapping[int, LoadedProgram]) -> CompiledPlan:
        devices = [program.device for program in loaded.values()]
        binder = self.binder(record, devices, {number: program.inputs for number, program in loaded.items()})
        steps = [
            binder.step(number, program.program, program.inputs, takes_sizes=program.takes_sizes)
            for number, program in loaded.items()
        ]
        takes_sizes = any(program.takes_sizes for program in loaded.values())
        return binder.plan(steps, sizes.guards if sizes is not None and (takes_sizes or sizes.gives_sizes) else None)

    def binder(self, record: Message, devices: Sequence[str], reads: Mapping[int, tuple[str, ...]]) -> Binder:
        plan = _plan_of(self.file, record, devices)
        bindable = Bindable(
            plan=plan,
            reads=reads,
            overlap=_overlap_of(plan, reads, self.devices.streaming, record),
            constants={row.name: messages.read_array(row, self.file.container) for row in record.constants},
            nodes_of=lambda step: list(record.steps[step.segment].nodes),
            incidents=self.incidents,
            make_substitute=partial(self._make_substitute, record),
            checks={
                number: tuple(map(messages.read_check, step.checks))
                for number, step in enumerate(record.steps)
                if step.checks
            },
            make_cpu_fallback=self.make_cpu_fallback,
        )
        return Binder(self._plan_devices, self.arenas, bindable)

    def _make_substitute(
        self, record: Message, slots: Mapping[str, int], step: Step, error: BaseException | None
    ) -> Substitute:
        message = record.steps[step.segment]
        nodes = list(message.nodes)
        try:
            if not message.HasField("instead"):
                raise errors.CompiledModelError(
                    "the file has no segment for the CPU; compile the model again with fallback allowed"
                )
            loaded = self._load_cpu_segment(message, "it failed", [])
        except errors.NNAdapterError as second:
            if error is None:
                raise
            raise errors.ExecutionError(
                f"{run_failure(step, nodes, describe(error))}; no other device can run the segment: {describe(second)}",
                device=step.device,
                segment=step.segment,
                nodes=nodes,
                phase="run",
            ) from error
        inputs = tuple(slots[name] for name in loaded.inputs)
        pool = self._plan_devices.pools(NamedCalls(CPU, step.segment, nodes))(loaded.program)
        return Substitute(CPU, "the CPU", pool, inputs)


def _overlap_of(plan: Plan, reads: Reads, streaming: Set[str], record: Message) -> Overlap:
    """Return which steps may overlap; only steps that the file records may run in threads."""
    enqueued = enqueued_of(plan, streaming)
    is_unchanged = all(
        step.device == recorded_step.device for step, recorded_step in zip(plan.steps, record.steps, strict=True)
    )
    overlapping = {number for number, recorded_step in enumerate(record.steps) if recorded_step.alongside}
    handed = frozenset(overlapping if is_unchanged and not enqueued else ())
    return waiting(plan, needs_of(plan, reads), enqueued, handed)


def _plan_of(file: CompiledFile, record: Message, devices: Sequence[str]) -> Plan:
    nodes = tuple(
        Node(
            name=f"segment {number}",
            op_type=step.device,
            domain="",
            inputs=tuple(dict.fromkeys((*step.inputs, *step.program.inputs, *_read_by(step)))),
            outputs=tuple(step.outputs),
            captured=tuple(step.instead.inputs),
            origins=tuple(step.nodes),
        )
        for number, step in enumerate(record.steps)
    )
    graph = Graph(
        nodes=nodes,
        values=messages.values_by_name(record.values),
        constants=frozenset(row.name for row in record.constants),
        inputs=(*file.message.order, *record.open.size_class.given.names),
        outputs=tuple(row.name for row in file.message.outputs),
    )
    segments = [Segment(device, (number,)) for number, device in enumerate(devices)]
    return make_plan(graph, tuple(dict.fromkeys(devices)), {}, devices, segments, exact=True)


def _read_by(step: Message) -> list[str]:
    derived_names = frozenset(step.given.names)
    return [name for name in step.segment.inputs if name not in derived_names]
