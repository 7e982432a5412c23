"""IOBinding for sessions over several devices: arrays bound once, results kept in the binding.

Source: onnxruntime.IOBinding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from nnadapter.errors import InvalidInputError
from nnadapter.ir.operand import Array

if TYPE_CHECKING:
    import onnxruntime


class _Runs(Protocol):
    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[Any]:
        """See `InferenceSession.run`."""

    def get_outputs(self) -> Sequence[Any]:
        """See `InferenceSession.get_outputs`."""


class IOBinding:
    """Inputs and outputs of one session, bound by name. Everything lives in the host's memory."""

    def __init__(self, session: _Runs) -> None:
        self._session = session
        self._inputs: dict[str, Any] = {}
        self._targets: dict[str, Any] = {}
        self._results: list[Any] = []

    def bind_cpu_input(self, name: str, arr_on_cpu: Array) -> None:
        """Bind an array; it is not copied."""
        self._inputs[name] = arr_on_cpu

    def bind_ortvalue_input(self, name: str, ortvalue: onnxruntime.OrtValue) -> None:
        """Bind an OrtValue in host memory."""
        self._inputs[name] = ortvalue

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """Bind memory by its address."""
        self._inputs[name] = _at_address(name, device_type, element_type, shape, buffer_ptr)

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Ask for an output; given an address, it is written there."""
        has_address = buffer_ptr is not None and shape is not None
        self._targets[name] = _at_address(name, device_type, element_type, shape, buffer_ptr) if has_address else None  # type: ignore[arg-type]

    def bind_ortvalue_output(self, name: str, ortvalue: onnxruntime.OrtValue) -> None:
        """Ask for an output to be written into an OrtValue in host memory."""
        self._targets[name] = ortvalue

    def synchronize_inputs(self) -> None:
        """Nothing to wait for: everything is in host memory."""

    def synchronize_outputs(self) -> None:
        """Nothing to wait for: everything is in host memory."""

    def clear_binding_inputs(self) -> None:
        """Forget the inputs."""
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Forget the outputs."""
        self._targets.clear()

    def run(self, run_options: Any = None) -> None:
        """Run the session on what is bound."""
        names = list(self._targets) or [value.name for value in self._session.get_outputs()]
        self._results = [
            _delivered(result, self._targets.get(name))
            for name, result in zip(names, self._session.run(names, self._inputs, run_options), strict=True)
        ]

    def copy_outputs_to_cpu(self) -> list[Any]:
        """The results as arrays."""
        return [value if isinstance(value, (np.ndarray, list)) else value.numpy() for value in self._results]

    def get_outputs(self) -> list[onnxruntime.OrtValue]:
        """The results as OrtValues."""
        return bind_results(self._results)


def bind_results(results: Sequence[Any]) -> list[onnxruntime.OrtValue]:
    """Arrays as OrtValues over the same memory."""
    import onnxruntime

    return [
        onnxruntime.OrtValue.ortvalue_from_numpy(value) if isinstance(value, np.ndarray) else value for value in results
    ]


def _delivered(result: Any, target: Any) -> Any:
    if target is None:
        return result
    if isinstance(target, np.ndarray):
        target[...] = result
    else:
        target.update_inplace(np.ascontiguousarray(result))
    return target


def _at_address(name: str, device_type: str, element_type: Any, shape: Sequence[int], address: int) -> Array:
    import ctypes

    if device_type != "cpu":
        raise InvalidInputError(
            f"{name!r} is bound to device memory {device_type!r}; bind host memory, 'cpu'", name=name
        )
    dtype = np.dtype(element_type)
    size = int(np.prod(shape)) * dtype.itemsize
    buffer = (ctypes.c_byte * size).from_address(address)
    return np.frombuffer(buffer, dtype).reshape(tuple(shape))
