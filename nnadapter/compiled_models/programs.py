"""Programs of a file's devices: what a driver wrote, or the kept segment compiled again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nnadapter.compiled_models.devices import FileDevice
from nnadapter.compiled_models.fitting import reason_against
from nnadapter.compiled_models.parts import PROGRAM
from nnadapter.drivers.border import bind, checked_program
from nnadapter.drivers.crashes import named_call
from nnadapter.drivers.interface import Program
from nnadapter.errors import FAILURES, describe
from nnadapter.files.container.reading import Container
from nnadapter.running.by_trace import making
from nnadapter.traces.trace import Trace


@dataclass(frozen=True, eq=False)
class Programs:
    """Asks drivers for programs."""

    container: Container
    """The file."""
    trace: Trace

    def deserialized(
        self, device: FileDevice, part: int, about: tuple[int, Sequence[str]], notes: list[str]
    ) -> Program | None:
        """The program that the driver wrote; None where it does not fit."""
        blob = self.container.contents(part, PROGRAM)
        why = reason_against(device, blob, about)
        if not why:
            try:
                with making(self.trace, device.name, "deserialize", *about):
                    deserialize = named_call(device.name, "deserialize", *about)
                    return checked_program(deserialize(device.context.deserialize_view, blob))
            except FAILURES as error:
                why = describe(error)
        notes.append(f"segment {about[0]} was compiled again for {device.name}: {why}")
        return None

    def compiled(
        self, device: FileDevice, model: Any, twin: Program | None, alone: bool, about: tuple[int, Sequence[str]]
    ) -> Program:
        """The program of a kept segment."""
        if twin is not None:
            with making(self.trace, device.name, "bind", *about):
                bound = named_call(device.name, "bind", *about)(bind, device.context, twin, model)
            if bound is not None:
                return checked_program(bound)
        call = "compile_whole" if alone else "compile"
        with making(self.trace, device.name, "compile", *about):
            compiled = named_call(device.name, call, *about)(getattr(device.context, call), model)
            return checked_program(compiled)
