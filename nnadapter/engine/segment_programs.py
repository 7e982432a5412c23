"""Programs of segments: compiled, or cloned from an equal segment with other constants."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

from nnadapter.candidates.part import Part
from nnadapter.drivers import Program
from nnadapter.drivers.boundary import checked_program, clone_with_constants
from nnadapter.drivers.failures import NamedCalls
from nnadapter.drivers.tensor_copies import TENSORS
from nnadapter.engine.plan_devices import making
from nnadapter.engine.specialization import SegmentRequest, check_admitted
from nnadapter.ir.model import Model
from nnadapter.ir.structure import program_sharing_key_of
from nnadapter.planning.judgment import Atoms
from nnadapter.planning.setting import Setting
from nnadapter.process.resources import close_all
from partition.plan import Plan, Step

_MOST_CLONE_TRIES = 4


class SegmentProgram(NamedTuple):
    """Program of a segment, and the names of the values that it reads."""

    program: Program
    inputs: tuple[str, ...]
    seconds: float
    """Compile time."""
    sharing_key: Hashable = None
    """Equal for segments of a device that differ only in names and constants; None if the program cannot be shared."""
    takes_sizes: bool = False
    """True if every run passes the symbolic sizes to the program."""
    cloned_from: Hashable = None
    """Key of the segment with the original program; None if this one was compiled."""


def atoms_of(plan: Plan, step: Step) -> Atoms:
    """Return a segment's device and atoms, which identify it in plans with other cuts."""
    return step.device, tuple(sorted({plan.graph.atom_of[node] for node in step.nodes}))


class SegmentPrograms:
    """Programs of segments; keys are results of `atoms_of`.

    The program of a segment that leaves the plan stays open until the next call of `keep_only`.
    """

    def __init__(self) -> None:
        self._programs: dict[Hashable, SegmentProgram] = {}
        self._compiled: dict[Hashable, list[Hashable]] = {}

    def __contains__(self, key: Hashable) -> bool:
        return key in self._programs

    def __getitem__(self, key: Hashable) -> SegmentProgram:
        return self._programs[key]

    def add(self, key: Hashable, program: SegmentProgram) -> None:
        self._programs[key] = program
        if program.sharing_key is not None and program.cloned_from is None:
            self._compiled.setdefault(program.sharing_key, []).append(key)

    def clonable(self, sharing_key: Hashable) -> list[Hashable]:
        """Return the keys of at most `_MOST_CLONE_TRIES` compiled segments with this sharing key, newest first."""
        return self._compiled.get(sharing_key, [])[: -_MOST_CLONE_TRIES - 1 : -1]

    def of(self, plan: Plan) -> list[SegmentProgram]:
        return [self._programs[atoms_of(plan, step)] for step in plan.steps]

    def clones(self, plan: Plan) -> dict[int, int]:
        """Return segments with cloned programs, mapped to the originals' segments."""
        segments: dict[Hashable, int] = {atoms_of(plan, step): step.segment for step in plan.steps}
        sources = {number: self._programs[key].cloned_from for key, number in segments.items()}
        return {number: segments[source] for number, source in sources.items() if source in segments}

    def keep_only(self, plan: Plan) -> None:
        used = {atoms_of(plan, step) for step in plan.steps}
        close_all([self._programs.pop(key).program for key in self._programs.keys() - used])

    def close(self) -> None:
        close_all(program.program for program in self._programs.values())


class SegmentCompiler:
    """Compiler of single segments, on the devices of a session."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting

    def compile(
        self, part: Part, calls: NamedCalls, sharing_key: Hashable = None, *, is_sole: bool = False
    ) -> SegmentProgram:
        """Compile a segment that the device admitted. `calls` names the device and its methods in errors.

        `is_sole` is True if the segment is the entire plan.
        """
        started = time.perf_counter()
        context = self._setting.by_name[calls.device].context
        call = "compile_whole_graph" if is_sole else "compile"
        with making(self._setting.trace, calls.device, "compile", *calls.about):
            program = checked_program(calls[call](getattr(context, call), part.model))
        return SegmentProgram(
            program, part.inputs, time.perf_counter() - started, sharing_key, _has_dynamic_shapes(part)
        )

    def clone_or_compile(
        self, part: Part, calls: NamedCalls, programs: SegmentPrograms, *, is_sole: bool
    ) -> SegmentProgram:
        """Clone the program of a segment that differs only in names and constants; otherwise compile."""
        TENSORS.free_orphans()
        if is_sole or not isinstance(part.model, Model) or part.model.has_dynamic_shapes:
            return self.compile(part, calls, is_sole=is_sole)
        sharing_key = calls.device, program_sharing_key_of(part.model)
        return self._clone(part, calls, sharing_key, programs) or self.compile(part, calls, sharing_key)

    def compile_specialized(
        self, requests: Sequence[SegmentRequest], calls: Mapping[int, NamedCalls], *, is_sole: bool
    ) -> Iterator[tuple[Program, float]]:
        """Yield the programs of specialized segments and their compile times.

        Each segment is admitted separately, since verdicts may depend on constants.
        """
        programs = SegmentPrograms()
        for step, part, _ in requests:  # all checks first: half the time of alternating
            check_admitted(self._setting.by_name[step.device].context, calls[step.segment], part)
        for step, part, _ in requests:
            program = self.clone_or_compile(part, calls[step.segment], programs, is_sole=is_sole)
            # yield before storing: the caller must own the program before an interrupt can come
            yield program.program, program.seconds
            programs.add(step.segment, program)

    def _clone(
        self, part: Part, calls: NamedCalls, sharing_key: Hashable, programs: SegmentPrograms
    ) -> SegmentProgram | None:
        started, context = time.perf_counter(), self._setting.by_name[calls.device].context
        for key in programs.clonable(sharing_key):
            with making(self._setting.trace, calls.device, "clone_with_constants", *calls.about):
                clone = calls["clone_with_constants"](clone_with_constants, context, programs[key].program, part.model)
            if clone is not None:
                return SegmentProgram(clone, part.inputs, time.perf_counter() - started, sharing_key, cloned_from=key)
        return None


def _has_dynamic_shapes(part: Part) -> bool:
    return isinstance(part.model, Model) and part.model.has_dynamic_shapes
