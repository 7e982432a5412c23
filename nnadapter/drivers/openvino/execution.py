"""A request of the engine; tensors are bound over the arrays' own memory, and nothing is copied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from nnadapter.drivers.control import Control
from nnadapter.drivers.interface import Execution
from nnadapter.drivers.openvino.engine import brief, module
from nnadapter.drivers.openvino.signature import Ports
from nnadapter.errors import ExecutionError
from nnadapter.ir.operand import Array

_LOOK_MS = 2
"""How often somebody who may stop a computation is asked; the engine tells at once when it is done."""


class OpenvinoExecution(Execution):
    """One request, which computes one thing at a time.

    A tensor stays bound until memory at another address is given: callers that use their arrays again bind them once.
    """

    def __init__(self, request: Any, signature: Ports) -> None:
        self._request = request
        self._infer = _plain_infer(request)
        self._tensor = module().Tensor
        self._inputs = signature.inputs
        self._outputs = tuple((output.known_shape, np.dtype(output.dtype)) for output in signature.outputs)
        self._bound_inputs: list[object] = [None] * len(signature.inputs)
        self._bound_outputs: list[object] = [None] * len(signature.outputs)

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

    def _infer_while_wanted(self, cancelled: Callable[[], bool]) -> None:
        self._request.start_async()
        while not self._request.wait_for(_LOOK_MS):
            if cancelled():
                self._request.cancel()
                break
        self._request.wait()

    def _computed(
        self, inputs: Sequence[Array], results: Sequence[Array | None], infer: Callable[[], object]
    ) -> Sequence[Array]:
        try:
            for position, (port, array) in enumerate(zip(self._inputs, inputs, strict=True)):
                if port is not None:
                    self._bind(self._request.set_input_tensor, port, array, self._bound_inputs, position)
            for port, result in enumerate(results):
                if result is not None:
                    self._bind(self._request.set_output_tensor, port, result, self._bound_outputs, port)
            infer()
            return [self._copied(port) if result is None else result for port, result in enumerate(results)]
        except Exception as error:
            raise ExecutionError(f"OpenVINO failed while it ran: {brief(error)}; check the inputs") from error

    def _copied(self, port: int) -> Array:
        """An output whose size nobody knew before: the engine keeps its own memory for the next run."""
        return np.array(self._request.get_output_tensor(port).data, self._outputs[port][1])

    def close(self) -> None:
        """See `Execution.close`."""
        del self._infer, self._request

    def _bind(self, setter: Callable[..., None], port: int, array: Array, bound: list[object], position: int) -> None:
        interface = array.__array_interface__
        place = (interface["data"][0], interface["shape"], interface["typestr"], interface["strides"])
        if bound[position] == place:
            return
        bound[position] = None
        setter(port, self._tensor(_shareable(array, interface), shared_memory=True))
        bound[position] = place


def _never() -> bool:
    return False


class _Memory:
    """Somebody else's memory, as numpy takes it."""

    __slots__ = ("__array_interface__",)

    def __init__(self, interface: dict[str, Any]) -> None:
        self.__array_interface__ = interface


def _shareable(array: Array, interface: dict[str, Any]) -> Array:
    """The array as the engine shares it.

    Its Python interface refuses what is read-only, although it only reads from inputs. So it gets the same memory under
    an array that does not say so; the one given stays alive as long as the run.
    """
    if array.flags.writeable:
        return array
    interface["data"] = (interface["data"][0], False)
    return np.asarray(_Memory(interface))


def _plain_infer(request: Any) -> Callable[[], object]:
    """The request's `infer` with its tensors as they are, without the layer that sorts inputs, where that is known."""
    native: Any = next((base for base in type(request).__mro__[1:] if base.__name__ == "InferRequest"), None)
    if native is None:
        return partial(request.infer, share_outputs=True)
    return partial(native.infer, request, {}, share_outputs=True, decode_strings=False)
