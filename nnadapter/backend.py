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
from nnadapter.errors import DeviceNotFoundError, DeviceUnavailableError, InvalidInputError
from nnadapter.options import Options, default_devices
from nnadapter.session import InferenceSession

if TYPE_CHECKING:
    from nnadapter.drivers.selection import DeviceRequest

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
            inputs: arrays in the order of its inputs, absent ones left out; or by name.
            device: see `prepare`.
            outputs_info: data type and dimensions of every output, where they are known.
            **kwargs: `opset_version`, by default the newest that the installed onnx has; the rest as for `prepare`.

        Raises:
            NNAdapterError: as `InferenceSession` does.
        """
        opset = int(kwargs.pop("opset_version", onnx.defs.onnx_opset_version()))
        names = list(dict.fromkeys(filter(None, node.input)))
        values = inputs if isinstance(inputs, (Mapping, list, tuple)) else [inputs]
        feed = dict(values) if isinstance(values, Mapping) else dict(zip(filter(None, node.input), values, strict=True))
        model = _model_of(node, {name: np.asarray(feed[name]) for name in names}, outputs_info, opset)
        return cls.run_model(model, feed, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether every device that is named exists and can be used here."""
        try:
            for name in _devices(device):
                open_device(name)
        except (DeviceNotFoundError, DeviceUnavailableError):
            return False
        return True


def _devices(device: str) -> list[str]:
    if device.partition(":")[0] == _HOST:
        return default_devices()
    return [name.strip() for name in device.split(",")]


def _fed(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, np.generic) else value


def _model_of(
    node: onnx.NodeProto,
    feed: Mapping[str, np.ndarray[Any, Any]],
    outputs_info: Sequence[tuple[np.dtype[Any], tuple[int, ...]]] | None,
    opset: int,
) -> onnx.ModelProto:
    names = [name for name in node.output if name]
    outputs = (
        [onnx.ValueInfoProto(name=name) for name in names]
        if outputs_info is None
        else [_info(name, np.dtype(dtype), shape) for name, (dtype, shape) in zip(names, outputs_info, strict=True)]
    )
    inputs = [_info(name, array.dtype, array.shape) for name, array in feed.items()]
    own = {node.domain: 1} if node.domain not in ("", "ai.onnx") else {}
    imports = [helper.make_opsetid(domain, version) for domain, version in {"": opset, **own}.items()]
    return helper.make_model(helper.make_graph([node], "node", inputs, outputs), opset_imports=imports)


def _info(name: str, dtype: np.dtype[Any], shape: Sequence[int]) -> onnx.ValueInfoProto:
    element = onnx.TensorProto.STRING if dtype.kind in "OUS" else helper.np_dtype_to_tensor_dtype(dtype)
    return helper.make_tensor_value_info(name, element, list(shape))


is_compatible = Backend.is_compatible
prepare = Backend.prepare
run_model = Backend.run_model
run_node = Backend.run_node
supports_device = Backend.supports_device
