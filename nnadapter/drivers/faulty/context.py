"""A context around another one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nnadapter.drivers.faulty.acting import act
from nnadapter.drivers.faulty.answers import lie, lie_of_blob, lie_of_segment
from nnadapter.drivers.faulty.blobs import unwrapped
from nnadapter.drivers.faulty.faults import Faults
from nnadapter.drivers.faulty.kinds import CHECKING, Phase
from nnadapter.drivers.faulty.program import FaultyProgram, inside
from nnadapter.drivers.faulty.subjects import subject_of
from nnadapter.drivers.interface import Admission, Compatibility, Context, Program, SegmentModel
from nnadapter.drivers.kernel import Kernel
from nnadapter.drivers.profile import Profile
from nnadapter.traces.trace import Trace
from partition.verdict import Verdict


class FaultyContext(Context):
    """What the context inside does, and the faults of a script."""

    def __init__(self, inner: Context, faults: Faults) -> None:
        self._inner, self._faults = inner, faults

    def supported(self, model: SegmentModel) -> Sequence[Verdict]:
        """See `Context.supported`."""
        subject = subject_of(model)
        due = act(self._faults.moment(Phase.JUDGE, subject))
        verdicts = self._inner.supported(model)
        return lie(verdicts, due, subject) if due else verdicts

    def admit(self, model: SegmentModel) -> Admission:
        """See `Context.admit`."""
        due = act(self._faults.moment(Phase.ADMIT, subject_of(model)))
        return lie_of_segment(self._inner.admit(model), due)

    def profile(self) -> Profile | None:
        """See `Context.profile`."""
        return self._inner.profile()

    def kernels(self) -> Sequence[Kernel]:
        """See `Context.kernels`."""
        return self._inner.kernels()

    def compile(self, model: SegmentModel) -> Program:
        """See `Context.compile`."""
        return self._compiled(self._inner.compile, model)

    def compile_whole(self, model: SegmentModel) -> Program:
        """See `Context.compile_whole`."""
        return self._compiled(self._inner.compile_whole, model)

    def bind(self, program: Program, model: SegmentModel) -> Program | None:
        """See `Context.bind`."""
        subject = subject_of(model)
        act(self._faults.moment(Phase.COMPILE, subject))
        bound = self._inner.bind(inside(program), model)
        return None if bound is None else FaultyProgram(bound, self._faults, subject)

    def deserialize(self, blob: bytes) -> Program:
        """See `Context.deserialize`."""
        return self._read(memoryview(blob), lambda view: self._inner.deserialize(bytes(view)))

    def deserialize_view(self, blob: memoryview) -> Program:
        """See `Context.deserialize_view`."""
        return self._read(blob, self._inner.deserialize_view)

    def check_blob(self, blob: memoryview) -> Compatibility | None:
        """See `Context.check_blob`."""
        contents, subject = unwrapped(blob)
        due = act(self._faults.moment(Phase.DESERIALIZE, subject, CHECKING))
        compatibility = self._inner.check_blob(contents)
        return lie_of_blob(compatibility) if due else compatibility

    def with_session_options(self, options: Any) -> Context:
        """See `Context.with_session_options`."""
        return FaultyContext(self._inner.with_session_options(options), self._faults)

    def with_trace(self, trace: Trace, lane: str) -> Context:
        """See `Context.with_trace`."""
        return FaultyContext(self._inner.with_trace(trace, lane), self._faults)

    def close(self) -> None:
        """See `Context.close`."""
        try:
            act(self._faults.moment(Phase.CLOSE))
        finally:
            self._faults.end()
            self._inner.close()

    def _compiled(self, compiles: Callable[[SegmentModel], Program], model: SegmentModel) -> Program:
        subject = subject_of(model)
        act(self._faults.moment(Phase.COMPILE, subject))
        return FaultyProgram(compiles(model), self._faults, subject)

    def _read(self, blob: memoryview, reads: Callable[[memoryview], Program]) -> Program:
        contents, subject = unwrapped(blob)
        act(self._faults.moment(Phase.DESERIALIZE, subject))
        return FaultyProgram(reads(contents), self._faults, subject)
