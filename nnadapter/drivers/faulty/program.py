"""A program around another one."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from nnadapter.drivers.faulty.acting import act
from nnadapter.drivers.faulty.answers import other_bytes
from nnadapter.drivers.faulty.blobs import wrapped
from nnadapter.drivers.faulty.execution import FaultyExecution
from nnadapter.drivers.faulty.faults import Faults
from nnadapter.drivers.faulty.kinds import WRITING, Phase
from nnadapter.drivers.faulty.subjects import Subject
from nnadapter.drivers.interface import Execution, Program


class FaultyProgram(Program):
    """What the program inside does, and the faults of a script about its operations."""

    def __init__(self, inner: Program, faults: Faults, subject: Subject) -> None:
        self.inner = inner
        self._faults, self._subject = faults, subject
        self._run = faults.moment(Phase.RUN, subject)
        self._close = faults.moment(Phase.CLOSE, subject)

    def create_execution(self) -> Execution:
        """See `Program.create_execution`."""
        act(self._faults.moment(Phase.CREATE, self._subject))
        execution = self.inner.create_execution()
        is_as_it_is = self._run is None and self._close is None
        return execution if is_as_it_is else FaultyExecution(execution, self._run, self._close)

    @property
    def memory_bytes(self) -> int:
        """See `Program.memory_bytes`."""
        return self.inner.memory_bytes

    @property
    def execution_bytes(self) -> int:
        """See `Program.execution_bytes`."""
        return self.inner.execution_bytes

    @property
    def shared_bytes(self) -> Mapping[Hashable, int]:
        """See `Program.shared_bytes`."""
        return self.inner.shared_bytes

    def serialize(self) -> bytes | None:
        """See `Program.serialize`."""
        due = act(self._faults.moment(Phase.DESERIALIZE, self._subject, WRITING))
        blob = self.inner.serialize()
        if blob is None:
            return None
        previous_blob, self._faults.last_blob = self._faults.last_blob, wrapped(blob, self._subject)
        altered_blob = wrapped(blob, self._subject)
        for triggered_fault in due:
            altered_blob = other_bytes(blob, previous_blob, triggered_fault)
        return altered_blob

    def close(self) -> None:
        """See `Program.close`."""
        try:
            act(self._close)
        finally:
            self.inner.close()


def inside(program: Program) -> Program:
    """The program that one of this device is around."""
    return program.inner if isinstance(program, FaultyProgram) else program
