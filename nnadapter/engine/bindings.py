"""Bindings of inputs and outputs of a session, for compiled plans and for ONNX Runtime alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nnadapter.drivers.onnxruntime.values import array_of, is_foreign_type, output_binder, results_of
from nnadapter.drivers.selection import CPU
from nnadapter.drivers.tensor_copies import Copies
from nnadapter.engine.bound_steps import has_memory
from nnadapter.engine.device_value import DeviceValue
from nnadapter.engine.provenance import Provenance
from nnadapter.errors import ClosedError, InvalidInputError, MissingInputError
from nnadapter.ir.operand import Array
from nnadapter.optional_parts import optional_part
from partition.graph import DTYPE_OF_ELEMENT_TYPE

if TYPE_CHECKING:
    import onnxruntime

    from nnadapter.engine.feed_counts import CountCheck
    from nnadapter.engine.plan_source import RunResult


_MISSES = "Missing Input: {}"
Target = Any
"""Target of an output: device name, array to fill, `DeviceValue` or `onnxruntime.OrtValue`."""


class PlannedBinding:
    """Binding of a session that runs compiled plans. `run` is `PlanEngine.run`."""

    def __init__(self, run: Callable[..., RunResult], outputs: Sequence[str], devices: Sequence[str]) -> None:
        self._run, self._all_outputs, self._devices = run, tuple(outputs), tuple(devices)
        self._inputs: dict[str, Any] = {}
        self._targets: dict[str, Target] = {}
        self._places: dict[str, str] = {}
        """Bound device -> its entry for `OutDevices`: the device itself if it has memory, otherwise empty."""
        self.results: list[Any] = []

    def bind_input(self, name: str, value: Any) -> None:
        """Bind an array, a `DeviceValue` or an `onnxruntime.OrtValue` to an input."""
        self._inputs[name] = value
        if isinstance(value, DeviceValue):
            self._know(value.device)

    def bind_output(self, name: str, target: Target) -> None:
        """Request an output and its target; raise InvalidInputError if the output or the target's device is unknown."""
        if name not in self._all_outputs:
            raise InvalidInputError(
                f"Invalid output name: {name!r}; the model's outputs are {list(self._all_outputs)}", name=name
            )
        device = _device_of(target)
        if device != CPU and device not in self._devices:
            raise InvalidInputError(
                f"output {name!r} is bound to device {device!r}, which the session does not have; bind it to one of "
                f"{[*self._devices]}",
                name=name,
            )
        self._targets[name] = target
        self._know(device)

    def _know(self, device: str) -> None:
        if device not in self._places:
            self._places[device] = device if device != CPU and has_memory(device) else ""

    def clear_inputs(self) -> None:
        self._inputs.clear()

    def clear_outputs(self) -> None:
        self._targets.clear()

    def run(self, options: Any) -> Provenance:
        targets = self._targets or dict.fromkeys(self._all_outputs, CPU)
        out_devices = {
            name: self._places[device] for name, target in targets.items() if (device := _device_of(target)) != CPU
        }
        values = {name: value for name, value in self._inputs.items() if isinstance(value, DeviceValue)}
        out_devices |= {name: self._places[value.device] for name, value in values.items() if name not in targets}
        feed = {name: _fed(value) for name, value in self._inputs.items()}
        feed |= {name: feed[name].donate() for name in _replaced(values, feed, targets)}
        results, provenance = self._run(list(targets), feed, options, out_devices=out_devices)
        deliveries = list(zip(targets.items(), results, strict=True))
        for (_, target), result in deliveries:  # before anything can fail, since their previous contents may be donated
            if isinstance(target, DeviceValue):
                target.replace(result)
        self.results = [_delivered(name, result, target) for (name, target), result in deliveries]
        return provenance

    def arrays(self) -> list[Any]:
        return [value.numpy() if hasattr(value, "numpy") else value for value in self.results]


