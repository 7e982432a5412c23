"""A compiled segment."""

from __future__ import annotations

from nnadapter.drivers.interface import Execution, Program
from nnadapter.drivers.xla.compiling import Compiled
from nnadapter.drivers.xla.execution import XlaExecution


class XlaProgram(Program):
    """What XLA made of a segment, and its constants."""

    def __init__(self, compiled: Compiled) -> None:
        self._compiled = compiled

    def create_execution(self) -> Execution:
        """See `Program.create_execution`: XLA allocates as it runs, so that many threads may share one."""
        return XlaExecution(self._compiled)

    @property
    def memory_bytes(self) -> int:
        """See `Program.memory_bytes`: constants, code, and what one run works in."""
        said = self._compiled.executable.memory_analysis()
        held = sum(array.nbytes for array in self._compiled.constants)
        return int(held + said.temp_size_in_bytes + said.generated_code_size_in_bytes)

    @property
    def execution_bytes(self) -> int:
        """See `Program.execution_bytes`: what a run works in is freed behind it."""
        return 0

    def close(self) -> None:
        """See `Program.close`."""
        del self._compiled
