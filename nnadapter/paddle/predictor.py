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
    """One input or output of a predictor. Source: paddle.inference.Tensor.

    Args:
        name: of the input or output.
        dtype: that the model declares, as numpy calls it.
        get: gives what an output holds, None before a run; None for an input.
    """

    def __init__(self, name: str, dtype: str, get: Callable[[], Array | None] | None = None) -> None:
        self._name, self._dtype, self._get = name, dtype, get
        self._value: Array | None = None
        self._shape: list[int] = []

    @property
    def value(self) -> Array | None:
        """What it holds; None where that is nothing. Not in Paddle."""
        return self._value if self._get is None else self._get()

    def name(self) -> str:
        """The name of the input or output."""
        return self._name

    def reshape(self, shape: Sequence[int] | int) -> None:
        """Set the shape of an input. What it holds stays where it fills that, as in Paddle; else it holds nothing."""
        self._refuse_output("reshape")
        self._shape = [shape] if isinstance(shape, int) else [int(size) for size in shape]
        size = prod(self._shape)
        value = self._value
        self._value = None if value is None or value.size < size else value.reshape(-1)[:size].reshape(self._shape)

    def copy_from_cpu(self, data: Array | Sequence[str]) -> None:
        """Copy an array, or a list of strings, into an input, which gets its shape."""
        self._refuse_output("copy_from_cpu")
        self._value = np.array(_array(data, "copy_from_cpu"), order="C")
        self._shape = list(self._value.shape)

    def share_external_data(self, data: Any) -> None:
        """Have an input hold an array itself, or a tensor that numpy reads without a copy."""
        self._refuse_output("share_external_data")
        self._value = np.asarray(data)
        self._shape = list(self._value.shape)

    def copy_to_cpu(self) -> Array:
        """Return a copy of what it holds.

        Raises:
            InvalidInputError: that is nothing: no run came before.
        """
        if self.value is None:
            raise InvalidInputError(f"{self._name!r} holds nothing; call Predictor.run first", name=self._name)
        return np.array(self.value)

    def shape(self) -> list[int]:
        """The shape: of an output, that of the last run."""
        if self._get is None:
            return list(self._shape)
        return [] if self.value is None else list(self.value.shape)

    def type(self) -> DataType:
        """The data type: of what it holds, else what the model declares."""
        return data_type_of(self._dtype if self.value is None else self.value.dtype.name)

    def lod(self) -> list[list[int]]:
        """Paddle's offsets of sequences of different lengths, which no model here has: none."""
        return []

    def set_lod(self, lod: Sequence[Sequence[int]]) -> None:
        """Take none; see `lod`.

        Raises:
            InvalidInputError: there are some.
        """
        if any(map(len, lod)):
            raise InvalidInputError(
                f"input {self._name!r} is given offsets of sequences, which no model here has; pad the sequences",
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


class PredictorPool:
    """Predictors of one model, which share what is compiled. Source: paddle.inference.PredictorPool.

    Args:
        config: of the model.
        size: how many there are.
    """

    def __init__(self, config: Config, size: int = 1) -> None:
        if size < 1:
            raise InvalidOptionError(f"a pool holds at least 1 predictor, got {size}")
        first = create_predictor(config)
        self._predictors = [first, *(first.clone() for _ in range(size - 1))]

    def retrieve(self, index: int) -> Predictor:
        """Return the predictor of a number, from 0."""
        if not 0 <= index < len(self._predictors):
            raise InvalidOptionError(
                f"the pool holds {len(self._predictors)} predictors, there is none of number {index}"
            )
        return self._predictors[index]

    retrive = retrieve
    """As Paddle 2 wrote it."""
