"""A region as something that PyTorch calls with tensors: a session, made at the first call.

Weights (parameters and buffers) that a region of inference reads are constants of its session, so that devices pack
them once. A run asks whether they are still what they were (`weights.py`). Where one has changed, a session is made
again: weights that changed `_REPACKED` times are inputs from then on. Other tensors (another module of the same class,
for which PyTorch runs the same graph) are no change: each set has a session of its own, which goes with its tensors.
After `_SETS` sets, all weights of further ones are inputs. In training, all of them are inputs from the start.

Tensors are handed to the session, and back, as arrays in the same memory. Where no session can be made of a region, or
none for the sizes that come, PyTorch runs it, and the report says why.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nnadapter.errors import CompilationError, FallbackWarning, InvalidModelError, describe
from nnadapter.inference.session import InferenceSession
from nnadapter.onnx.building import initializer_of, with_constants
from nnadapter.torch.arrays import number_array, to_array, to_tensor
from nnadapter.torch.cutting import Region
from nnadapter.torch.layouts import laid_out, order_of
from nnadapter.torch.operators import is_size
from nnadapter.torch.settings import Settings
from nnadapter.torch.weights import Weights, note_weights
from partition.verdict import Reason, Unsupported

if TYPE_CHECKING:
    import onnx

_REPACKED = 3
"""How often a session is made again because a weight has changed; then it is an input."""
_SETS = 8
"""How many sets of weights are constants in all, those that are gone counted; PyTorch captures a function as often."""
_NOT_MADE = (CompilationError, InvalidModelError)
"""What a region costs its session, and no run: PyTorch can do what it has."""
IsWeight = Callable[[int, Any], bool]
"""Whether an input of a region, by its place, may be a constant."""


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
        self._weighing: tuple[int, ...] | None = None  # the inputs that are weights, known at the first call
        self._sets: dict[tuple[int, ...], Bound] = {}  # by the identities of the weights
        self._begun = 0
        self._plain: Bound | None = None  # without constants
        self._lock = threading.Lock()

    @property
    def session(self) -> InferenceSession | None:
        """The session of the latest set of weights; None before the first call, and where PyTorch runs it."""
        bound = next(reversed(list(self._sets.values())), self._plain)
        return bound.session if bound is not None and self.failure is None else None

    def has_run(self, tensors: frozenset[int]) -> bool:
        """Whether a session has one of these tensors, by their identities, among its weights."""
        return any(not tensors.isdisjoint(key) for key in list(self._sets))

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
        bound = self._sets.get(self._key(inputs), self._plain)
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

    def _key(self, inputs: Sequence[Any]) -> tuple[int, ...]:
        return tuple([id(inputs[place]) for place in self._weighing or ()])

    def _bind(self, inputs: Sequence[Any]) -> Bound:
        with self._lock:
            if self._weighing is None:
                self._weighing = tuple(place for place, value in enumerate(inputs) if self._is_weight(place, value))
            key = self._key(inputs)
            bound = self._sets.get(key)
            if bound is None:
                self._begun += 1
                if self._begun > _SETS:
                    self._plain = self._plain or self._made(inputs, key, ())
                    return self._plain
            else:
                changed = bound.weights.changed(inputs)
                if not changed:  # another thread was here
                    return bound
                self._changes.update({place: self._changes.get(place, 0) + 1 for place in changed})
            self._sets[key] = bound = self._made(inputs, key, self._constant(inputs))
            return bound

    def _constant(self, inputs: Sequence[Any]) -> tuple[int, ...]:
        return tuple(
            place
            for place in self._weighing or ()
            if self._changes.get(place, 0) <= _REPACKED and not inputs[place].is_inference()
        )

    def _gone(self, key: tuple[int, ...]) -> Callable[[Any], None]:
        """What forgets a set of weights when one of them is no more: its identity may come again."""
        program = weakref.ref(self)

        def forget(_: Any) -> None:
            alive = program()
            if alive is not None:
                alive._sets.pop(key, None)

        return forget

    def _made(self, inputs: Sequence[Any], key: tuple[int, ...], places: tuple[int, ...]) -> Bound:
        weights = note_weights(inputs, places, self._gone(key))
        constants = [
            initializer_of(self._names[place], self._converts[place](inputs[place])) for place in weights.places
        ]
        model = with_constants(self.model, constants) if constants else self.model
        session = InferenceSession(model, devices=self._settings.devices, options=self._settings.options)
        fed = ((self._names[place], place, self._converts[place]) for place in range(len(inputs)))
        constant = frozenset(weights.places)
        return Bound(session=session, weights=weights, fed=tuple(each for each in fed if each[1] not in constant))


def _result(like: Any, is_visible: bool) -> Callable[[Any], Any]:
    """What makes a tensor of an array, laid out in memory as PyTorch's own would be where somebody may see it."""
    convert, order = to_tensor(like.dtype), order_of(like) if is_visible else None
    if order is None:
        return convert
    arrange = laid_out(order)
    return lambda array: arrange(convert(array))
