"""Makes programs of segments: compiled, or bound to one that was compiled and is like it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from nnadapter.drivers.border import bind, checked_program
from nnadapter.drivers.crashes import NamedCalls
from nnadapter.drivers.interface import Program
from nnadapter.drivers.kept_memory import TENSORS
from nnadapter.ir.model import Model
from nnadapter.offering.part import Part
from nnadapter.planning.setting import Setting
from nnadapter.running.built import Built, Likeness, Programs, program_sharing_key_of
from nnadapter.running.by_trace import making
from nnadapter.running.filling import Wanted, check_admitted


class Builder:
    """Has the devices of one setting make programs."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting

    def built(self, part: Part, calls: NamedCalls, likeness: Likeness | None = None, *, alone: bool = False) -> Built:
        """Compile a part that its device admitted; `alone` where it is all of a plan."""
        started = time.perf_counter()
        context = self._setting.by_name[calls.device].context
        call = "compile_whole" if alone else "compile"
        with making(self._setting.trace, calls.device, "compile", *calls.about):
            program = checked_program(calls[call](getattr(context, call), part.model))
        is_told_sizes = isinstance(part.model, Model) and part.model.is_open
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
        TENSORS.free_gone()
        bound = self._bound(part, calls, likeness, programs) if likeness is not None else None
        return bound or self.built(part, calls, likeness, alone=alone)

    def filled(
        self, wanted: Sequence[Wanted], calls: Mapping[int, NamedCalls], *, alone: bool
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
            with making(self._setting.trace, calls.device, "bind", *calls.about):
                bound = calls["bind"](bind, context, programs[twin].program, part.model)
            if bound is not None:
                return Built(bound, part.inputs, time.perf_counter() - started, likeness, twin=twin)
        return None
