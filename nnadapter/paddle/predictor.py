"""Paddle's Predictor: a session, with a handle for every input and output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from nnadapter.errors import InvalidInputError, InvalidOptionError, close_names
from nnadapter.inference.session import InferenceSession
from nnadapter.ir.operand import Array
from nnadapter.paddle.config import Config
from nnadapter.paddle.handle import Tensor
from nnadapter.paddle.types import dtype_of
from nnadapter.paddle_models.keeping import as_onnx

if TYPE_CHECKING:
    import onnxruntime

    from nnadapter.reports.report import PartitionReport


class Predictor:
    """A model that runs on what its handles hold. Source: paddle.inference.Predictor.

    Use one from one thread at a time; `clone` gives others, which share the compiled model.

    Args:
        session: runs the model; `create_predictor` makes it.
    """

    def __init__(self, session: InferenceSession) -> None:
        self.session = session
        """What runs the model. Not in Paddle."""
        self._results: Mapping[str, Array] = {}
        self._inputs = {
            node_arg.name: Tensor(node_arg.name, dtype_of(node_arg.type)) for node_arg in session.get_inputs()
        }
        self._outputs = {
            node_arg.name: Tensor(node_arg.name, dtype_of(node_arg.type), partial(self._result, node_arg.name))
            for node_arg in session.get_outputs()
        }

    def get_input_names(self) -> list[str]:
        """Names of the inputs, in the model's order."""
        return list(self._inputs)

    def get_output_names(self) -> list[str]:
        """Names of the outputs, in the model's order."""
        return list(self._outputs)

    def get_input_handle(self, name: str) -> Tensor:
        """The handle of an input."""
        return _of(self._inputs, name, "input")

    def get_output_handle(self, name: str) -> Tensor:
        """The handle of an output."""
        return _of(self._outputs, name, "output")

    def run(self, inputs: Sequence[Any] | None = None) -> list[Array] | None:
        """Run on what the handles of inputs hold, or on arrays.

        Args:
            inputs: an array for every input, in their order, or tensors that numpy reads.

        Returns:
            Nothing; results are in the handles of outputs. With `inputs`, an array for every output, in their order.

        Raises:
            InvalidInputError: an input holds nothing, or what does not fit the model.
            ExecutionError: a device failed and fallback is forbidden.
        """
        if inputs is None:
            feed = {name: handle.value for name, handle in self._inputs.items() if handle.value is not None}
        elif len(inputs) != len(self._inputs):
            raise InvalidInputError(f"the model has {len(self._inputs)} inputs, got {len(inputs)} arrays")
        else:
            feed = dict(zip(self._inputs, map(np.asarray, inputs), strict=True))
        results = self.session.run(None, feed)
        self._results = dict(zip(self._outputs, results, strict=True))
        return None if inputs is None else results

    def clone(self, stream: object = None) -> Predictor:
        """Return another predictor with handles of its own, for another thread."""
        return Predictor(self.session)

    def clear_intermediate_tensor(self) -> None:
        """Nothing to do: values between steps live in memory that a run borrows."""

    def try_shrink_memory(self) -> int:
        """Nothing to do, see `clear_intermediate_tensor`; how many bytes were freed."""
        return 0

    def report(self) -> PartitionReport:
        """What runs where and why. Not in Paddle."""
        return self.session.report()

    def _result(self, name: str) -> Array | None:
        return self._results.get(name)


def create_predictor(config: Config) -> Predictor:
    """Return a predictor of the model in `config`, on its devices. Source: paddle.inference.create_predictor.

    Raises:
        InvalidOptionError: no model is set.
        NNAdapterError: see `nnadapter.InferenceSession`.
    """
    if config.model is None:
        raise InvalidOptionError("the config names no model; make it by Config(model, parameters)")
    source = as_onnx(config.model, config.options, config.parameters)
    options = _session_options(config.threads)
    return Predictor(InferenceSession(source, options, devices=config.devices, options=config.options))


def _session_options(threads: int | None) -> onnxruntime.SessionOptions | None:
    """ONNX Runtime's options, where something was set that is said by them."""
    if threads is None:
        return None
    from nnadapter.process.real_onnxruntime import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return options


def _of(handles: Mapping[str, Tensor], name: str, kind: str) -> Tensor:
    if name not in handles:
        raise InvalidInputError(f"the model has no {kind} {name!r}; {close_names(name, handles)}", name=name)
    return handles[name]
