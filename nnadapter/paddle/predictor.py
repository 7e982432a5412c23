"""Paddle's Predictor over a session, its input and output handles, and its pool."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from nnadapter.errors import InvalidInputError, InvalidOptionError, close_names
from nnadapter.ir.operand import Array
from nnadapter.paddle.config import Config, DataType, data_type_of, dtype_of
from nnadapter.paddle.conversion import as_onnx
from nnadapter.session.session import InferenceSession

if TYPE_CHECKING:
    import onnxruntime

    from nnadapter.report.report import PartitionReport


class Tensor:
    """Handle of an input or output. Source: paddle.inference.Tensor.

    `dtype` is numpy's name of the declared type. `get` returns the value of an output; it is None for an input.
    """

    def __init__(self, name: str, dtype: str, get: Callable[[], Array | None] | None = None) -> None:
        self._name, self._dtype, self._get = name, dtype, get
        self._value: Array | None = None
        self._shape: list[int] = []

    @property
    def value(self) -> Array | None:
        return self._value if self._get is None else self._get()

    def name(self) -> str:
        return self._name

    def reshape(self, shape: Sequence[int] | int) -> None:
        """Set the shape of an input. As in Paddle, its value is truncated, or dropped if it has too few elements."""
        self._refuse_output("reshape")
        self._shape = [shape] if isinstance(shape, int) else [int(size) for size in shape]
        size = prod(self._shape)
        value = self._value
        self._value = None if value is None or value.size < size else value.reshape(-1)[:size].reshape(self._shape)

    def copy_from_cpu(self, data: Array | Sequence[str]) -> None:
        """Copy an array or a list of strings into an input, with its shape."""
        self._refuse_output("copy_from_cpu")
        self._value = np.array(_array(data, "copy_from_cpu"), order="C")
        self._shape = list(self._value.shape)

    def share_external_data(self, data: Any) -> None:
        """Use an array, or a tensor that numpy can read, without a copy."""
        self._refuse_output("share_external_data")
        self._value = np.asarray(data)
        self._shape = list(self._value.shape)

    def copy_to_cpu(self) -> Array:
        """Return a copy of the value. Raises InvalidInputError if there is none yet."""
        if self.value is None:
            raise InvalidInputError(f"{self._name!r} has no value; call Predictor.run first", name=self._name)
        return np.array(self.value)

    def shape(self) -> list[int]:
        """Return the shape; for an output, the shape in the last run."""
        if self._get is None:
            return list(self._shape)
        return [] if self.value is None else list(self.value.shape)

    def type(self) -> DataType:
        """Return the data type of the value, otherwise the declared one."""
        return data_type_of(self._dtype if self.value is None else self.value.dtype.name)

    def lod(self) -> list[list[int]]:
        """Return no offsets: Paddle's variable-length sequences are not supported."""
        return []

    def set_lod(self, lod: Sequence[Sequence[int]]) -> None:
        """Raise InvalidInputError unless the offsets are empty."""
        if any(map(len, lod)):
            raise InvalidInputError(
                f"input {self._name!r} got sequence offsets (LoD), which are not supported; pad the sequences",
                name=self._name,
            )

    def _refuse_output(self, method: str) -> None:
        if self._get is not None:
            raise InvalidInputError(f"{method} is for inputs, and {self._name!r} is an output", name=self._name)


def _array(data: Any, method: str) -> Array:
    if isinstance(data, np.ndarray):
        return data
    if isinstance(data, list) and data and all(isinstance(element, str) for element in data):
        return np.array(data, object)
    raise TypeError(f"{method} takes a numpy array or a list of strings, got {type(data).__name__}")


class Predictor:
    """Model with handles for inputs and outputs. Source: paddle.inference.Predictor.

    Not thread-safe. For another thread, use a `clone`, which shares the compiled model.
    """

    def __init__(self, session: InferenceSession) -> None:
        self.session = session
        self._results: Mapping[str, Array] = {}
        self._inputs = {
            node_arg.name: Tensor(node_arg.name, dtype_of(node_arg.type)) for node_arg in session.get_inputs()
        }
        self._outputs = {
            node_arg.name: Tensor(node_arg.name, dtype_of(node_arg.type), partial(self._result, node_arg.name))
            for node_arg in session.get_outputs()
        }

    def get_input_names(self) -> list[str]:
        return list(self._inputs)

    def get_output_names(self) -> list[str]:
        return list(self._outputs)

    def get_input_handle(self, name: str) -> Tensor:
        return _of(self._inputs, name, "input")

    def get_output_handle(self, name: str) -> Tensor:
        return _of(self._outputs, name, "output")

    def run(self, inputs: Sequence[Any] | None = None) -> list[Array] | None:
        """Run on the input handles, or on arrays.

        Args:
            inputs: an array for every input in order, or tensors that numpy can read.

        Returns:
            None, with results in the output handles; with `inputs`, an array for every output.

        Raises:
            InvalidInputError: an input has no value, or does not fit the model.
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
        return Predictor(self.session)

    def clear_intermediate_tensor(self) -> None:
        """Do nothing, because a run only borrows the memory of its intermediate values."""

    def try_shrink_memory(self) -> int:
        return 0

    def report(self) -> PartitionReport:
        return self.session.report()

    def _result(self, name: str) -> Array | None:
        return self._results.get(name)


def create_predictor(config: Config) -> Predictor:
    """Create a predictor. Source: paddle.inference.create_predictor.

    Raises:
        InvalidOptionError: `config` has no model.
        NNAdapterError: see `nnadapter.InferenceSession`.
    """
    if config.model is None:
        raise InvalidOptionError("the config has no model; create it by Config(model, parameters)")
    source = as_onnx(config.model, config.options, config.parameters)
    options = _session_options(config.threads)
    return Predictor(InferenceSession(source, options, devices=config.devices, options=config.options))


def _session_options(threads: int | None) -> onnxruntime.SessionOptions | None:
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


class PredictorPool:
    """Predictors that share one compiled model. Source: paddle.inference.PredictorPool."""

    def __init__(self, config: Config, size: int = 1) -> None:
        if size < 1:
            raise InvalidOptionError(f"a pool needs at least 1 predictor, got {size}")
        first = create_predictor(config)
        self._predictors = [first, *(first.clone() for _ in range(size - 1))]

    def retrieve(self, index: int) -> Predictor:
        if not 0 <= index < len(self._predictors):
            raise InvalidOptionError(f"the pool has {len(self._predictors)} predictors, got index {index}")
        return self._predictors[index]

    retrive = retrieve
    """Name in Paddle 2."""
