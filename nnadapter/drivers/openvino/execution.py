"""A request of the engine; tensors are bound over the arrays' own memory, and nothing but small outputs is copied."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import prod
from typing import Any

import numpy as np

from nnadapter.drivers.control import Control
from nnadapter.drivers.interface import Execution
from nnadapter.drivers.openvino.engine import brief, module
from nnadapter.drivers.openvino.living import RecoverableModel
from nnadapter.drivers.openvino.ports import Ports
from nnadapter.drivers.openvino.sharing import shareable
from nnadapter.errors import ExecutionError
from nnadapter.ir.operand import Array

_FEW_BYTES = 1 << 16
"""Outputs up to this size stay in the engine's memory and are copied: to bind memory takes 3 us, to copy these less."""
_NOTHING: Mapping[int, Any] = {}
_LOOK_MS = 2
"""How often somebody who may stop a computation is asked; the engine tells at once when it is done."""
_COUNTING = frozenset(("NonMaxSuppression", "NonZero"))
"""Nodes of the engine whose data decide sizes."""


class OpenvinoExecution(Execution):
    """One request, which computes one thing at a time.

    A tensor stays bound until memory at another address is given: callers that use their arrays again bind them once.
    Where sizes are open, arrays are nearly always others, and go in with the run.
    """

    def __init__(self, living: RecoverableModel, signature: Ports) -> None:
        """Make a request.

        Args:
            living: of which model.
            signature: its ports.
        """
        self._inputs = signature.inputs
        self._outputs = tuple((output.known_shape, np.dtype(output.dtype)) for output in signature.outputs)
        self._tensor = module().Tensor
        self._fed = tuple((position, port) for position, port in enumerate(signature.inputs) if port is not None)
        self._begin(living.latest())

    def _begin(self, living: RecoverableModel) -> None:
        """Hold a request of a model, to which nothing is bound."""
        request = living.compiled.create_infer_request()
        self._infer, self._infer_copies = _plain_infer(request, copies=False), _plain_infer(request, copies=True)
        self._set_input = request.set_input_tensor
        self._open = frozenset(
            port for port, model_input in enumerate(request.model_inputs) if model_input.partial_shape.is_dynamic
        )
        self._knows_sizes = False if self._open else None
        self._stays = [shape is None or _is_small(shape, dtype) for shape, dtype in self._outputs]
        """Outputs that lie in the engine's memory, until other memory is given for them."""
        self._is_plain = all(self._stays) and not self._open
        """A run is told nothing, and gives copies."""
        self._bound_inputs: list[object] = [None] * len(self._inputs)
        self._bound_outputs: list[object] = [None] * len(self._outputs)
        self._request = request
        self._living = living  # the last one, so that the memory that is read from goes after the request

    def compute(self, inputs: Sequence[Array]) -> Sequence[Array]:
        """See `Execution.compute`. The engine reads the given arrays, and writes into new ones that are handed over.

        Raises:
            ExecutionError: the engine does not take the inputs, or fails.
        """
        self._begin_again()
        if self._is_plain:
            return self._copied(inputs)
        return self._computed(inputs, self._new(), self._infer_copies if all(self._stays) else self._infer)

    def compute_within(self, inputs: Sequence[Array], control: Control) -> Sequence[Array]:
        """See `Execution.compute_within`: the engine is stopped between two of its nodes, where all sizes are known.

        Where some are open, or data decide them, it computes to its end. Nodes that did not run would have made room at
        the sizes of the run that was stopped, and keep it at those of the run before: results are wrong, or of another
        shape. Seen with OpenVINO 2026.4.
        """
        self._begin_again()
        return self._computed(inputs, self._new(), partial(self._infer_while_wanted, control.cancelled or _never))

    def compute_into(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Sequence[Array]:
        """See `Execution.compute_into`, and `compute`. What is used again stays bound."""
        self._begin_again()
        return self._computed(inputs, outputs, self._infer)

    def _copied(self, inputs: Sequence[Array]) -> Sequence[Array]:
        """Copies of what the engine makes in its own memory."""
        try:
            for position, port in self._fed:
                self._bind(self._set_input, port, inputs[position], self._bound_inputs, position)
            pairs = zip(self._infer_copies(_NOTHING), self._outputs, strict=True)
            return [np.asarray(array, dtype) for array, (_, dtype) in pairs]
        except Exception as error:
            raise _failed(error) from error

    def _new(self) -> Sequence[Array | None]:
        """Arrays for the outputs, None for those that are read from the engine's own memory."""
        return [
            None if stays or shape is None else np.empty(shape, dtype)
            for (shape, dtype), stays in zip(self._outputs, self._stays, strict=True)
        ]

    def _infer_while_wanted(self, cancelled: Callable[[], bool], fed: Mapping[int, Any]) -> Sequence[Any]:
        try:
            self._request.start_async(fed)
            while not self._request.wait_for(_LOOK_MS):
                if cancelled() and self._may_stop():
                    self._request.cancel()
                    with suppress(Exception):  # it says that it was cancelled
                        self._request.wait()
                    raise ExecutionError("OpenVINO was stopped")
            self._request.wait()
        except BaseException:  # an interrupt: the engine still works, on arrays that go with the frames above
            with suppress(Exception):  # it says that it was cancelled
                if self._may_stop():
                    self._request.cancel()
                self._request.wait()
            raise
        return [
            self._request.get_output_tensor(port).data.copy() if stays else None
            for port, stays in enumerate(self._stays)
        ]

    def _may_stop(self) -> bool:
        """Whether all sizes are known before a run; looked up when a run is to stop, which takes some milliseconds."""
        if self._knows_sizes is None:
            self._knows_sizes = False  # where the engine does not tell its graph
            with suppress(Exception):
                nodes = self._request.get_compiled_model().get_runtime_model().get_ops()
                self._knows_sizes = all(node.get_rt_info()["layerType"].astype(str) not in _COUNTING for node in nodes)
        return self._knows_sizes

    def _computed(
        self, inputs: Sequence[Array], results: Sequence[Array | None], infer: Callable[[Mapping[int, Any]], Any]
    ) -> Sequence[Array]:
        fed = {}
        try:
            for position, (port, array) in enumerate(zip(self._inputs, inputs, strict=True)):
                if port in self._open:
                    fed[port] = self._tensor(shareable(array), shared_memory=True)
                elif port is not None:
                    self._bind(self._set_input, port, array, self._bound_inputs, position)
            for port, result in enumerate(results):
                if result is not None:
                    self._stays[port] = self._is_plain = False
                    self._bind(self._request.set_output_tensor, port, result, self._bound_outputs, port)
            make_array = np.array if infer is self._infer else np.asarray  # of views, or of copies
            computed = self._at_open_sizes(infer, fed) if self._open else infer(fed)
            return [
                make_array(output, dtype) if result is None else result
                for output, result, (_, dtype) in zip(computed, results, self._outputs, strict=True)
            ]
        except ExecutionError:  # it was stopped, or others failed
            raise
        except Exception as error:
            raise _failed(error) from error

    def _at_open_sizes(self, infer: Callable[[Mapping[int, Any]], Any], fed: Mapping[int, Any]) -> Any:
        """What the engine computes, where no run failed before, or meanwhile."""
        living = self._living
        with living.turn:
            if living.why:
                raise self._not_trusted()
            try:
                computed = infer(fed)
            except ExecutionError:  # it was stopped
                raise
            except Exception as error:
                living.why = living.why or brief(error)
                raise
        if living.why:
            raise self._not_trusted()
        return computed

    def _begin_again(self) -> None:
        """Go on with the model in the place of one by which a run failed, in this execution or in another."""
        if not self._living.why:
            return
        try:
            living = self._living.latest()
            if living is not self._living:
                self._begin(living)
        except Exception as error:
            raise self._not_trusted() from error
        if self._living.why:
            raise self._not_trusted()

    def _not_trusted(self) -> ExecutionError:
        return ExecutionError(
            f"OpenVINO failed at other sizes before ({self._living.why}), and is not to be trusted after that; "
            "make the session again for runs on the device"
        )

    def close(self) -> None:
        """See `Execution.close`."""
        del self._infer, self._infer_copies, self._set_input, self._request, self._living

    def _bind(self, setter: Callable[..., None], port: int, array: Array, bound: list[object], position: int) -> None:
        interface = array.__array_interface__
        place = (interface["data"][0], interface["shape"], interface["typestr"], interface["strides"])
        if bound[position] == place:
            return
        bound[position] = None
        setter(port, self._tensor(shareable(array), shared_memory=True))
        bound[position] = place


def _failed(error: Exception) -> ExecutionError:
    return ExecutionError(f"OpenVINO failed while it ran: {brief(error)}; check the inputs")


def _is_small(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "biuf" and prod(shape) * dtype.itemsize <= _FEW_BYTES


def _never() -> bool:
    return False


def _plain_infer(request: Any, *, copies: bool) -> Callable[[Mapping[int, Any]], Iterable[Array]]:
    """The request's `infer`, from tensors by port to its outputs, as copies or as views.

    Where it is known, it is the one without the layer that sorts inputs.
    """
    native: Any = next((base for base in type(request).__mro__[1:] if base.__name__ == "InferRequest"), None)
    if native is None:
        return lambda fed: request.infer(fed, share_inputs=True, share_outputs=not copies).values()
    return lambda fed: native.infer(request, fed, share_outputs=not copies, decode_strings=False).values()