class HostBinding:
    """`onnxruntime.IOBinding` of a session that runs the model on ONNX Runtime alone."""

    def __init__(self, session: Any, run: Any, counts: Sequence[CountCheck] = ()) -> None:
        self._binding, self._run, self._counts = session.io_binding(), run, counts
        self._counted = {name for check in counts for name in check.inputs}
        self._needed = [value.name for value in session.get_inputs() if not value.type.startswith("optional")]
        self._fed: dict[str, Any] = {}
        self._allocate = output_binder(self._binding)
        self._targets: dict[str, Target] = {}
        self._values: dict[str, tuple[DeviceValue, Copies | Array]] = {}
        """Bound device values, with contents bound in ONNX Runtime. A value may get other contents before a run."""
        self._used: set[str] = set()
        """Outputs to allocate again for each run, because the caller may still read the previous arrays."""

    @property
    def results(self) -> list[Any]:
        return results_of(self._binding)

    def bind_input(self, name: str, value: Any) -> None:
        self._values.pop(name, None)
        if isinstance(value, DeviceValue):
            self._bind_value(name, value)
        elif isinstance(value, (np.ndarray, list)):
            self._binding.bind_cpu_input(name, value)
        else:
            self._binding.bind_ortvalue_input(name, value)
        self._fed[name] = value if name in self._counted else None

    def _bind_value(self, name: str, value: DeviceValue) -> None:
        contents = value.contents
        self._binding.bind_cpu_input(name, contents.host() if isinstance(contents, Copies) else contents)
        self._values[name] = value, contents

    def bind_output(self, name: str, target: Target) -> None:
        if type(target) is str and target == CPU:
            if name not in self._targets:
                self._allocate(name)
            elif type(self._targets[name]) is not str:
                self._used.add(name)
        else:
            self._bind_special(name, target)
            self._used.discard(name)
        self._targets[name] = target

    def _bind_special(self, name: str, target: Target) -> None:
        if isinstance(target, np.ndarray):
            address = target.__array_interface__["data"][0]
            self._binding.bind_output(name, CPU, 0, target.dtype.type, target.shape, address)
        elif not isinstance(target, (str, DeviceValue)):
            self._binding.bind_ortvalue_output(name, target)
        elif _device_of(target) == CPU:
            self._allocate(name)
        else:
            raise InvalidInputError(
                f"output {name!r} is bound to device {_device_of(target)!r}, but the session has only 'cpu'; bind it "
                "to that",
                name=name,
            )

    def clear_inputs(self) -> None:
        self._binding.clear_binding_inputs()
        self._values.clear()
        self._fed.clear()

    def clear_outputs(self) -> None:
        self._binding.clear_binding_outputs()
        self._targets.clear()
        self._used.clear()

    def run(self, options: Any) -> Provenance:
        """Run the model; outputs that are not bound to memory get newly allocated memory."""
        for count_check in self._counts:
            count_check.check(self._fed)
        for name, (value, bound) in self._values.items():
            if value.contents is not bound:
                self._bind_value(name, value)
        for name in self._used:
            self._allocate(name)
        try:
            provenance: Provenance = self._run(self._binding, options)
        except InvalidInputError as error:
            missing = [name for name in self._needed if name not in self._fed and _MISSES.format(name) in str(error)]
            if not missing:
                raise
            raise MissingInputError.of(missing, self._fed, self._needed) from error.__cause__
        self._used.update(name for name, target in self._targets.items() if isinstance(target, (str, DeviceValue)))
        slots = [(at, target) for at, target in enumerate(self._targets.values()) if isinstance(target, DeviceValue)]
        results = results_of(self._binding) if slots else ()
        for at, target in slots:
            target.replace(results[at].numpy())
        return provenance

    def arrays(self) -> list[Any]:
        return list(self._binding.copy_outputs_to_cpu())


Binding = PlannedBinding | HostBinding


def _device_of(target: Target) -> str:
    if isinstance(target, DeviceValue):
        return target.device
    return target if isinstance(target, str) else CPU


def _replaced(values: Mapping[str, DeviceValue], feed: Mapping[str, Any], targets: Mapping[str, Target]) -> list[str]:
    """Return the inputs to donate. The value of each is also bound to an output, and no other input shares it."""
    target_ids = {id(target) for target in targets.values() if isinstance(target, DeviceValue)}
    fed = Counter(id(feed[name]) for name in values)
    return [
        name
        for name, value in values.items()
        if id(value) in target_ids
        and name not in targets
        and isinstance(feed[name], Copies)
        and not feed[name].is_shared
        and fed[id(feed[name])] == 1
    ]


def _fed(value: Any) -> Any:
    if isinstance(value, DeviceValue):
        return value.contents
    return _of_ort_value(value) if hasattr(value, "is_tensor") and value.is_tensor() else value


def _of_ort_value(value: onnxruntime.OrtValue) -> Any:
    from nnadapter.drivers.providers import device_name, provider_at

    provider = provider_at(value.device_name())
    if provider is None or 0 in value.shape():
        return array_of(value)
    if is_foreign_type(np.dtype(DTYPE_OF_ELEMENT_TYPE[value.element_type()])):
        raise InvalidInputError(
            f"an OrtValue of {value.data_type()} on {value.device_name()} cannot be read by ONNX Runtime's Python "
            "interface; feed one in the host's memory"
        )
    return Copies(None, {device_name(provider): optional_part("provider_tensor")(value, provider)})


def _delivered(name: str, result: Any, target: Target) -> Any:
    if isinstance(target, np.ndarray):
        _refuse_other(name, result, target.dtype.name, target.shape)
        target[...] = result
        return DeviceValue(target, CPU)
    if isinstance(target, DeviceValue):
        return target
    if not isinstance(target, str):
        if target.is_tensor():
            _refuse_other(name, result, DTYPE_OF_ELEMENT_TYPE[target.element_type()], tuple(target.shape()))
        target.update_inplace(np.ascontiguousarray(result))
        return target
    return DeviceValue(result, target) if isinstance(result, (np.ndarray, Copies)) else result


def _refuse_other(name: str, result: Any, dtype: str, shape: tuple[int, ...]) -> None:
    """Raise InvalidInputError unless a result has the dtype and shape of the memory that it is bound to.

    numpy would broadcast the result, and ONNX Runtime would copy beyond the end of the memory.
    """
    is_array = isinstance(result, np.ndarray)
    actual = "string" if is_array and result.dtype.kind in "OUS" else str(getattr(result, "dtype", "a list"))
    if not is_array or (actual, result.shape) != (dtype, shape):
        raise InvalidInputError(
            f"output {name!r} is {actual}{list(getattr(result, 'shape', ()))}, and is bound to memory of "
            f"{dtype}{list(shape)}; bind it to memory of its own type and shape",
            name=name,
        )


def array_at(name: str, device_type: str, element_type: Any, shape: Sequence[int], address: int) -> Array:
    """Return host memory at an address as an array of this shape; raise for device memory and for address 0."""
    import ctypes

    if device_type != CPU:
        raise InvalidInputError(
            f"value {name!r} is bound by its address to memory of device {device_type!r}; bind it to host memory, "
            "'cpu', or to a nnadapter.DeviceValue",
            name=name,
        )
    if not address:
        raise ClosedError(f"value {name!r} is bound to address 0; bind it to allocated memory")
    dtype = np.dtype(element_type)
    size = int(np.prod(shape)) * dtype.itemsize
    buffer = (ctypes.c_byte * size).from_address(address)
    return np.frombuffer(buffer, dtype).reshape(tuple(shape))
