"""A device with options: verdicts of the table, programs compiled and read back."""

from __future__ import annotations

from typing import Any

from nnadapter.drivers.interface import Compatibility, Program
from nnadapter.drivers.tables.driver import TableContext, TableDriver
from nnadapter.drivers.xla.compiling import compiled, platform_of, prepared
from nnadapter.drivers.xla.engine import version
from nnadapter.drivers.xla.heap import give_back
from nnadapter.drivers.xla.options import PRECISIONS
from nnadapter.drivers.xla.program import XlaProgram, compatibility, deserialized
from nnadapter.ir.model import Model


class XlaContext(TableContext):
    """Compiles each segment as one function."""

    def __init__(self, driver: TableDriver, device: Any) -> None:
        super().__init__(driver)
        self._device = device
        self._precision = str(driver.option_values["precision"])

    def compile(self, model: Model) -> Program:
        """See `Context.compile`.

        Raises:
            InvalidModelError: the model contradicts itself.
            CompilationError: a lowering refused what it took before, or XLA does not compile the segment.
        """
        self._lowered(model)
        ready = prepared(model)
        program = compiled(ready, self._lowered(ready), self._device, PRECISIONS[self._precision])
        return XlaProgram(program, self._seal())

    def deserialize(self, blob: bytes) -> Program:
        """See `Context.deserialize`."""
        return deserialized(blob, self._seal(), self._device)

    def deserialize_view(self, blob: memoryview) -> Program:
        """See `Context.deserialize_view`: a processor uses the constants where the file is mapped."""
        return deserialized(blob, self._seal(), self._device, is_checked=True)

    def check_blob(self, blob: memoryview) -> Compatibility:
        """See `Context.check_blob`: JAX, platform and precision have to be the same."""
        return compatibility(blob, self._seal())

    def close(self) -> None:
        """See `Context.close`: what its programs were compiled in goes back to the system."""
        give_back()

    def _seal(self) -> dict[str, str]:
        """What a program must have been compiled with to run here."""
        return {"jax": version(), "platform": platform_of(self._device), "precision": self._precision}
