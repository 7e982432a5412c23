"""Plans of a file some segments of which are compiled for each set of sizes. See `nnadapter.running.filling`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from nnadapter.compiled_models.loading import FilePlan, Loaded, Loader, step_of
from nnadapter.compiled_models.messages import Message
from nnadapter.compiled_models.open_sizes import HeldSizes, read_shape_derived_values
from nnadapter.compiled_models.traces import read_number
from nnadapter.drivers.crashes import NamedCalls
from nnadapter.drivers.interface import Program
from nnadapter.ir.tracing import Trace
from nnadapter.offering.filled_parts import SpecializablePart
from nnadapter.offering.part import Part
from nnadapter.process.closing import close_all
from nnadapter.running.executor import CompiledPlan
from nnadapter.running.filling import Build, ProgramOwner, ProgramSharer, SpecializedPrograms, Wanted, check_admitted


@dataclass(frozen=True, eq=False, kw_only=True)
class SpecializedFilePlan(ProgramSharer, FilePlan):
    """A plan of a file at one set of sizes, whose programs it shares with others of its class."""

    of: SpecializedPrograms[SpecializedFilePlan]


@dataclass(frozen=True, eq=False, kw_only=True)
class FilePlanSpecializations(ProgramOwner):
    """A class of shapes of a file; it does not run itself, but the plans that are filled."""

    held: HeldSizes
    filling: SpecializedPrograms[SpecializedFilePlan]


def is_filled(record: Message) -> bool:
    """Whether segments of a plan are compiled for each set of sizes."""
    return any(step.HasField("given") for step in record.steps)


def load_class(loader: Loader, record: Message) -> FilePlanSpecializations:
    """Return the class of a plan that is filled, with the programs that serve all sizes.

    Raises:
        CompiledModelError: the file is damaged, or has nothing that runs here.
        CompilationError: a segment that has to be compiled again is not.
    """
    held, notes, shared = loader.held_sizes(record), list[str](), dict[int, Loaded]()
    if held is None or held.trace is None:
        raise loader.file.container.damaged("a plan is for one set of sizes, and has segments for many")
    try:
        fillable = dict(_fillable(loader, record, held.trace))
        others = [number for number in range(len(record.steps)) if number not in fillable]
        loader.load_steps(record, held, others, shared, notes)
        return FilePlanSpecializations(held=held, filling=_filling(loader, record, held, fillable, shared, notes))
    except BaseException:
        close_all(loaded_step.program for loaded_step in shared.values())
        raise


def _fillable(loader: Loader, record: Message, trace: Trace) -> Mapping[int, SpecializablePart]:
    """The segments that are filled here: one whose device is absent is run by the CPU, which takes all sizes."""
    parts = {}
    for number, step in enumerate(record.steps):
        if step.HasField("given") and step.device in loader.devices.opened:
            model = loader.segments.open_model(step.segment, trace)
            given = read_shape_derived_values(step.given, trace, loader.segments)
            parts[number] = SpecializablePart(Part(model, tuple(step.segment.inputs)), given)
    return parts


def _filling(
    loader: Loader,
    record: Message,
    held: HeldSizes,
    fillable: Mapping[int, SpecializablePart],
    shared: Mapping[int, Loaded],
    notes: list[str],
) -> SpecializedPrograms[SpecializedFilePlan]:
    steps = range(len(record.steps))
    devices = [shared[number].device if number in shared else record.steps[number].device for number in steps]
    reads = {number: shared[number].inputs if number in shared else fillable[number].inputs for number in steps}
    binder = loader.binder(record, devices, reads)

    def wrap(
        plan: CompiledPlan, _: Mapping[int, float], of: SpecializedPrograms[SpecializedFilePlan]
    ) -> SpecializedFilePlan:
        told = tuple(dict.fromkeys(notes))
        return SpecializedFilePlan(plan=plan, record=record, notes=told, held=held, of=of)

    bound = {number: (step_of(binder, number, loaded_step), 0.0) for number, loaded_step in shared.items()}
    build = _build(loader, record, notes)
    return SpecializedPrograms(binder.steps, fillable, held.size_class, binder, bound, build, wrap)


def _build(loader: Loader, record: Message, notes: list[str]) -> Build:
    """Makes the program of a segment at some sizes: what its driver wrote for these, or compiled now."""
    written = {
        (number, tuple(map(read_number, row.key))): row.program.part
        for number, step in enumerate(record.steps)
        for row in step.filled
    }

    def build(wanted: Sequence[Wanted]) -> Iterator[tuple[Program, float]]:
        for step, part, numbers in wanted:
            started, device = time.perf_counter(), loader.devices.opened[step.device]
            about, program = (step.segment, list(record.steps[step.segment].nodes)), None
            if (step.segment, numbers) in written:
                program = loader.programs.deserialized(device, written[step.segment, numbers], about, notes)
            if program is None:
                check_admitted(device.context, NamedCalls(step.device, *about), part)
                program = loader.programs.compiled(device, part.model, None, len(record.steps) == 1, about)
            yield program, time.perf_counter() - started

    return build
