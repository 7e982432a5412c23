"""Runs of a segment from memory of the provider's device into memory of it."""

from __future__ import annotations

from collections.abc import Sequence

from nnadapter.drivers.control import UNLIMITED, Control
from nnadapter.drivers.device_tensors import DeviceTensor
from nnadapter.drivers.execution_providers.memory import EpMemory, tensor_of
from nnadapter.drivers.execution_providers.names import PLACES
from nnadapter.drivers.onnxruntime.errors import translated
from nnadapter.drivers.onnxruntime.sessions import SessionExecution, run_options
from nnadapter.drivers.onnxruntime.values import goes_by_memory, results_of
from nnadapter.process.real_onnxruntime import onnxruntime


class EpExecution(SessionExecution):
    """Runs a session; it holds nothing of its own."""

    def __init__(self, session: onnxruntime.InferenceSession, provider: str) -> None:
        super().__init__(session, provider)
        self._session, self._provider = session, provider
        self._is_plain = not goes_by_memory(session)

    def compute_on_device(
        self, inputs: Sequence[DeviceTensor], control: Control = UNLIMITED
    ) -> Sequence[DeviceTensor] | None:
        """See `Execution.compute_on_device`; None where a type is none that ONNX Runtime's Python interface takes."""
        if not self._is_plain:
            return None
        binding, place = self._session.io_binding(), PLACES[self._provider]
        for name, tensor in zip(self.input_names, inputs, strict=True):
            assert isinstance(tensor.memory, EpMemory), "memory of a device is its own"
            binding.bind_ortvalue_input(name, tensor.memory.value(tensor.dtype, tensor.shape))
        for name in self.output_names:
            binding.bind_output(name, place, 0)
        with translated(self._failure, "check the inputs"):
            self._session.run_with_iobinding(binding, run_options.get())
            return [tensor_of(value, self._provider) for value in results_of(binding)]
