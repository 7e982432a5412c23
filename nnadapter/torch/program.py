"""A region as something that PyTorch calls with tensors: a session, made at the first call.

Weights (parameters and buffers) that a region of inference reads are constants of its session, so that devices pack
them once. A run asks whether they are still what they were (`weights.py`). Where one has changed, a session is made
again: weights that changed `_REPACKED` times are inputs from then on. Other tensors (another module of the same class,
for which PyTorch runs the same graph) are no change: each set has a session of its own, which goes with its tensors.
After `_SETS` sets, all weights of further ones are inputs. In training, all of them are inputs from the start.

Tensors are handed to the session, and back, as arrays in the same memory, but where a device has memory of its own
(`staying.py`); what comes back is held against what the graph says. Where no session can be made of a region, or none
for the sizes that come, it is cut in two (`parts.py`), and so on: what no session takes is run by PyTorch, and the
report says why. A run that fails is done again by PyTorch.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from nnadapter.drivers.selection import REFERENCE
from nnadapter.errors import (
    CompilationError,
    ExecutionError,
    FallbackWarning,
    InvalidInputError,
    InvalidModelError,
    describe,
)
from nnadapter.inference.session import InferenceSession
from nnadapter.onnx.building import initializer_of, with_constants
from nnadapter.process.forking import new_lock
from nnadapter.reports.units import count
from nnadapter.torch.arrays import number_array, to_array
from nnadapter.torch.crossing import crossing
from nnadapter.torch.cutting import Region
from nnadapter.torch.exporting import ExportFailure, export
from nnadapter.torch.parts import Failures, failures_for, halves, joined, weighing_in
from nnadapter.torch.resident import Resident
from nnadapter.torch.results import results_of
from nnadapter.torch.settings import Settings
from nnadapter.torch.staying import Fed, ResidentRunner, TransferredBytes, owning_device
from nnadapter.torch.uses import NO_USES, Uses, roles_of
from nnadapter.torch.weights import Weights, note_weights, taker
from nnadapter.torch_models.layouts import bytes_of, lying_as
from nnadapter.torch_models.operators import is_size
from partition.verdict import Reason, Unsupported

if TYPE_CHECKING:
    import onnx

_REPACKED = 3
"""How often a session is made again because a weight has changed; then it is an input."""
_SETS = 8
"""How many sets of weights are constants in all, those that are gone counted; PyTorch captures a function as often."""
_SESSION_ERRORS = (CompilationError, InvalidModelError)
"""What a region costs its session, and no run: PyTorch can do what it has."""
IsWeight = Callable[[int, Any], bool]
"""Whether an input of a region, by its place, may be a constant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A session, and what it is fed."""

    session: InferenceSession
    weights: Weights
    fed: Fed
    staying: ResidentRunner | None
    """Runs it, where its device has memory of its own and something may stay there."""


class Program:
    """Runs a region; safe to call from several threads."""

    def __init__(
        self,
        region: Region,
        model: onnx.ModelProto,
        settings: Settings,
        is_weight: IsWeight,
        uses: Uses = NO_USES,
        failures: Failures | None = None,
    ) -> None:
        """Take a region and its model.

        Args:
            region: what is run.
            model: the region, exported.
            settings: what its session is made with.
            is_weight: which inputs may be constants.
            uses: of the results.
            failures: those of the region that this is a part of.
        """
        self.region, self.model = region, model
        self.failure: Unsupported | None = None
        """Why PyTorch runs it, where no session could be made."""
        self.repeated: Unsupported | None = None
        """Why PyTorch ran it last in place of its session, for a call that failed there."""
        self.__name__ = self.__qualname__ = f"region_{id(self):x}"  # what calls it in a graph's code
        self._settings, self._is_weight = settings, is_weight
        self._names = [value.name for value in model.graph.input]
        self._converts = [number_array if is_size(node) else to_array(node.meta["val"].dtype) for node in region.inputs]
        self._outputs = [value.name for value in model.graph.output]
        self._uses = uses
        visible = [node.name in uses.visible for node in region.outputs]
        self._results = results_of(region.inputs, region.outputs, visible)
        self._failures = failures or failures_for(region)
        self._run_apart: Callable[..., tuple[Any, ...]] | None = None
        self._parts: tuple[Program, ...] = ()
        self._changes: dict[int, int] = {}
        self._weighing: tuple[int, ...] | None = None  # the inputs that are weights, known at the first call
        self._taken = taker(())  # takes these out of the inputs
        self._sets: dict[tuple[int, ...], Bound] = {}  # by the identities of the weights
        self._begun = 0
        self._plain: Bound | None = None  # without constants
        self._lock = new_lock()

    @property
    def leaves(self) -> list[Program]:
        """The programs that it was cut into, in order; itself alone where it is whole."""
        return [leaf for part in self._parts for leaf in part.leaves] or [self]

    def sessions(self, tensors: frozenset[int] = frozenset()) -> list[InferenceSession]:
        """The sessions of its sets of weights: the latest that is among `tensors`, by identity, or else all."""
        if self.failure is not None:
            return []
        sets = list(self._sets.items())
        matches = [bound for key, bound in sets if not tensors.isdisjoint(key)]
        bounds = matches[-1:] or [*(bound for _, bound in sets), *([self._plain] if self._plain else [])]
        return [bound.session for bound in bounds]

    def has_run(self, tensors: frozenset[int]) -> bool:
        """Whether a session has one of these tensors, by their identities, among its weights."""
        return any(not tensors.isdisjoint(key) for key in list(self._sets))

    @property
    def moved(self) -> TransferredBytes:
        """Bytes of a call: of the last one where a device has memory of its own, which counts, else by the graph."""
        bound = self._latest
        if bound is None:
            return TransferredBytes(0, 0, 0, 0)
        if bound.staying is not None:
            return bound.staying.moved
        fed = sum(bytes_of(self.region.inputs[place].meta["val"]) for _, place, _ in bound.fed)
        output_bytes = sum(bytes_of(node.meta["val"]) for node in self.region.outputs)
        return TransferredBytes(
            fed,
            output_bytes,
            *((crossing(bound.session) or (fed, output_bytes)) if owning_device(bound.session) else (0, 0)),
        )

    @property
    def is_crowded(self) -> bool:
        """Whether a device had no room for what stays there, when it was last tried."""
        bound = self._latest
        return bound is not None and bound.staying is not None and bound.staying.is_crowded

    @property
    def _latest(self) -> Bound | None:
        return None if self.failure else next(reversed(list(self._sets.values())), self._plain)

    @property
    def varying(self) -> int:
        """How many weights changed so often that they are inputs."""
        return sum(changes > _REPACKED for changes in self._changes.values())

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Run the region.

        Raises:
            NNAdapterError: what `InferenceSession` and its `run` raise, but for what can be run in PyTorch.
        """
        if self._run_apart is not None:
            return self._run_apart(*inputs)
        bound = self._sets.get(self._key(inputs), self._plain)
        is_new = bound is None
        try:
            if bound is None or not bound.weights.hold(inputs):
                bound = self._bind(inputs)
            if bound.staying is not None:
                results = bound.staying.run(inputs, self._results)
            else:
                feeds = {name: convert(inputs[place]) for name, place, convert in bound.fed}
                results = self._results(bound.session.run(self._outputs, feeds), inputs)
            if is_new and self._rests_on_last_resort(bound.session):
                self._leave_whole()
            return results
        except _SESSION_ERRORS as error:
            return self._cut(error, inputs)
        except (ExecutionError, InvalidInputError) as error:
            return self._again(error, inputs)

    def _rests_on_last_resort(self, session: InferenceSession) -> bool:
        """Whether most of the session's last run was on onnx's reference evaluator, for which nobody asked.

        PyTorch computes what the CPU's engine has no kernels for (bfloat16) many times as fast.
        """
        steps = session.provenance.steps if session.provenance is not None else ()
        spare = sum(step.seconds for step in steps if step.device == REFERENCE)
        named = {request if isinstance(request, str) else request[0] for request in self._settings.devices}
        return REFERENCE not in named and 2 * spare > sum(step.seconds for step in steps)

    def _leave_whole(self) -> None:
        """Have PyTorch run the region from the next call on."""
        detail = "neither its devices nor ONNX Runtime's CPU take most of it"
        with self._lock:
            first = self._run_apart is None
            self._run_apart = self._left(Unsupported(Reason.UNSUPPORTED_OPERATION, detail))
        if first:
            self._warn("compile", "which is faster there", InvalidModelError(detail))

    def _cut(self, error: CompilationError | InvalidModelError, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Run what no session can be made of: in parts if it has several operators, by PyTorch if not."""
        if self._settings.options.fallback_at("compile") == "forbid":
            raise error
        with self._lock:
            first = self._run_apart is None
            if first:
                self._run_apart = self._divided() or self._left(Unsupported(Reason.COMPILE_FAILED, describe(error)))
        if first and self.failure is not None:
            self._warn("compile", "of which no session could be made", error)
        run: Callable[..., tuple[Any, ...]] = self._run_apart  # type: ignore[assignment]  # set above
        return run(*inputs)

    def _divided(self) -> Callable[..., tuple[Any, ...]] | None:
        """What runs the region in two parts; None where it is not to be divided."""
        if len(self.region.working) < 2 or not self._failures.take():
            return None
        module, regions = halves(self.region)
        weighing = [weighing_in(module, region, self._is_weight) for region in regions]
        try:
            self._parts = tuple(self._part(*pair) for pair in zip(regions, weighing, strict=True))
        except ExportFailure:  # as a whole it was
            return None
        return joined(module, regions, self._parts)

    def _part(self, region: Region, is_weight: IsWeight) -> Program:
        with ThreadPoolExecutor(1) as thread:  # what runs a compiled graph has switched parts of PyTorch off in its own
            model = thread.submit(export, region.module).result()
        return Program(region, model, self._settings, is_weight, self._uses, self._failures)

    def _left(self, reason: Unsupported) -> Callable[..., tuple[Any, ...]]:
        self.failure = reason
        return self._in_pytorch

    def _again(self, error: ExecutionError | InvalidInputError, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Run by PyTorch what failed in its session; what fails there, too, is the caller's, as without us."""
        if self._settings.options.fallback_at("run") == "forbid":
            raise error
        results = self._in_pytorch(*inputs)
        first, self.repeated = self.repeated is None, Unsupported(Reason.DRIVER_ERROR, describe(error))
        if first:
            self._warn("run", "whose session failed", error)
        return results

    def _warn(self, stage: str, reason: str, error: Exception) -> None:
        if self._settings.options.fallback_at(stage) == "warn":
            text = f"PyTorch runs {count(len(self.region.working), 'operator')}, {reason}: {describe(error)}"
            warnings.warn(FallbackWarning(text), stacklevel=4)

    def _in_pytorch(self, *inputs: Any) -> tuple[Any, ...]:
        lays = [lying_as(node.meta["val"]) for node in self.region.inputs]
        laid = [lay(value) if lay else value for lay, value in zip(lays, inputs, strict=True)]
        return tuple(self.region.module(*laid))

    def _key(self, inputs: Sequence[Any]) -> tuple[int, ...]:
        return tuple(map(id, self._taken(inputs)))

    def _bind(self, inputs: Sequence[Any]) -> Bound:
        with self._lock:
            if self._weighing is None:
                self._weighing = tuple(place for place, value in enumerate(inputs) if self._is_weight(place, value))
                self._taken = taker(self._weighing)
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
        each = ((self._names[place], place, self._converts[place]) for place in range(len(inputs)))
        constant = frozenset(weights.places)
        fed = tuple(feed for feed in each if feed[1] not in constant)
        return Bound(session=session, weights=weights, fed=fed, staying=self._staying(session, fed, inputs))

    def _staying(self, session: InferenceSession, fed: Fed, inputs: Sequence[Any]) -> ResidentRunner | None:
        roles = roles_of(self.region, self._uses)
        weighs = any(isinstance(inputs[place], (torch.nn.Parameter, Resident)) for _, place, _ in fed)
        follows = any(self.region.inputs[place].op == "call_function" for _, place, _ in fed)  # another region
        if not (weighs or follows or roles.staying) or not (device := owning_device(session)):
            return None
        dtypes = [node.meta["val"].dtype for node in self.region.outputs]
        return ResidentRunner(session, device, fed, dict(zip(self._outputs, dtypes, strict=True)), roles)
