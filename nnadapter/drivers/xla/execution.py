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
            if compiled.device.platform == "cpu":
                return [array_over(result) for result in results]
            return [np.array(result) for result in results]


_PACKED = frozenset({"int4", "uint4"})
"""What XLA holds two to a byte, and numpy one."""


class _Held:
    """Memory of a result, as numpy asks for it; the result lives as long as somebody looks at it."""

    def __init__(self, result: Any) -> None:
        self._result = result.block_until_ready()
        self.__array_interface__ = {
            "data": (result.unsafe_buffer_pointer(), False),
            "shape": (result.nbytes,),
            "typestr": "|u1",
            "version": 3,
        }


def array_over(result: Any) -> Array:
    """An array to write to over the memory of a result on a processor, which nobody else looks at."""
    if not result.nbytes or result.dtype.name in _PACKED:
        return np.array(result)
    array: Array = np.asarray(_Held(result)).view(result.dtype).reshape(result.shape)
    return array
