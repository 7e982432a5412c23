"""A segment whose sizes are left open: it is lowered anew for the sizes that come, constants stay on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nnadapter.drivers.interface import Execution, Program
from nnadapter.drivers.tables.lowering import Computes
from nnadapter.drivers.tables.program import Border, TableExecution, brought
from nnadapter.errors import DriverError
from nnadapter.ir.model import Model
from nnadapter.ir.operand import Array
from nnadapter.ir.structure import SymbolicModel


class OpenTableProgram(Program):
    """A segment that was lowered with traced numbers, which showed what the lowerings decide on them.

    Args:
        model: with open sizes.
        lower: gives the closures of a model at some sizes.
        border: brings values onto the device and back.
    """

    def __init__(self, model: Model, lower: Callable[[Model], Sequence[Computes]], border: Border) -> None:
        self._traced = SymbolicModel(model)
        self._lower, self._border = lower, border
        self._constants = brought(model, border)

    def create_execution(self) -> Execution:
        """See `Program.create_execution`."""
        return OpenTableExecution(self)

    def execution_at(self, sizes: Sequence[Any]) -> TableExecution:
        """An execution at these sizes.

        Raises:
            CompilationError: a lowering refuses what it took before.
        """
        model = self._traced.filled(sizes)
        return TableExecution(model, self._lower(model), self._border, self._constants)


class OpenTableExecution(Execution):
    """Runs a segment at the sizes that come."""

    def __init__(self, program: OpenTableProgram) -> None:
        self._program = program
        self._last: tuple[Sequence[Any], TableExecution] | None = None
        """The sizes that came last, and what runs at them."""

    def compute(self, inputs: Sequence[Array]) -> Sequence[Array]:
        """See `Execution.compute`: nothing is computed as long as sizes are not known.

        Raises:
            DriverError: always.
        """
        raise DriverError("the program leaves sizes open: say by `at` what they are")

    def at(self, sizes: Sequence[Any]) -> Execution:
        """See `Execution.at`.

        Raises:
            CompilationError: a lowering refuses what it took before.
        """
        last = self._last
        if last is None or last[0] is not sizes:
            last = self._last = sizes, self._program.execution_at(sizes)
        return last[1]
