"""Plans with dynamic shapes in a compiled file, and their specializations for concrete sizes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nnadapter.drivers.failures import NamedCalls
from nnadapter.drivers.interface import Program
from nnadapter.engine.executor import CompiledPlan
from nnadapter.engine.file_loading import FilePlan, Loaded, Loader, step_of
from nnadapter.engine.plan_source import LeasedPlan, ShapeTest
from nnadapter.engine.plan_store import PlanCache
from nnadapter.engine.shape_messages import HeldSizes, read_shape_derived_values
from nnadapter.engine.specialization import (
    Build,
    ProgramOwner,
    ProgramSharer,
    SegmentRequest,
    SpecializationRefusedError,
    SpecializedPrograms,
    check_admitted,
)
from nnadapter.engine.trace_messages import read_number
from nnadapter.files.messages import Message
from nnadapter.ir.symbolic_numbers import SymbolicTrace
from nnadapter.offering.part import Part, SpecializablePart
from nnadapter.onnx.signature import Shapes
from nnadapter.process.cache import Cache
from nnadapter.process.forking import new_lock
from nnadapter.process.resources import close_all


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


def _fillable(loader: Loader, record: Message, trace: SymbolicTrace) -> Mapping[int, SpecializablePart]:
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

    def build(wanted: Sequence[SegmentRequest]) -> Iterator[tuple[Program, float]]:
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


_MOST_REFUSED = 256


class OpenFilePlans:
    """The plans of one file that leave sizes open; usable from many threads.

    Args:
        records: of all of its plans.
        loader: of the file.
        plans: where plans are kept.
    """

    def __init__(self, records: Sequence[Message], loader: Loader, plans: PlanCache[FilePlan]) -> None:
        self._records = [record for record in records if record.HasField("open")]
        self._truths = [tuple(record.truths) for record in self._records]
        self._loader, self._plans = loader, plans
        self._classes: PlanCache[FilePlanSpecializations] = PlanCache(len(records), sys.maxsize)
        """Of devices that compile for fixed sizes: what their programs share counts for the plans that are filled."""
        self._held: dict[int, HeldSizes] = {}
        """At which shapes each holds, read when somebody asks; of one that was loaded, its own."""
        self._reading = new_lock()
        self._order: tuple[int, ...] = tuple(range(len(self._records)))
        """The one used last first."""
        self._refused: Cache[object, bool] = Cache("shapes that devices refuse", _MOST_REFUSED)
        """Of each plan: another one has other segments."""

    def take(self, use: object, shapes: Shapes, truths: Sequence[bool] = ()) -> LeasedPlan[FilePlan] | None:
        """Take the plan for these shapes, loaded now if it is not; None where there is none. See `PlanCache.take`.

        Args:
            use: see there.
            shapes: of inputs.
            truths: the choice that the plan is for.
        """
        for number in self._order:
            if self._truths[number] != tuple(truths):
                continue
            held = self._held_by(number)
            holds, sizes = held.at(shapes)
            if holds:
                taken = self._taken(use, number, held, shapes, sizes)
                if taken is not None:
                    self._remember(number)
                    return taken
        return None

    def serves(self, plan: FilePlan, declares: Callable[[Shapes], bool]) -> ShapeTest | None:
        """What says at which shapes a plan that was loaded holds; None for one that holds at one set of them.

        See `OpenPlan.serves`.
        """
        held = plan.held
        if held is None or isinstance(plan, SpecializedFilePlan):
            return None
        at = held.at
        if held.size_class is not None and held.bounds is None:  # it says of every size what it has to be
            return at
        return lambda shapes: at(shapes) if declares(shapes) else (False, None)

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._records)

    @property
    def held(self) -> list[HeldSizes]:
        """The shapes that each of them serves."""
        return [self._held_by(number) for number in range(len(self._records))]

    def broken(self, shapes: Shapes) -> list[str]:
        """Why each of them does not hold at these shapes, in words."""
        sizes = tuple(shapes.values())
        return [
            "a device refuses its segment at these sizes"
            if self._refused.get((number, sizes))
            else self._held_by(number).broken(shapes)
            for number in range(len(self._records))
        ]

    def close(self) -> None:
        """Drop the classes; their plans are dropped with the others."""
        self._classes.close()

    def _held_by(self, number: int) -> HeldSizes:
        known = self._held.get(number)
        if known is not None:
            return known
        with self._reading:
            if number not in self._held:
                held = self._loader.held_sizes(self._records[number])
                assert held is not None, "the plan leaves sizes open"
                self._held[number] = held
            return self._held[number]

    def _taken(
        self, use: object, number: int, held: HeldSizes, shapes: Shapes, sizes: Sequence[Any] | None
    ) -> LeasedPlan[FilePlan] | None:
        record = self._records[number]
        if is_filled(record):
            return self._filled(use, number, held, shapes, sizes)
        lease, plan = self._plans.take(use, (number,), lambda: self._loader.load(record))
        sizes_now = self._as_loaded(number, held, plan.held, shapes, sizes)
        if sizes_now is None:
            self._leave(use)
            return None
        return lease, plan, sizes_now[0]

    def _filled(
        self, use: object, number: int, held: HeldSizes, shapes: Shapes, sizes: Sequence[Any] | None
    ) -> LeasedPlan[FilePlan] | None:
        key = number, tuple(shapes.values())
        if self._refused.get(key):
            return None
        try:
            lease, plan = self._plans.take(use, key, lambda: self._fill(number, shapes))
        except SpecializationRefusedError:
            self._refused.put(key, True)
            self._leave(use)
            return None
        assert isinstance(plan, SpecializedFilePlan), "it was filled"
        sizes_now = self._as_loaded(number, held, plan.held, shapes, sizes)
        return lease, plan, plan.of.told(sizes_now[0] if sizes_now is not None else None)

    def _fill(self, number: int, shapes: Shapes) -> FilePlan:
        use, record = object(), self._records[number]
        try:
            _, of_class = self._classes.take(use, number, lambda: load_class(self._loader, record))
            self._held[number] = of_class.held
            holds, sizes = of_class.held.at(shapes)
            if not holds or sizes is None:
                raise SpecializationRefusedError("the class does not hold at these shapes as it was compiled here")
            return of_class.filling.at(sizes, self._plans.make_room)
        finally:
            self._classes.users.pop(use, None)
            self._classes.close_unused()

    def _as_loaded(
        self, number: int, before: HeldSizes, held: HeldSizes | None, shapes: Shapes, sizes: Sequence[Any] | None
    ) -> tuple[Sequence[Any] | None] | None:
        """What the programs are told of sizes; None where a plan does not hold, as its devices compiled it here.

        A driver numbers what follows from sizes anew, and may have decided on more of it.
        """
        if held is before or held is None:
            return (sizes,)
        self._held[number] = held
        holds, sizes = held.at(shapes)
        return (sizes,) if holds else None

    def _remember(self, number: int) -> None:
        if self._order[0] != number:
            self._order = (number, *(plan_number for plan_number in self._order if plan_number != number))

    def _leave(self, use: object) -> None:
        """End a use before its run; what was not made is forgotten."""
        self._plans.users.pop(use, None)
        self._plans.close_unused()
