"""Driver, device, context, program and execution of `faulty`."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from nnadapter import drivers
from nnadapter.drivers.capability import DeviceRole
from nnadapter.drivers.faulty.faults import (
    CallPoint,
    Faults,
    RetainedOutputs,
    Subject,
    TriggeredFault,
    act,
    alter_admission,
    alter_blob,
    alter_compatibility,
    alter_device_results,
    alter_results,
    alter_verdicts,
    make,
    overwrite_device_tensors,
    overwrite_inputs,
    subject_of,
    unwrapped,
    wrapped,
)
from nnadapter.drivers.faulty.script import CHECKING, VARIABLE, WRITING, Kind, Phase, Script, read_script, script_in
from nnadapter.drivers.interface import UNLIMITED
from nnadapter.drivers.registry import open_device
from nnadapter.errors import DeviceNotFoundError, DeviceUnavailableError, FaultScriptError
from nnadapter.ir.operand import Array
from nnadapter.records import replace


class FaultyExecution(drivers.Execution):
    """Execution with faults at runs and closing."""

    def __init__(
        self,
        inner: drivers.Execution,
        run: CallPoint | None,
        close: CallPoint | None,
        retained_outputs: RetainedOutputs | None = None,
    ) -> None:
        self._inner, self._run, self._close = inner, run, close
        self._retained_outputs = RetainedOutputs() if retained_outputs is None else retained_outputs
        self._carried_over: deque[list[TriggeredFault]] = deque()
        """Faults of runs that `inner` does not support; they apply when the host repeats such a run in another way."""

    def compute(self, inputs: Sequence[Array]) -> Sequence[Array]:
        return self._computed(inputs, self._inner.compute)

    def compute_within(self, inputs: Sequence[Array], control: drivers.Control) -> Sequence[Array]:
        return self._computed(inputs, partial(self._inner.compute_within, control=control))

    def specialize(self, sizes: Sequence[Any]) -> drivers.Execution:
        return FaultyExecution(self._inner.specialize(sizes), self._run, None, self._retained_outputs)

    def compute_into(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Sequence[Array]:
        return self._computed(inputs, partial(self._inner.compute_into, outputs=outputs))

    def compute_on_device(
        self, inputs: Sequence[drivers.DeviceTensor], control: drivers.Control = UNLIMITED
    ) -> Sequence[drivers.DeviceTensor] | None:
        return self._on_device(inputs, partial(self._inner.compute_on_device, control=control))

    def enqueue(
        self, inputs: Sequence[drivers.DeviceTensor], stream: drivers.Stream, control: drivers.Control = UNLIMITED
    ) -> Sequence[drivers.DeviceTensor] | None:
        return self._on_device(inputs, partial(self._inner.enqueue, stream=stream, control=control), stream)

    def close(self) -> None:
        try:
            act(self._close)
        finally:
            self._inner.close()

    def _computed(
        self, inputs: Sequence[Array], compute: Callable[[Sequence[Array]], Sequence[Array]]
    ) -> Sequence[Array]:
        due, is_begun = self._due()
        if not due:
            return compute(inputs)
        if _has(due, Kind.WRITES_INPUTS):
            inputs = overwrite_inputs(inputs)
        due = due if is_begun else self._make(due)
        results = alter_results(compute(inputs), due)
        if _has(due, Kind.KEEPS_OUTPUTS):
            self._retained_outputs.keep(results)
        return results

    def _on_device(
        self,
        inputs: Sequence[drivers.DeviceTensor],
        compute: Callable[[Sequence[drivers.DeviceTensor]], Sequence[drivers.DeviceTensor] | None],
        stream: drivers.Stream | None = None,
    ) -> Sequence[drivers.DeviceTensor] | None:
        due, is_begun = self._due()
        remaining_faults = due if is_begun else self._make(due)
        results = compute(inputs)
        if results is None:
            self._carried_over.append(remaining_faults)
            return None
        if not due:
            return results
        if stream is not None:
            stream.synchronize()
        if _has(due, Kind.WRITES_INPUTS):
            overwrite_device_tensors(inputs)
        results = alter_device_results(results, remaining_faults)
        if _has(due, Kind.KEEPS_OUTPUTS):
            self._retained_outputs.keep(results)
        return results

    def _due(self) -> tuple[list[TriggeredFault], bool]:
        """Return due faults, and True if an unsupported run has applied some of them already."""
        self._retained_outputs.write()
        if self._carried_over:
            return self._carried_over.popleft(), True
        return [] if self._run is None else self._run.due(), False

    def _make(self, due: Sequence[TriggeredFault]) -> list[TriggeredFault]:
        return [] if self._run is None or not due else make(self._run, due)


def _has(due: Sequence[TriggeredFault], kind: Kind) -> bool:
    return any(triggered_fault.fault.kind is kind for triggered_fault in due)


class FaultyProgram(drivers.Program):
    """Program that injects faults."""

    def __init__(self, inner: drivers.Program, faults: Faults, subject: Subject) -> None:
        self.inner = inner
        self._faults, self._subject = faults, subject
        self._run = faults.moment(Phase.RUN, subject)
        self._close = faults.moment(Phase.CLOSE, subject)

    def create_execution(self) -> drivers.Execution:
        act(self._faults.moment(Phase.CREATE, self._subject))
        execution = self.inner.create_execution()
        is_as_it_is = self._run is None and self._close is None
        return execution if is_as_it_is else FaultyExecution(execution, self._run, self._close)

    @property
    def memory_bytes(self) -> int:
        return self.inner.memory_bytes

    @property
    def execution_bytes(self) -> int:
        return self.inner.execution_bytes

    @property
    def shared_bytes(self) -> Mapping[Hashable, int]:
        return self.inner.shared_bytes

    def serialize(self) -> bytes | None:
        due = act(self._faults.moment(Phase.DESERIALIZE, self._subject, WRITING))
        blob = self.inner.serialize()
        if blob is None:
            return None
        previous_blob, self._faults.last_blob = self._faults.last_blob, wrapped(blob, self._subject)
        altered_blob = wrapped(blob, self._subject)
        for triggered_fault in due:
            altered_blob = alter_blob(blob, previous_blob, triggered_fault)
        return altered_blob

    def close(self) -> None:
        try:
            act(self._close)
        finally:
            self.inner.close()


def inside(program: drivers.Program) -> drivers.Program:
    """Return the program of the wrapped device; an unwrapped program is returned unchanged."""
    return program.inner if isinstance(program, FaultyProgram) else program


class FaultyContext(drivers.Context):
    """Context that injects faults."""

    def __init__(self, inner: drivers.Context, faults: Faults) -> None:
        self._inner, self._faults = inner, faults

    def supported(self, model: drivers.SegmentModel) -> Sequence[drivers.Verdict]:
        subject = subject_of(model)
        due = act(self._faults.moment(Phase.JUDGE, subject))
        verdicts = self._inner.supported(model)
        return alter_verdicts(verdicts, due, subject) if due else verdicts

    def admit(self, model: drivers.SegmentModel) -> drivers.Admission:
        due = act(self._faults.moment(Phase.ADMIT, subject_of(model)))
        return alter_admission(self._inner.admit(model), due)

    def profile(self) -> drivers.Profile | None:
        return self._inner.profile()

    def kernels(self) -> Sequence[drivers.Kernel]:
        return self._inner.kernels()

    def compile(self, model: drivers.SegmentModel) -> drivers.Program:
        return self._compiled(self._inner.compile, model)

    def compile_whole_graph(self, model: drivers.SegmentModel) -> drivers.Program:
        return self._compiled(self._inner.compile_whole_graph, model)

    def clone_with_constants(self, program: drivers.Program, model: drivers.SegmentModel) -> drivers.Program | None:
        subject = subject_of(model)
        act(self._faults.moment(Phase.COMPILE, subject))
        bound = self._inner.clone_with_constants(inside(program), model)
        return None if bound is None else FaultyProgram(bound, self._faults, subject)

    def deserialize(self, blob: bytes) -> drivers.Program:
        return self._read(memoryview(blob), lambda view: self._inner.deserialize(bytes(view)))

    def deserialize_view(self, blob: memoryview) -> drivers.Program:
        return self._read(blob, self._inner.deserialize_view)

    def check_blob(self, blob: memoryview) -> drivers.Compatibility | None:
        contents, subject = unwrapped(blob)
        due = act(self._faults.moment(Phase.DESERIALIZE, subject, CHECKING))
        compatibility = self._inner.check_blob(contents)
        return alter_compatibility(compatibility) if due else compatibility

    def with_session_options(self, options: Any) -> drivers.Context:
        return FaultyContext(self._inner.with_session_options(options), self._faults)

    def with_trace(self, trace: drivers.Trace, lane: str) -> drivers.Context:
        return FaultyContext(self._inner.with_trace(trace, lane), self._faults)

    def close(self) -> None:
        try:
            act(self._faults.moment(Phase.CLOSE))
        finally:
            self._faults.log()
            self._inner.close()

    def _compiled(
        self, compiles: Callable[[drivers.SegmentModel], drivers.Program], model: drivers.SegmentModel
    ) -> drivers.Program:
        subject = subject_of(model)
        act(self._faults.moment(Phase.COMPILE, subject))
        return FaultyProgram(compiles(model), self._faults, subject)

    def _read(self, blob: memoryview, reads: Callable[[memoryview], drivers.Program]) -> drivers.Program:
        contents, subject = unwrapped(blob)
        act(self._faults.moment(Phase.DESERIALIZE, subject))
        return FaultyProgram(reads(contents), self._faults, subject)


_EXAMPLE = "fake_npu"
OPTIONS = (
    drivers.Option(
        name="script",
        default="",
        help=f"Script of faults: a TOML file, or its text (docs/failures.md); by default, {VARIABLE}.",
        affects_speed=False,
    ),
    drivers.Option(
        name="seed",
        default=-1,
        minimum=-1,
        help="Seed of random choices; -1 for the script's seed.",
        affects_speed=False,
    ),
)


class FaultyDriver(drivers.Driver):
    """Driver of devices that wrap others and inject faults."""

    def open(self, device_id: str) -> drivers.Device:
        """Open the wrapped device, and apply faults of the phase `open` from the script in the environment."""
        if device_id in ("", "0"):
            raise DeviceNotFoundError(
                f"faulty wraps another device: name it after the colon, as in 'faulty:{_EXAMPLE}' (docs/failures.md)"
            )
        script = script_in(os.environ)
        act(Faults(script).moment(Phase.OPEN))
        return FaultyDevice(device_id, open_device(device_id))

    def devices(self) -> Sequence[drivers.DeviceInfo]:
        return (
            drivers.DeviceInfo(
                name=f"faulty:{_EXAMPLE}",
                vendor="nnadapter",
                sub_type="injects faults; faulty:NAME wraps any device (docs/failures.md)",
                version="1.0",
            ),
        )


class FaultyDevice(drivers.Device):
    """Device that wraps another one and injects faults."""

    def __init__(self, name: str, inner: drivers.Device) -> None:
        self._inner = inner
        self._writes_inputs = False
        conflicts = {option.name for option in inner.capability.options} & {option.name for option in OPTIONS}
        if conflicts:
            raise DeviceUnavailableError(
                f"device 'faulty:{name}' cannot be used: {name!r} already has options named "
                f"{', '.join(map(repr, sorted(conflicts)))}"
            )

    @cached_property
    def capability(self) -> drivers.Capability:
        inner = self._inner.capability
        return replace(inner, role=DeviceRole.ACCELERATOR, options=(*inner.options, *OPTIONS))

    def create_context(self, options: drivers.OptionValues) -> drivers.Context:
        faulty_options = {option.name: options[option.name] for option in OPTIONS}
        inner = {name: value for name, value in options.items() if name not in faulty_options}
        script = _script_of(str(faulty_options["script"]))
        if not script.faults:
            return self._inner.create_context(inner)
        self._writes_inputs |= any(fault.kind is Kind.WRITES_INPUTS for _, fault in script)
        faults = Faults(script, int(faulty_options["seed"]))  # type: ignore[arg-type]  # a number, as the table says
        act(faults.moment(Phase.CONTEXT))
        return FaultyContext(self._inner.create_context(inner), faults)

    @property
    def has_memory(self) -> bool:
        return self._inner.has_memory

    def allocate(self, nbytes: int) -> drivers.Memory:
        return self._inner.allocate(nbytes)

    def from_dlpack(self, tensor: Any) -> drivers.DeviceTensor | None:
        return self._inner.from_dlpack(tensor)

    @property
    def has_raw_inputs(self) -> bool:
        return self._inner.has_raw_inputs or self._writes_inputs

    @property
    def has_streams(self) -> bool:
        return self._inner.has_streams

    def create_stream(self) -> drivers.Stream:
        return self._inner.create_stream()

    def create_event(self) -> drivers.Event:
        return self._inner.create_event()

    def memory_statistics(self) -> drivers.MemoryStatistics | None:
        return self._inner.memory_statistics()

    def close(self) -> None:
        """Do nothing, because the wrapped device may have other users."""


def _script_of(option: str) -> Script:
    if not option:
        return script_in(os.environ)
    script = read_script(option)
    for number, fault in script:
        if fault.phase is Phase.OPEN:
            raise FaultScriptError(
                f"script of faults, fault {number}, key 'phase': phase 'open' comes before options are known, so the "
                f"option 'script' cannot have it; put the script in {VARIABLE}",
                entry=f"fault {number}",
                key="phase",
            )
    return script
