"""A program that several steps of a plan have, since their segments are the same but for names."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from nnadapter.drivers.interface import Execution, Program


class SameProgram(Program):
    """The program of another step, which closes it; executions are this step's own.

    Args:
        of: that program.
    """

    def __init__(self, of: Program) -> None:
        self.of = of

    def create_execution(self) -> Execution:
        """See `Program.create_execution`."""
        return self.of.create_execution()

    @property
    def memory_bytes(self) -> int:
        """What one execution holds: the program counts where it is closed."""
        return self.of.execution_bytes

    @property
    def execution_bytes(self) -> int:
        """See `Program.execution_bytes`."""
        return self.of.execution_bytes

    @property
    def shared_bytes(self) -> Mapping[Hashable, int]:
        """See `Program.shared_bytes`."""
        return self.of.shared_bytes

    def serialize(self) -> bytes | None:
        """See `Program.serialize`."""
        return self.of.serialize()
