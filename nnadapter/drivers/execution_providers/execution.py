"""Runs of a segment from memory of the provider's device into memory of it."""

from __future__ import annotations

from collections.abc import Sequence

from nnadapter.drivers.control import UNLIMITED, Control
from nnadapter.drivers.device_tensors import DeviceTensor
from nnadapter.drivers.execution_providers.memory import EpMemory, tensor_of
from nnadapter.drivers.execution_providers.names import PLACES
from nnadapter.drivers.onnxruntime.errors import translated
from nnadapter.drivers.onnxruntime.sessions import SessionExecution, run_options
from nnadapter.drivers.onnxruntime.values import goes_by_memory, run_in_place_of
from nnadapter.process.real_onnxruntime import onnxruntime


class EpExecution(SessionExecution):
    """Runs a session; it holds nothing of its own."""

    def __init__(self, session: onnxruntime.InferenceSession, provider: str) -> None:
        super().__init__(session, provider)
        self._provider = provider
        self._run_in_place = None if goes_by_memory(session) else run_in_place_of(session, PLACES[provider])

    def compute_on_device(
        self, inputs: Sequence[DeviceTensor], control: Control = UNLIMITED
    ) -> Sequence[DeviceTensor] | None:
        """See `Execution.compute_on_device`; None where a type is none that ONNX Runtime's Python interface takes."""
        if self._run_in_place is None:
            return None
        values = []
        for name, tensor in zip(self.input_names, inputs, strict=True):
            assert isinstance(tensor.memory, EpMemory), "memory of a device is its own"
            values.append((name, tensor.memory.value(tensor.dtype, tensor.shape)))
        with translated(self._failure, "check the inputs"):
            outputs = self._run_in_place(values, self.output_names, run_options.get())
        return [tensor_of(value, self._provider) for value in outputs]
