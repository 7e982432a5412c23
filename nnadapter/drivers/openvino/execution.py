"""A request of the engine; tensors are bound over the arrays' own memory, and nothing is copied."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from nnadapter.drivers.control import Control
from nnadapter.drivers.interface import Execution
from nnadapter.drivers.openvino.engine import brief, module
from nnadapter.drivers.openvino.ports import Ports
from nnadapter.drivers.openvino.sharing import shareable
from nnadapter.errors import ExecutionError
from nnadapter.ir.operand import Array

_LOOK_MS = 2
"""How often somebody who may stop a computation is asked; the engine tells at once when it is done."""


class OpenvinoExecution(Execution):
    """One request, which computes one thing at a time.

    A tensor stays bound until memory at another address is given: callers that use their arrays again bind them once.
    Where sizes are open, arrays are nearly always others, and go in with the run.
    """

    def __init__(self, request: Any, signature: Ports, read_from: object = None) -> None:
        """Hold a request.

        Args:
            request: the engine's.
            signature: its ports.
            read_from: memory that the engine may look into as long as the request lives: it holds none itself.
        """
        self._request = request
        self._copies = all(output.known_shape is None for output in signature.outputs)
        """The engine hands over copies of its outputs: none is written into given memory."""
        self._infer = _plain_infer(request, self._copies)
        self._tensor = module().Tensor
        self._inputs = signature.inputs
        self._open = frozenset(port for port, each in enumerate(request.model_inputs) if each.partial_shape.is_dynamic)
        self._outputs = tuple((output.known_shape, np.dtype(output.dtype)) for output in signature.outputs)
        self._bound_inputs: list[object] = [None] * len(signature.inputs)
        self._bound_outputs: list[object] = [None] * len(signature.outputs)
        self._read_from = read_from  # the last one, so that it goes after the request

    def compute(self, inputs: Sequence[Array]) -> Sequence[Array]:
        """See `Execution.compute`. The engine reads the given arrays, and writes into new ones that are handed over.

        Raises:
            ExecutionError: the engine does not take the inputs, or fails.
        """
        return self._computed(inputs, self._new(), self._infer)

    def compute_within(self, inputs: Sequence[Array], control: Control) -> Sequence[Array]:
        """See `Execution.compute_within`: the engine is stopped between two of its nodes."""
        return self._computed(inputs, self._new(), partial(self._infer_while_wanted, control.cancelled or _never))

    def compute_into(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Sequence[Array]:
        """See `Execution.compute_into`, and `compute`. What is used again stays bound."""
        return self._computed(inputs, outputs, self._infer)

    def _new(self) -> Sequence[Array | None]:
        """Arrays for the outputs, None for those whose size is not known."""
        return [None if shape is None else np.empty(shape, dtype) for shape, dtype in self._outputs]

    def _infer_while_wanted(self, cancelled: Callable[[], bool], fed: Mapping[int, Any]) -> Sequence[Any]:
        self._request.start_async(fed)
        while not self._request.wait_for(_LOOK_MS):
            if cancelled():
                self._request.cancel()
                break
        self._request.wait()
        return [
            None if shape is not None else self._request.get_output_tensor(port).data.copy()
            for port, (shape, _) in enumerate(self._outputs)
        ]

    def _computed(
        self, inputs: Sequence[Array], results: Sequence[Array | None], infer: Callable[[Mapping[int, Any]], Any]
    ) -> Sequence[Array]:
        fed = {}
        try:
            for position, (port, array) in enumerate(zip(self._inputs, inputs, strict=True)):
                if port in self._open:
                    fed[port] = self._tensor(shareable(array), shared_memory=True)
                elif port is not None:
                    self._bind(self._request.set_input_tensor, port, array, self._bound_inputs, position)
            for port, result in enumerate(results):
                if result is not None:
                    self._bind(self._request.set_output_tensor, port, result, self._bound_outputs, port)
            return [
                self._own(view, dtype) if result is None else result
                for view, result, (_, dtype) in zip(infer(fed), results, self._outputs, strict=True)
            ]
        except Exception as error:
            raise ExecutionError(f"OpenVINO failed while it ran: {brief(error)}; check the inputs") from error

    def _own(self, made: Array, dtype: np.dtype[Any]) -> Array:
        """An output whose size nobody knew before; the engine keeps its own memory for the next run."""
        return np.asarray(made, dtype) if self._copies else np.array(made, dtype)

    def close(self) -> None:
        """See `Execution.close`."""
        del self._infer, self._request

    def _bind(self, setter: Callable[..., None], port: int, array: Array, bound: list[object], position: int) -> None:
        interface = array.__array_interface__
        place = (interface["data"][0], interface["shape"], interface["typestr"], interface["strides"])
        if bound[position] == place:
            return
        bound[position] = None
        setter(port, self._tensor(shareable(array), shared_memory=True))
        bound[position] = place


def _never() -> bool:
    return False


def _plain_infer(request: Any, copies: bool) -> Callable[[Mapping[int, Any]], Iterable[Array]]:
    """The request's `infer`, from tensors by port to its outputs, as copies or as views.

    Where it is known, it is the one without the layer that sorts inputs.
    """
    native: Any = next((base for base in type(request).__mro__[1:] if base.__name__ == "InferRequest"), None)
    if native is None:
        return lambda fed: request.infer(fed, share_inputs=True, share_outputs=not copies).values()
    return lambda fed: native.infer(request, fed, share_outputs=not copies, decode_strings=False).values()
