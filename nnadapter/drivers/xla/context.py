"""A device with options: verdicts of the table, programs compiled and read back."""

from __future__ import annotations

from typing import Any

from nnadapter.drivers.interface import Program
from nnadapter.drivers.tables.driver import TableContext, TableDriver
from nnadapter.drivers.xla.compiling import compiled, prepared
from nnadapter.drivers.xla.options import PRECISIONS
from nnadapter.drivers.xla.program import XlaProgram
from nnadapter.ir.model import Model


class XlaContext(TableContext):
    """Compiles each segment as one function."""

    def __init__(self, driver: TableDriver, device: Any) -> None:
        super().__init__(driver)
        self._device = device
        self._precision = PRECISIONS[str(driver.option_values["precision"])]

    def compile(self, model: Model) -> Program:
        """See `Context.compile`.

        Raises:
            InvalidModelError: the model contradicts itself.
            CompilationError: a lowering refused what it took before, or XLA does not compile the segment.
        """
        self._lowered(model)
        ready = prepared(model)
        return XlaProgram(compiled(ready, self._lowered(ready), self._device, self._precision))
