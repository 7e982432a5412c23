"""Runs of a compiled segment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnadapter.drivers.control import UNLIMITED, Control
from nnadapter.drivers.device_tensors import DeviceTensor
from nnadapter.drivers.interface import Execution
from nnadapter.drivers.streams import Stream
from nnadapter.drivers.xla.carrying import carried
from nnadapter.drivers.xla.compiling import Compiled
from nnadapter.drivers.xla.donating import Donating
from nnadapter.drivers.xla.engine import own_settings, translated
from nnadapter.drivers.xla.memory import tensor_of, value_of
from nnadapter.drivers.xla.streams import XlaStream, wait_for
from nnadapter.errors import ExecutionError
from nnadapter.ir.operand import Array, array_type_of


class XlaExecution(Execution):
    """Holds nothing between runs, so many threads may share it."""

    def __init__(self, compiled: Compiled, donating: Donating) -> None:
        self._compiled, self._donating = compiled, donating

    def compute(self, inputs: Sequence[Array]) -> Sequence[Array]:
        """See `Execution.compute`.

        Raises:
            ExecutionError: XLA fails.
        """
        results = self._started(list(map(carried, inputs)))
        taken = array_over if self._compiled.device.platform == "cpu" else np.array
        with translated("XLA failed", "see its message", ExecutionError), own_settings():
            arrays = zip(self._compiled.results, map(taken, results), strict=True)
            return [array.astype(array_type_of(name), copy=False) for name, array in arrays]

    def compute_on_device(
        self, inputs: Sequence[DeviceTensor], control: Control = UNLIMITED
    ) -> Sequence[DeviceTensor] | None:
        """See `Execution.compute_on_device`."""
        results = self._made(inputs)
        wait_for(results)
        return self._tensors(results)

    def enqueue(
        self, inputs: Sequence[DeviceTensor], stream: Stream, control: Control = UNLIMITED
    ) -> Sequence[DeviceTensor] | None:
        """See `Execution.enqueue`."""
        assert isinstance(stream, XlaStream), "streams of a device are its own"
        results = self._made(inputs)
        stream.add(results)
        return self._tensors(results)

    def _tensors(self, results: Sequence[Any]) -> list[DeviceTensor]:
        compiled = self._compiled
        return [
            tensor_of(result, name, compiled.device) for result, name in zip(results, compiled.results, strict=True)
        ]

    def _made(self, inputs: Sequence[DeviceTensor]) -> Sequence[Any]:
        """As `_started`, in memory of inputs that are given up, where XLA has a use for it."""
        values = list(map(value_of, inputs))
        given_up = [position for position, device_tensor in enumerate(inputs) if device_tensor.is_given_up]
        try:
            results = self._donating.start(values, given_up) if given_up else None
            return self._started(values) if results is None else results
        except ExecutionError:
            for tensor in inputs:
                if not tensor.is_given_up:
                    value_of(tensor)  # whoever fed one that another run took meanwhile is at fault, and is told so
            raise

    def _started(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """JAX's arrays of the results, which XLA may still be computing."""
        compiled = self._compiled
        with translated("XLA failed", "see its message", ExecutionError), own_settings():
            results: Sequence[Any] = compiled.executable(list(inputs), compiled.constants)
            return results


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
    if not result.nbytes:
        return np.array(result)
    array: Array = np.asarray(_Held(result)).view(result.dtype).reshape(result.shape)
    return array
