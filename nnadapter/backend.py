"""ONNX's own seam for backends: `prepare`, `run_model`, `run_node`, as functions of this module and as a class.

    from nnadapter import backend
    prepared = backend.prepare(model, device="fake_npu,cpu")
    prepared.run([x])

A device is `"CPU"`, which is ONNX's word for what is there anyway and here stands for the devices of sessions that name
none, or what `InferenceSession` takes: names in order of preference, with commas between them. `devices=` and
`options=` are taken as `InferenceSession` takes them. Source: onnx.backend.base.
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
from nnadapter.onnx.domains import plain_domain
from nnadapter.onnx.onnxruntime_limits import onnxruntime_limits
from nnadapter.options import Options, default_devices
from nnadapter.session.session import InferenceSession

if TYPE_CHECKING:
    from nnadapter.drivers.selection import DeviceRequest

_Value = np.ndarray[Any, Any] | list[np.ndarray[Any, Any]]
"""A tensor, or a sequence of tensors."""
_HOST = "CPU"
_QUIET = Options(fallback="allow")
"""Backends are asked whether results are right; what runs where is in the session's report."""


class PreparedModel(base.BackendRep):
    """A model that is ready to run. Source: onnx.backend.base.BackendRep."""

    def __init__(self, session: InferenceSession) -> None:
        self.session = session
        """What runs it; it has the report."""
        self._names = [value.name for value in session.get_inputs()]

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return the outputs of one run.

        Args:
            inputs: values in the order of the model's inputs, or by name, or the one value; lists for sequences.
                None for an optional that is not given.
            **kwargs: not used.

        Raises:
            InvalidInputError: there are more values than inputs, or one does not fit.
        """
        feed = inputs if isinstance(inputs, Mapping) else self._named(inputs)
        return tuple(self.session.run(None, {name: _fed(value) for name, value in feed.items()}))

    def _named(self, inputs: Any) -> dict[str, Any]:
        values = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
        if len(values) > len(self._names):
            raise InvalidInputError(f"the model has {len(self._names)} inputs, got {len(values)} values")
        return dict(zip(self._names, values, strict=False))


class Backend(base.Backend):
    """Runs ONNX models by sessions. Source: onnx.backend.base.Backend."""

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
        """Return the model, ready to run.

        Args:
            model: the model.
            device: `"CPU"`, or names of devices with commas between them.
            devices: instead of `device`, as `InferenceSession` takes them.
            options: as `InferenceSession` takes them; by default nothing is warned of.
            **kwargs: what other backends take; not used.

        Raises:
            NNAdapterError: as `InferenceSession` does.
        """
        chosen = _devices(device) if devices is None else devices
        return PreparedModel(InferenceSession(model, devices=chosen, options=options))

    @classmethod
    def run_model(cls, model: onnx.ModelProto, inputs: Any, device: str = _HOST, **kwargs: Any) -> tuple[Any, ...]:
        """Run a model once. See `prepare` and `PreparedModel.run`."""
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
        """Run one node.

        Args:
            node: the node.
            inputs: values in the order of its inputs, absent ones left out; or by name. Arrays, what numpy makes
                arrays of, and lists of arrays for sequences.
            device: see `prepare`.
            outputs_info: data type and dimensions of every output, where they are known.
            **kwargs: `opset_version` of ONNX's own domain, by default the newest that the installed onnx has; the rest
                as for `prepare`. Other domains have the newest version that onnx and ONNX Runtime know.

        Raises:
            InvalidInputError: there are not as many values as inputs or outputs, a name has none, or two that differ.
            NNAdapterError: as `InferenceSession` does.
        """
        opset = int(kwargs.pop("opset_version", onnx.defs.onnx_opset_version()))
        feed = _feed_of(node, inputs)
        return cls.run_model(_model_of(node, feed, outputs_info, opset), feed, device, **kwargs)

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = _HOST, **kwargs: Any) -> bool:
        """Whether `prepare` takes the model, with the same arguments; it is tried, so it costs as much."""
        try:
            cls.prepare(model, device, **kwargs).session.close()
        except NNAdapterError:
            return False
        return True

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether every device that is named exists and can be used here; not so for what is no name."""
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
    """What each name that the node reads is fed with."""
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
            raise InvalidInputError(f"{node.op_type} reads {name!r} twice, got two values that differ", name=name)
    return feed


def _check_count(node: onnx.NodeProto, kind: str, names: Sequence[str], entries: Sequence[Any]) -> None:
    if len(names) != len(entries):
        raise InvalidInputError(f"{node.op_type} has the {kind} {list(names)}, got {len(entries)} for {len(names)}")


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
        raise InvalidInputError(f"input {name!r} is no array: {error}; pass a numpy array", name=name) from error


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
    """The newest version of a domain that onnx has schemas of, no newer than ONNX Runtime loads; 1 if it has none."""
    newest = max((schema.since_version for schema in onnx.defs.get_all_schemas() if schema.domain == domain), default=1)
    return min(newest, onnxruntime_limits()[0].get(domain, newest))


def _input(name: str, value: _Value) -> onnx.ValueInfoProto:
    if not isinstance(value, list):
        return _info(name, value.dtype, value.shape)
    element = _info(name, value[0].dtype, value[0].shape).type.tensor_type.elem_type
    return helper.make_tensor_sequence_value_info(name, element, None)


def _info(name: str, dtype: np.dtype[Any], shape: Sequence[int]) -> onnx.ValueInfoProto:
    element = onnx.TensorProto.STRING if dtype.kind in "OUS" else helper.np_dtype_to_tensor_dtype(dtype)
    return helper.make_tensor_value_info(name, element, list(shape))


is_compatible = Backend.is_compatible
prepare = Backend.prepare
run_model = Backend.run_model
run_node = Backend.run_node
supports_device = Backend.supports_device
