"""ONNX backend interface: `prepare`, `run_model` and `run_node`, as functions and as a class.

    from nnadapter import backend
    prepared = backend.prepare(model, device="fake_npu,cpu")
    prepared.run([x])

`device` is comma-separated device names; `"CPU"` means the default devices of sessions. Source: onnx.backend.base.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper
from onnx.backend import base

from nnadapter.drivers.registry import open_device
from nnadapter.drivers.selection import canonical
from nnadapter.errors import (
    DeviceNotFoundError,
    DeviceUnavailableError,
    InvalidInputError,
    InvalidOptionError,
    NNAdapterError,
)
from nnadapter.onnx.construction import array_info
from nnadapter.onnx.domains import plain_domain
from nnadapter.onnx.onnxruntime_limits import onnxruntime_limits
from nnadapter.options import Options, default_devices
from nnadapter.session.session import InferenceSession

if TYPE_CHECKING:
    from nnadapter.drivers.selection import DeviceRequest

_Value = np.ndarray[Any, Any] | list[np.ndarray[Any, Any]]
_HOST = "CPU"
_QUIET = Options(fallback="allow")


class PreparedModel(base.BackendRep):
    """Model that is ready to run."""

    def __init__(self, session: InferenceSession) -> None:
        self.session = session
        self._names = [value.name for value in session.get_inputs()]

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Run the model and return its outputs.

        Args:
            inputs: a value, values in input order, or values by name; lists for sequences, None for absent optionals.
            **kwargs: ignored.

        Raises:
            InvalidInputError: there are too many values, or a value does not fit.
        """
        feed = inputs if isinstance(inputs, Mapping) else self._named(inputs)
        return tuple(self.session.run(None, {name: _fed(value) for name, value in feed.items()}))

    def _named(self, inputs: Any) -> dict[str, Any]:
        values = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
        if len(values) > len(self._names):
            raise InvalidInputError(f"the model has {len(self._names)} inputs, got {len(values)} values")
        return dict(zip(self._names, values, strict=False))


