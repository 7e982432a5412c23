"""Runs of a compiled segment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnadapter.drivers.interface import Execution
from nnadapter.drivers.xla.compiling import Compiled
from nnadapter.drivers.xla.engine import translated, wide_types
from nnadapter.errors import ExecutionError
from nnadapter.ir.operand import Array


class XlaExecution(Execution):
    """Holds nothing between runs, so many threads may share it."""

    def __init__(self, compiled: Compiled) -> None:
        self._compiled = compiled

    def compute(self, inputs: Sequence[Array]) -> Sequence[Array]:
        """See `Execution.compute`.

        Raises:
            ExecutionError: XLA fails.
        """
        compiled = self._compiled
        with translated("XLA failed", "see its message", ExecutionError), wide_types():
            results = compiled.executable(list(inputs), compiled.constants)
            return [np.array(result) for result in results]


def _arrays(results: Sequence[Any]) -> list[Array]:
    return [np.asarray(result) for result in results]
