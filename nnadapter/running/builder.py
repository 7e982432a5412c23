"""Programs of segments: compiled, or bound to an equal segment that is compiled already."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

from nnadapter.drivers.boundary import checked_program, clone_with_constants
from nnadapter.drivers.failures import NamedCalls
from nnadapter.drivers.interface import Program
from nnadapter.drivers.tensor_copies import TENSORS
from nnadapter.ir.model import Model
from nnadapter.ir.structure import program_sharing_key_of as likeness_of_model
from nnadapter.offering.part import Part
from nnadapter.planning.judgment import Atoms
from nnadapter.planning.setting import Setting
from nnadapter.planning.settling import Partitioning
from nnadapter.process.resources import close_all
from nnadapter.running.binder import Binder
from nnadapter.running.bound_step import BoundStep
from nnadapter.running.by_trace import making
from nnadapter.running.filling import SegmentRequest, check_admitted
from partition.plan import Plan, Step

_TRIES = 4
"""Programs that a segment is tried to be bound to."""
Likeness = Hashable
"""What segments have in common that may share a program, each with its own constants."""


class Built(NamedTuple):
    """A compiled segment, and the values that its inputs stand for."""

    program: Program
    inputs: tuple[str, ...]
    seconds: float
    """What compiling took."""
    program_sharing_key: Likeness | None = None
    """What it has in common with models that may be bound to its program; None where it is never asked."""
    takes_sizes: bool = False
    """Its model is adapter IR that leaves sizes open."""
    twin: Hashable = None
    """The segment whose program it was bound to; None if it was compiled."""


def program_sharing_key_of(device: str, part: Part) -> Likeness | None:
    """Equal for segments of a device that differ in names and in what constants hold; None where that is not known."""
    if not isinstance(part.model, Model) or part.model.has_dynamic_shapes:
        return None
    return device, likeness_of_model(part.model)


class Programs:
    """The programs of a plan in the making, by segment. What is no longer in the plan is kept until `keep_only`."""

    def __init__(self) -> None:
        self._built: dict[Hashable, Built] = {}
        self._compiled: dict[Likeness, list[Hashable]] = {}

    def __contains__(self, key: Hashable) -> bool:
        """Whether that segment was built."""
        return key in self._built

    def __getitem__(self, key: Hashable) -> Built:
        """What was built for a segment."""
        return self._built[key]

    def add(self, key: Hashable, built: Built) -> None:
        """Keep what was built for a segment."""
        self._built[key] = built
        if built.program_sharing_key is not None and built.twin is None:
            self._compiled.setdefault(built.program_sharing_key, []).append(key)

    def alike(self, likeness: Likeness) -> list[Hashable]:
        """Segments with that likeness that were compiled, the newest first, as many as are worth a try."""
        return self._compiled.get(likeness, [])[: -_TRIES - 1 : -1]

    def twins(self, plan: Plan) -> dict[int, int]:
        """Segment -> the one whose program it was bound to."""
        segments: dict[Hashable, int] = {atoms_of(plan, step): step.segment for step in plan.steps}
        twin_atoms = {number: self._built[key].twin for key, number in segments.items()}
        return {number: segments[twin] for number, twin in twin_atoms.items() if twin in segments}

    def keep_only(self, plan: Plan) -> None:
        """Close programs of segments that the plan does not have."""
        used = {atoms_of(plan, step) for step in plan.steps}
        close_all([self._built.pop(key).program for key in self._built.keys() - used])

    def close(self) -> None:
        """Close all."""
        close_all(built.program for built in self._built.values())


def calls_about(partitioning: Partitioning, step: Step) -> NamedCalls:
    """The calls of a step's device about it."""
    return NamedCalls(step.device, step.segment, nodes_of(partitioning, step))


def nodes_of(partitioning: Partitioning, step: Step) -> list[str]:
    """Return the names of the nodes in a step."""
    return [partitioning.plan.graph.nodes[node].name for node in step.nodes]


def bound_by(binder: Binder, position: int, built: Built) -> BoundStep:
    """Return the step at a position of a plan with what was built for it."""
    return binder.step(position, built.program, built.inputs, is_told_sizes=built.takes_sizes)


def atoms_of(plan: Plan, step: Step) -> Atoms:
    """What a segment is known by, however the graph is cut around it."""
    return step.device, tuple(sorted({plan.graph.atom_of[node] for node in step.nodes}))


class Builder:
    """Has the devices of one setting make programs."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting

    def built(self, part: Part, calls: NamedCalls, likeness: Likeness | None = None, *, alone: bool = False) -> Built:
        """Compile a part that its device admitted; `alone` where it is all of a plan."""
        started = time.perf_counter()
        context = self._setting.by_name[calls.device].context
        call = "compile_whole_graph" if alone else "compile"
        with making(self._setting.trace, calls.device, "compile", *calls.about):
            program = checked_program(calls[call](getattr(context, call), part.model))
        is_told_sizes = isinstance(part.model, Model) and part.model.has_dynamic_shapes
        return Built(program, part.inputs, time.perf_counter() - started, likeness, is_told_sizes)

    def like(
        self, part: Part, calls: NamedCalls, likeness: Likeness | None, programs: Programs, *, alone: bool
    ) -> Built:
        """A part that its device admitted: by a program of one that is like it, or compiled.

        Args:
            part: the part.
            calls: of its device, about it.
            likeness: of it.
            programs: those that were made.
            alone: it is all of a plan.
        """
        TENSORS.free_orphans()
        bound = self._bound(part, calls, likeness, programs) if likeness is not None else None
        return bound or self.built(part, calls, likeness, alone=alone)

    def filled(
        self, wanted: Sequence[SegmentRequest], calls: Mapping[int, NamedCalls], *, alone: bool
    ) -> Iterator[tuple[Program, float]]:
        """The programs of filled segments, see `filling.Build`.

        The device is asked about each, also where it took one that is like it: what it says may hang on contents.

        Args:
            wanted: the segments.
            calls: of their devices, about each, by segment.
            alone: there is one, and it is all of the plan.
        """
        made, by_name = Programs(), self._setting.by_name
        for step, part, _ in wanted:  # one thing for all after the other: half the time of all things for each
            check_admitted(by_name[step.device].context, calls[step.segment], part)
        for step, part, _ in wanted:
            likeness = None if alone else program_sharing_key_of(step.device, part)
            built = self.like(part, calls[step.segment], likeness, made, alone=alone)
            yield built.program, built.seconds  # first: nobody has it before, and an interrupt may come any time
            made.add(step.segment, built)

    def _bound(self, part: Part, calls: NamedCalls, likeness: Likeness, programs: Programs) -> Built | None:
        """The part by a program of one that is like it; None where it has to be compiled."""
        started, context = time.perf_counter(), self._setting.by_name[calls.device].context
        for twin in programs.alike(likeness):
            with making(self._setting.trace, calls.device, "clone_with_constants", *calls.about):
                bound = calls["clone_with_constants"](clone_with_constants, context, programs[twin].program, part.model)
            if bound is not None:
                return Built(bound, part.inputs, time.perf_counter() - started, likeness, twin=twin)
        return None