class Backend(base.Backend):
    """ONNX backend on sessions."""

    @classmethod
    def prepare(
        cls,
        model: onnx.ModelProto,
        device: str = _HOST,
        *,
        devices: DeviceRequest | Sequence[DeviceRequest] | None = None,
        options: Options | Mapping[str, Any] = _QUIET,
        **kwargs: Any,
    ) -> PreparedModel:
        """Open a session and return it as a `PreparedModel`. Raises NNAdapterError as `InferenceSession` does.

        Args:
            model: an ONNX model.
            device: `"CPU"`, or comma-separated device names.
            devices: as in `InferenceSession`; replaces `device`.
            options: as in `InferenceSession`; the default suppresses fallback warnings.
            **kwargs: ignored.
        """
        chosen = _devices(device) if devices is None else devices
        return PreparedModel(InferenceSession(model, devices=chosen, options=options))

    @classmethod
    def run_model(cls, model: onnx.ModelProto, inputs: Any, device: str = _HOST, **kwargs: Any) -> tuple[Any, ...]:
        """Run a model once and return its outputs. See `prepare` and `PreparedModel.run`."""
        prepared = cls.prepare(model, device, **kwargs)
        with prepared.session:
            return prepared.run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = _HOST,
        outputs_info: Sequence[tuple[np.dtype[Any], tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run one node and return its outputs. Raises InvalidInputError if `inputs` or `outputs_info` do not match.

        Args:
            node: an ONNX node.
            inputs: values by name, or in the order of present inputs. Lists of arrays are sequences; other values are
                converted to arrays.
            device: as in `prepare`.
            outputs_info: data type and shape of every output, if known.
            **kwargs: `opset_version` of the ONNX domain (default: the newest), and arguments of `prepare`.
        """
        opset = int(kwargs.pop("opset_version", onnx.defs.onnx_opset_version()))
        feed = _feed_of(node, inputs)
        return cls.run_model(_model_of(node, feed, outputs_info, opset), feed, device, **kwargs)

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = _HOST, **kwargs: Any) -> bool:
        """Return True if `prepare` succeeds. Costs as much as `prepare`."""
        try:
            cls.prepare(model, device, **kwargs).session.close()
        except NNAdapterError:
            return False
        return True

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return True if every named device is available on this machine."""
        try:
            for name in _devices(device):
                open_device(name)
        except (DeviceNotFoundError, DeviceUnavailableError, InvalidOptionError):
            return False
        return True


def _devices(device: str) -> list[str]:
    if canonical(device).partition(":")[0] == _HOST:
        return default_devices()
    return [name.strip() for name in device.split(",")]


def _fed(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, np.generic) else value


def _feed_of(node: onnx.NodeProto, inputs: Any) -> dict[str, _Value]:
    names = [name for name in node.input if name]
    if isinstance(inputs, Mapping):
        pairs = list(inputs.items())
        if set(inputs) != set(names):
            raise InvalidInputError(f"{node.op_type} reads {names}, got values for {list(inputs)}; feed each of them")
    else:
        values = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
        _check_count(node, "inputs", names, values)
        pairs = list(zip(names, values, strict=True))
    feed: dict[str, _Value] = {}
    for name, input_value in pairs:
        value = _value(name, input_value)
        if not _is_same(feed.setdefault(name, value), value):
            raise InvalidInputError(f"{node.op_type} reads {name!r} twice, got two different values", name=name)
    return feed


def _check_count(node: onnx.NodeProto, kind: str, names: Sequence[str], entries: Sequence[Any]) -> None:
    if len(names) != len(entries):
        raise InvalidInputError(f"{node.op_type} has {len(names)} {kind}, {list(names)}, got {len(entries)} of them")


def _value(name: str, input_value: Any) -> _Value:
    if (
        isinstance(input_value, list)
        and input_value
        and all(isinstance(element, np.ndarray) for element in input_value)
    ):
        return input_value
    try:
        return np.asarray(input_value)
    except ValueError as error:
        raise InvalidInputError(f"input {name!r} is not an array: {error}; pass a numpy array", name=name) from error


def _is_same(value: _Value, other: _Value) -> bool:
    if isinstance(value, list) or isinstance(other, list):
        return len(value) == len(other) and all(map(_is_same, value, other))
    exact = value.dtype == other.dtype and value.shape == other.shape
    return exact and (value is other or value.tobytes() == other.tobytes())


def _model_of(
    node: onnx.NodeProto,
    feed: Mapping[str, _Value],
    outputs_info: Sequence[tuple[np.dtype[Any], tuple[int, ...]]] | None,
    opset: int,
) -> onnx.ModelProto:
    names = [name for name in node.output if name]
    if outputs_info is None:
        outputs = [onnx.ValueInfoProto(name=name) for name in names]
    else:
        _check_count(node, "outputs", names, outputs_info)
        outputs = [
            _info(name, np.dtype(dtype), shape) for name, (dtype, shape) in zip(names, outputs_info, strict=True)
        ]
    inputs = [_input(name, value) for name, value in feed.items()]
    domain_opsets = {} if not plain_domain(node.domain) else {node.domain: _newest_version(node.domain)}
    imports = [helper.make_opsetid(domain, version) for domain, version in {"": opset, **domain_opsets}.items()]
    return helper.make_model(helper.make_graph([node], "node", inputs, outputs), opset_imports=imports)


def _newest_version(domain: str) -> int:
    newest = max((schema.since_version for schema in onnx.defs.get_all_schemas() if schema.domain == domain), default=1)
    return min(newest, onnxruntime_limits()[0].get(domain, newest))


def _input(name: str, value: _Value) -> onnx.ValueInfoProto:
    if not isinstance(value, list):
        return array_info(name, value)
    element = array_info(name, value[0]).type.tensor_type.elem_type
    return helper.make_tensor_sequence_value_info(name, element, None)


def _info(name: str, dtype: np.dtype[Any], shape: Sequence[int]) -> onnx.ValueInfoProto:
    element = onnx.TensorProto.STRING if dtype.kind in "OUS" else helper.np_dtype_to_tensor_dtype(dtype)
    return helper.make_tensor_value_info(name, element, list(shape))


is_compatible = Backend.is_compatible
prepare = Backend.prepare
run_model = Backend.run_model
run_node = Backend.run_node
supports_device = Backend.supports_device
