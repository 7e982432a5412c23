"""A context: one set of options. What has to do with models is imported when one is judged or compiled."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from nnadapter.drivers.arenas import Arenas
from nnadapter.drivers.capability import Profile
from nnadapter.drivers.fake_npu.device_memory import DeviceMemory
from nnadapter.drivers.fake_npu.options import FakeNpuOptions
from nnadapter.drivers.fake_npu.program import deserialize_program
from nnadapter.drivers.interface import Admission, Context, Program
from nnadapter.traces.trace import Trace
from partition.verdict import Verdict

if TYPE_CHECKING:
    from nnadapter.drivers.fake_npu.compiling import Compiler
    from nnadapter.ir.model import Model


class FakeNpuContext(Context):
    """The device under one set of options; safe to use from many threads."""

    def __init__(self, options: FakeNpuOptions, memory: DeviceMemory) -> None:
        self._options, self._memory = options, memory
        self.arenas = Arenas()
        """Working memory that all programs of this context share."""
        self._traced: tuple[Trace, str] | None = None

    def with_trace(self, trace: Trace, lane: str) -> FakeNpuContext:
        """See `Context.with_trace`: every instruction is an event."""
        self._traced = trace, lane
        return self

    def supported(self, model: Model) -> Sequence[Verdict]:
        """See `Context.supported`.

        Raises:
            InvalidModelError: the model is the first of its structure, and contradicts itself.
        """
        return self._compiler.supported(model)

    def admit(self, model: Model) -> Admission:
        """See `Context.admit`. Of a model that leaves sizes open, memory is judged when they are known."""
        return self._compiler.admit(model)

    def profile(self) -> Profile | None:
        """See `Context.profile`: none with the real clock, which measures the host's own processor."""
        return self._options.profile

    def compile(self, model: Model) -> Program:
        """See `Context.compile`."""
        return self._compiler.compile(model)

    def clone_with_constants(self, program: Program, model: Model) -> Program | None:
        """See `Context.clone_with_constants`; None if the lowering of one model does not hold for the other."""
        return self._compiler.clone_with_constants(program, model)

    def deserialize(self, blob: bytes) -> Program:
        """See `Context.deserialize`."""
        return self._deserialized(blob)

    def deserialize_view(self, blob: memoryview) -> Program:
        """See `Context.deserialize_view`: weights stay where they lie."""
        return self._deserialized(blob, is_checked=True)

    def close(self) -> None:
        """See `Context.close`."""
        if "_compiler" in vars(self):
            self._compiler.clear()
        self.arenas.close()

    def _deserialized(self, blob: bytes | memoryview, *, is_checked: bool = False) -> Program:
        around = self.arenas, self._memory, self._options.threads
        program = deserialize_program(blob, *around, is_checked=is_checked)
        program.needs.check(self._options)
        return program

    @cached_property
    def _compiler(self) -> Compiler:
        from nnadapter.drivers.fake_npu.compiling import Compiler

        return Compiler(self._options, self.arenas, self._memory, self._traced)
