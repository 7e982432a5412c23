"""A region as something that PyTorch calls with tensors: a session, made at the first call.

Weights (parameters and buffers) that a region of inference reads are constants of its session, so that devices pack
them once. A run asks PyTorch whether they are still the same tensors, in the same memory, of the same version; that
costs about 0.2 us for each. Where one has changed, a session is made again: weights that changed `_REPACKED` times are
inputs from then on. In training, all of them are inputs from the start.

Tensors are handed to the session, and back, as arrays in the same memory. Where no session can be made of a region, or
none for the sizes that come, PyTorch runs it, and the report says why.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Any

import torch

from nnadapter.errors import CompilationError, FallbackWarning, InvalidModelError, describe
from nnadapter.inference.session import InferenceSession
from nnadapter.onnx.building import initializer_of, with_constants
from nnadapter.torch.arrays import number_array, to_array, to_tensor
from nnadapter.torch.cutting import Region
from nnadapter.torch.layouts import laid_out, order_of
from nnadapter.torch.operators import is_size
from nnadapter.torch.settings import Settings
from partition.verdict import Reason, Unsupported

if TYPE_CHECKING:
    import onnx

_REPACKED = 3
"""How often a session is made again because a weight has changed; then it is an input."""
_NOT_MADE = (CompilationError, InvalidModelError)
"""What a region costs its session, and no run: PyTorch can do what it has."""
_version = attrgetter("_version")
_memory = torch.Tensor.data_ptr
IsWeight = Callable[[int, Any], bool]
"""Whether an input of a region, by its place, may be a constant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """The tensors that a session has as constants, as they were when it was made."""

    places: tuple[int, ...]
    """Which of the region's inputs they are."""
    tensors: tuple[Any, ...]
    versions: tuple[int, ...]
    addresses: tuple[int, ...]

    def hold(self, inputs: Sequence[Any]) -> bool:
        """Whether all of them are what they were, by the inputs of a call."""
        given = [inputs[place] for place in self.places]
        return (
            all(map(is_, given, self.tensors))
            and tuple(map(_version, given)) == self.versions
            and tuple(map(_memory, given)) == self.addresses
        )

    def changed(self, inputs: Sequence[Any]) -> list[int]:
        """The places of those that are not what they were."""
        was = zip(self.places, self.tensors, self.versions, self.addresses, strict=True)
        return [
            place
            for place, tensor, version, address in was
            if inputs[place] is not tensor or _version(tensor) != version or _memory(tensor) != address
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A session, and what it is fed."""

    session: InferenceSession
    weights: Weights
    fed: tuple[tuple[str, int, Callable[[Any], Any]], ...]
    """For each input of the session its name, which of the region's inputs it is, and what makes an array of it."""


class Program:
    """Runs a region; safe to call from several threads."""

    def __init__(
        self,
        region: Region,
        model: onnx.ModelProto,
        settings: Settings,
        is_weight: IsWeight,
        visible: Collection[str] = (),
    ) -> None:
        """Take a region and its model; `visible` names the results whose layout somebody may see."""
        self.region, self.model = region, model
        self.failure: Unsupported | None = None
        """Why PyTorch runs it, where no session could be made."""
        self.__name__ = self.__qualname__ = f"region_{id(self):x}"  # what calls it in a graph's code
        self._settings, self._is_weight = settings, is_weight
        self._names = [value.name for value in model.graph.input]
        self._converts = [number_array if is_size(node) else to_array(node.meta["val"].dtype) for node in region.inputs]
        self._outputs = [value.name for value in model.graph.output]
        self._results = tuple(_result(node.meta["val"], node.name in visible) for node in region.outputs)
        self._changes: dict[int, int] = {}
        self._bound: Bound | None = None
        self._lock = threading.Lock()

    @property
    def session(self) -> InferenceSession | None:
        """The session that runs it now; None before the first call, and where PyTorch runs it."""
        bound = self._bound
        return bound.session if bound is not None and self.failure is None else None

    @property
    def varying(self) -> int:
        """How many weights changed so often that they are inputs."""
        return sum(count > _REPACKED for count in self._changes.values())

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Run the region.

        Raises:
            NNAdapterError: what `InferenceSession` and its `run` raise, but for what can be run in PyTorch.
        """
        if self.failure is not None:
            return self._in_pytorch(inputs)
        bound = self._bound
        try:
            if bound is None or not bound.weights.hold(inputs):
                bound = self._bind(inputs)
            feeds = {name: convert(inputs[place]) for name, place, convert in bound.fed}
            arrays = bound.session.run(self._outputs, feeds)
        except _NOT_MADE as error:
            return self._left(error, inputs)
        return tuple([result(array) for result, array in zip(self._results, arrays, strict=True)])

    def _left(self, error: CompilationError | InvalidModelError, inputs: Sequence[Any]) -> tuple[Any, ...]:
        fallback = self._settings.options.fallback
        if fallback == "forbid":
            raise error
        with self._lock:
            first, self.failure = self.failure is None, Unsupported(Reason.COMPILE_FAILED, describe(error))
        if first and fallback == "warn":
            text = f"{self.region.computing} operators run in PyTorch, since no session could be made of them: {error}"
            warnings.warn(FallbackWarning(text), stacklevel=3)
        return self._in_pytorch(inputs)

    def _in_pytorch(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(self.region.module(*inputs))

    def _bind(self, inputs: Sequence[Any]) -> Bound:
        with self._lock:
            if self._bound is not None:
                changed = self._bound.weights.changed(inputs)
                if not changed:  # another thread was here
                    return self._bound
                self._changes.update({place: self._changes.get(place, 0) + 1 for place in changed})
            self._bound = self._made(inputs)
            return self._bound

    def _made(self, inputs: Sequence[Any]) -> Bound:
        weights = _weights(
            inputs,
            tuple(
                place
                for place, value in enumerate(inputs)
                if self._changes.get(place, 0) <= _REPACKED and self._is_weight(place, value)
            ),
        )
        constants = [
            initializer_of(self._names[place], self._converts[place](inputs[place])) for place in weights.places
        ]
        model = with_constants(self.model, constants) if constants else self.model
        session = InferenceSession(model, devices=self._settings.devices, options=self._settings.options)
        fed = ((self._names[place], place, self._converts[place]) for place in range(len(inputs)))
        constant = frozenset(weights.places)
        return Bound(session=session, weights=weights, fed=tuple(each for each in fed if each[1] not in constant))


def _weights(inputs: Sequence[Any], places: tuple[int, ...]) -> Weights:
    tensors = tuple(inputs[place] for place in places)
    versions, addresses = tuple(map(_version, tensors)), tuple(map(_memory, tensors))
    return Weights(places=places, tensors=tensors, versions=versions, addresses=addresses)


def _result(like: Any, is_visible: bool) -> Callable[[Any], Any]:
    """What makes a tensor of an array, laid out in memory as PyTorch's own would be where somebody may see it."""
    convert, order = to_tensor(like.dtype), order_of(like) if is_visible else None
    if order is None:
        return convert
    arrange = laid_out(order)
    return lambda array: arrange(convert(array))
