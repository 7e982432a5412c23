"""IOBinding: inputs and outputs of a session bound once, results kept in the binding, where they were made.

Source: onnxruntime.IOBinding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nnadapter.drivers.selection import CPU
from nnadapter.engine.bindings import Binding, array_at
from nnadapter.engine.device_value import DeviceValue, device_named
from nnadapter.engine.provenance import Provenance
from nnadapter.ir.operand import Array

if TYPE_CHECKING:
    import onnxruntime

    from nnadapter.engine.engine import Engine


class IOBinding:
    """Inputs and outputs of one session, bound by name.

    An output that is bound to a device by its name, `bind_output("present", "fake_npu")`, stays there; what
    `get_outputs` gives for it is fed back by `bind_ortvalue_input` without a copy, whatever size it has.
    """

    def __init__(self, session: Any) -> None:
        engine: Engine = session._engine
        self._bound: Binding = engine.binding()

    def bind_cpu_input(self, name: str, arr_on_cpu: Array) -> None:
        """Bind an array; it is not copied."""
        self._bound.bind_input(name, arr_on_cpu)

    def bind_ortvalue_input(self, name: str, ortvalue: onnxruntime.OrtValue | DeviceValue) -> None:
        """Bind a value that lies on a device, or in the host's memory."""
        self._bound.bind_input(name, ortvalue)

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """Bind memory of the host by its address."""
        self._bound.bind_input(name, array_at(name, device_type, element_type, shape, buffer_ptr))

    def bind_output(
        self,
        name: str,
        device_type: str = CPU,
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Ask for an output, which stays on that device; given an address of the host's memory, it is written there."""
        if buffer_ptr is None or shape is None:
            self._bound.bind_output(name, device_named(device_type, device_id))
        else:
            self._bound.bind_output(name, array_at(name, device_type, element_type, shape, buffer_ptr))

    def bind_ortvalue_output(self, name: str, ortvalue: onnxruntime.OrtValue | DeviceValue) -> None:
        """Ask for an output to be held by a value: an OrtValue is written into, a DeviceValue gets it as it is."""
        self._bound.bind_output(name, ortvalue)

    def synchronize_inputs(self) -> None:
        """Nothing to wait for: what was bound is there."""

    def synchronize_outputs(self) -> None:
        """Nothing to wait for: a run waits for its devices."""

    def clear_binding_inputs(self) -> None:
        """Forget the inputs."""
        self._bound.clear_inputs()

    def clear_binding_outputs(self) -> None:
        """Forget the outputs."""
        self._bound.clear_outputs()

    def run(self, run_options: Any = None) -> Provenance:
        """Run the session on what is bound. `InferenceSession.run_with_iobinding` is the way to call it."""
        return self._bound.run(run_options)

    def copy_outputs_to_cpu(self) -> list[Any]:
        """The results as arrays of the caller's own."""
        return self._bound.arrays()

    def get_outputs(self) -> list[Any]:
        """The results where they lie: `nnadapter.DeviceValue`, or ONNX Runtime's OrtValue where it made them."""
        return [_as_value(result) for result in self._bound.results]

    def get_outputs_as_ortvaluevector(self) -> Any:
        """Return the results as ONNX Runtime's vector of OrtValues, which lie in the host's memory."""
        from onnxruntime.capi.onnxruntime_pybind11_state import OrtValueVector

        from nnadapter.drivers.onnxruntime.values import ort_value_of

        vector = OrtValueVector()
        for result in self._bound.results:
            value = ort_value_of(result.numpy() if isinstance(result, DeviceValue) else result)
            vector.push_back(value._get_c_value())
        return vector


def _as_value(result: Any) -> Any:
    if not hasattr(result, "dense_shape"):
        return result
    from nnadapter.drivers.onnxruntime.values import ort_value_of  # few models make sparse tensors

    return ort_value_of(result)
