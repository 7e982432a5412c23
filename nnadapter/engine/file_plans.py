"""Dynamic plans and templates of a compiled file, loaded when shapes first need them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from nnadapter.candidates.part import Part, SpecializablePart
from nnadapter.drivers.failures import NamedCalls
from nnadapter.drivers.interface import Program
from nnadapter.engine.dynamic_plans import DynamicPlan, DynamicPlans
from nnadapter.engine.executor import CompiledPlan
from nnadapter.engine.file_loading import FilePlan, LoadedProgram, Loader
from nnadapter.engine.plan_store import PlanCache
from nnadapter.engine.shape_messages import read_number, read_shape_derived_values
from nnadapter.engine.shape_sets import ShapeSet
from nnadapter.engine.specialization import Build, SegmentRequest, SpecializedPrograms, check_admitted
from nnadapter.files.messages import Message
from nnadapter.ir.symbolic_numbers import SymbolicTrace
from nnadapter.onnx.signature import Shapes
from nnadapter.process.resources import close_all, new_lock


def is_template(record: Message) -> bool:
    """Return True if segments of a Plan message are compiled for each set of sizes."""
    return any(step.HasField("given") for step in record.steps)


def load_template(loader: Loader, record: Message) -> FilePlan:
    """Load a template: programs that serve all sizes, and segments to specialize."""
    shape_set, notes, shared = loader.shape_set_of(record), list[str](), dict[int, LoadedProgram]()
    if shape_set is None or shape_set.trace is None:
        raise loader.file.container.damaged("a static plan has segments with dynamic shapes")
    try:
        specializable = dict(_specializable(loader, record, shape_set.trace))
        shared_steps = [number for number in range(len(record.steps)) if number not in specializable]
        loader.load_steps(record, shape_set, shared_steps, shared, notes)
        return _bind_template(loader, record, shape_set, specializable, shared, notes)
    except BaseException:
        close_all(loaded_step.program for loaded_step in shared.values())
        raise


def _specializable(loader: Loader, record: Message, trace: SymbolicTrace) -> Mapping[int, SpecializablePart]:
    """Return the segments to specialize, by position. Absent devices have none, since the CPU takes all sizes."""
    parts = {}
    for number, step in enumerate(record.steps):
        if step.HasField("given") and step.device in loader.devices.opened:
            model = loader.segments.dynamic_model(step.segment, trace)
            derived_values = read_shape_derived_values(step.given, trace, loader.segments)
            parts[number] = SpecializablePart(Part(model, tuple(step.segment.inputs)), derived_values)
    return parts


def _bind_template(
    loader: Loader,
    record: Message,
    shape_set: ShapeSet,
    specializable: Mapping[int, SpecializablePart],
    shared: Mapping[int, LoadedProgram],
    notes: list[str],
) -> FilePlan:
    steps = range(len(record.steps))
    devices = [shared[number].device if number in shared else record.steps[number].device for number in steps]
    reads = {number: shared[number].inputs if number in shared else specializable[number].inputs for number in steps}
    binder = loader.binder(record, devices, reads)

    def wrap(plan: CompiledPlan, _: Mapping[int, float], programs: SpecializedPrograms[FilePlan]) -> FilePlan:
        return FilePlan(plan=plan, record=record, notes=tuple(dict.fromkeys(notes)), programs=programs)

    bound = {
        number: (binder.step(number, program.program, program.inputs, takes_sizes=program.takes_sizes), 0.0)
        for number, program in shared.items()
    }
    build = _build(loader, record, notes)
    programs = SpecializedPrograms(specializable, shape_set.guards, binder, bound, build, wrap)
    return FilePlan(plan=binder.plan([]), record=record, shapes=shape_set, programs=programs, is_template=True)


def _build(loader: Loader, record: Message, notes: list[str]) -> Build:
    written = {
        (number, tuple(map(read_number, row.key))): row.program.part
        for number, step in enumerate(record.steps)
        for row in step.filled
    }

    def build(requests: Sequence[SegmentRequest]) -> Iterator[tuple[Program, float]]:
        for step, part, numbers in requests:
            started, device = time.perf_counter(), loader.devices.opened[step.device]
            about, program = (step.segment, list(record.steps[step.segment].nodes)), None
            if (step.segment, numbers) in written:
                program = loader.deserialize(device, written[step.segment, numbers], about, notes)
            if program is None:
                check_admitted(device.context, NamedCalls(step.device, *about), part)
                program = loader.compile(device, part.model, None, len(record.steps) == 1, about)
            yield program, time.perf_counter() - started

    return build


class FileDynamicPlans(DynamicPlans[FilePlan]):
    """Plans with dynamic shapes of a compiled file. Thread-safe."""

    def __init__(self, records: Sequence[Message], loader: Loader, plans: PlanCache[FilePlan]) -> None:
        super().__init__(plans, len(records), "shapes that devices refuse")
        self._records = [record for record in records if record.HasField("open")]
        self._loader = loader
        self._reading = new_lock()
        self._all = tuple(
            DynamicPlan((number,), None, is_template=is_template(record), branch=tuple(record.truths))
            for number, record in enumerate(self._records)
        )
        self._entries = self._all

    @property
    def count(self) -> int:
        return len(self._records)

    @property
    def shape_sets(self) -> list[ShapeSet]:
        return list(map(self.shapes_of, self._all))

    def why_not(self, shapes: Shapes) -> list[str]:
        sizes = tuple(shapes.values())
        return [
            "a device refuses its segment at these sizes"
            if self._refused.get((entry.key, sizes))
            else self.shapes_of(entry).why_not(shapes)
            for entry in self._all
        ]

    def make(self, entry: DynamicPlan) -> FilePlan:
        record = self._record_of(entry)
        return load_template(self._loader, record) if entry.is_template else self._loader.load(record)

    def shapes_of(self, entry: DynamicPlan) -> ShapeSet:
        if entry.shapes is None:
            with self._reading:
                if entry.shapes is None:
                    entry.shapes = self._loader.shape_set_of(self._record_of(entry))
        return super().shapes_of(entry)

    def _record_of(self, entry: DynamicPlan) -> Message:
        return self._records[self._all.index(entry)]
