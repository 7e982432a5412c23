"""Regions as callables: sessions with weights as constants, and PyTorch as fallback.

At inference, weights are constants of a session, so devices pack them once. If a weight changes, a new session replaces
the old one; after `_REPACKED` changes, the weight becomes an input. Another set of weights, as of another module of the
class, gets its own session. After `_SETS` sets, all weights are inputs, as in training.

PyTorch counts changes in place (`_version`), but not by fused optimizers, batch normalization, `parameter.data` and
`parameter.numpy()`. So a hook counts optimizer steps, and memory is compared, but only some words of large tensors.

If a session cannot be created, its region is bisected. PyTorch runs operators without a session, and repeats failed
runs.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.weak import WeakIdKeyDictionary

from nnadapter import errors
from nnadapter.drivers.selection import REFERENCE
from nnadapter.onnx.construction import initializer_of, with_constants
from nnadapter.process.resources import new_lock
from nnadapter.records import dataclass
from nnadapter.report.sections import count
from nnadapter.session.session import InferenceSession
from nnadapter.torch.layouts import bytes_of, copy_into_layout_of
from nnadapter.torch.operators import is_size
from nnadapter.torch.regions import (
    NO_USES,
    ExportFailure,
    Failures,
    Region,
    Settings,
    Uses,
    call_regions,
    export,
    failures_for,
    halves,
    roles_of,
    weights_of_part,
)
from nnadapter.torch.resident_runs import Fed, ResidentRunner, TransferredBytes, owning_device, planned_transfers
from nnadapter.torch.resident_tensors import Resident, number_array, results_of, to_array
from partition.graph import Reason, Unsupported

if TYPE_CHECKING:
    import onnx


Array = np.ndarray[Any, Any]

_WHOLE_BUFFER = 2**16
"""Largest buffer that is compared in full, in bytes."""
_WHOLE_PARAMETER = 2**14
_WORD = 4
_IN_ALL, _LEAST, _MOST = 2048, 4, 64
"""Words of larger tensors to compare: in total, and minimum and maximum per tensor."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Sampled 4-byte words of tensors' memory, which reveal changes."""

    memory: Array
    word_positions: Array
    """int64[M]: sampled positions in `memory`."""
    bounds: tuple[int, ...]
    sampled_words: bytes

    def hold(self) -> bool:
        """Return True if the words are unchanged; the tensors must be alive and not moved."""
        return self.memory.take(self.word_positions).tobytes() == self.sampled_words

    def changed(self) -> list[int]:
        was, current = np.frombuffer(self.sampled_words, np.uint32), self.memory.take(self.word_positions)
        differ = np.flatnonzero(was != current)
        return sorted(set((np.searchsorted(self.bounds, differ, "right") - 1).tolist()))


def samples_of(tensors: Sequence[Any]) -> Samples:
    """Sample 4-byte words of tensors that are dense and on the host."""
    dense = [tensor if _is_dense(tensor) else None for tensor in tensors]
    share = min(_MOST, max(_LEAST, _IN_ALL // max(len(tensors), 1)))
    words = [np.empty(0, np.int64) if tensor is None else _words(tensor, share) for tensor in dense]
    addresses = np.concatenate([np.empty(0, np.int64), *words])
    lowest = int(addresses.min()) if len(addresses) else 0
    memory = _memory_words(lowest, (int(addresses.max()) - lowest) // _WORD + 1 if len(addresses) else 0)
    places = (addresses - lowest) // _WORD
    bounds = np.cumsum([0, *map(len, words)])
    return Samples(memory, places, tuple(bounds.tolist()), memory.take(places).tobytes())


def _is_dense(tensor: Any) -> bool:
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or not tensor.nbytes:
        return False
    axes = sorted(range(tensor.dim()), key=lambda axis: -tensor.stride(axis))
    return bool(tensor.permute(axes).is_contiguous())


def _words(tensor: Any, share: int) -> Array:
    start, size = tensor.data_ptr(), tensor.nbytes
    first, last = start // _WORD, -(-(start + size) // _WORD)
    is_whole = size <= (_WHOLE_PARAMETER if isinstance(tensor, torch.nn.Parameter) else _WHOLE_BUFFER)
    count = last - first if is_whole else min(share, last - first)
    return np.unique(np.linspace(first, last - 1, count).astype(np.int64)) * _WORD


class _Memory:
    def __init__(self, address: int, count: int) -> None:
        self.__array_interface__ = {"data": (address, True), "shape": (count,), "typestr": "<u4", "version": 3}


def _memory_words(address: int, count: int) -> Array:
    return np.asarray(_Memory(address, count)) if count else np.empty(0, np.uint32)


_version = attrgetter("_version")
_data_pointer = torch.Tensor.data_ptr


class Steps:
    """Count of optimizer steps that updated a tensor."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


_count = attrgetter("count")
_all_steps = Steps()
_stepped = WeakIdKeyDictionary()


@dataclass(slots=True, kw_only=True)
class Weights:
    """Constants of a session, with their state at its creation."""

    input_positions: tuple[int, ...]
    versions: list[int]
    addresses: list[int]
    steps: tuple[Steps, ...]
    counts: list[int]
    all_steps: int
    samples: Samples
    references: tuple[Any, ...]
    select_weights: Callable[[Sequence[Any]], Sequence[Any]]

    def hold(self, inputs: Sequence[Any]) -> bool:
        tensors = self.select_weights(inputs)
        return (
            [*map(_version, tensors)] == self.versions
            and [*map(_data_pointer, tensors)] == self.addresses
            and (self.all_steps == _all_steps.count or self._have_not_stepped())
            and self.samples.hold()
        )

    def _have_not_stepped(self) -> bool:
        step_count = _all_steps.count
        if [*map(_count, self.steps)] != self.counts:
            return False
        self.all_steps = step_count
        return True

    def changed(self, inputs: Sequence[Any]) -> list[int]:
        tensors = self.select_weights(inputs)
        moved = {
            place
            for place, tensor, was in zip(self.input_positions, tensors, self.addresses, strict=True)
            if _data_pointer(tensor) != was
        }
        counted = zip(self.input_positions, tensors, self.versions, self.steps, self.counts, strict=True)
        changed_places = {
            place
            for place, tensor, version, steps, count in counted
            if _version(tensor) != version or steps.count != count
        }
        sampled_places = set() if moved else {self.input_positions[index] for index in self.samples.changed()}
        return sorted(moved | changed_places | sampled_places)


def note_weights(inputs: Sequence[Any], places: tuple[int, ...], callback: Callable[[Any], None]) -> Weights:
    """Record the inputs at `places` as weights; `callback` runs when one is freed."""
    tensors = tuple(inputs[place] for place in places)
    if tensors:
        _watch_optimizers()
    all_steps = _all_steps.count
    steps = tuple(_stepped.setdefault(tensor, Steps()) for tensor in tensors)
    return Weights(
        input_positions=places,
        versions=[*map(_version, tensors)],
        addresses=[*map(_data_pointer, tensors)],
        steps=steps,
        counts=[*map(_count, steps)],
        all_steps=all_steps,
        samples=samples_of(tensors),
        references=tuple(weakref.ref(tensor, callback) for tensor in tensors),  # a session must not keep a model alive
        select_weights=selector_of(places),
    )


def selector_of(places: tuple[int, ...]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Return a selector of the elements at `places`."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda inputs: [inputs[place] for place in places]


@functools.cache
def _watch_optimizers() -> None:
    register_optimizer_step_post_hook(_after_step)


def _after_step(optimizer: torch.optim.Optimizer, _: Any, __: Any) -> None:
    fused = any(group.get("fused") for group in optimizer.param_groups)
    if fused or not torch.compiler.is_compiling():  # other compiled steps write by copies, which PyTorch counts
        _count_step(optimizer)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _count_step(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            steps = _stepped.get(parameter)
            if steps is not None:
                steps.count += 1
                _all_steps.count += 1


_REPACKED = 3
_SETS = 8
"""Maximum constant sets, freed ones included; equals PyTorch's limit of recompilations."""
_SESSION_ERRORS = (errors.CompilationError, errors.InvalidModelError)
IsWeight = Callable[[int, Any], bool]
"""(Position, value) of a region input -> True if it may be a constant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundSession:
    """Session for one set of weights."""

    session: InferenceSession
    weights: Weights
    fed: Fed
    resident_runner: ResidentRunner | None


class Program:
    """Callable that runs a region. Thread-safe.

    The programs of a divided region's parts share `failures`.
    """

    def __init__(
        self,
        region: Region,
        model: onnx.ModelProto,
        settings: Settings,
        is_weight: IsWeight,
        uses: Uses = NO_USES,
        failures: Failures | None = None,
    ) -> None:
        self.region, self.model = region, model
        self.failure: Unsupported | None = None
        self.repeated: Unsupported | None = None
        """Reason for the last rerun in PyTorch."""
        self.__name__ = self.__qualname__ = f"region_{id(self):x}"  # name in the code of graphs
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
        self._weighing: tuple[int, ...] | None = None  # inputs that are weights; set at the first call
        self._taken = selector_of(())  # selects these from the inputs
        self._sets: dict[tuple[int, ...], BoundSession] = {}  # by ids of the weights
        self._begun = 0
        self._plain: BoundSession | None = None  # without constants
        self._lock = new_lock()

    @property
    def leaves(self) -> list[Program]:
        return [leaf for part in self._parts for leaf in part.leaves] or [self]

    def sessions(self, tensors: frozenset[int] = frozenset()) -> list[InferenceSession]:
        """Return the latest session with one of these tensors (ids) as a weight; if there is none, all sessions."""
        if self.failure is not None:
            return []
        sets = list(self._sets.items())
        matches = [bound for key, bound in sets if not tensors.isdisjoint(key)]
        bounds = matches[-1:] or [*(bound for _, bound in sets), *([self._plain] if self._plain else [])]
        return [bound.session for bound in bounds]

    def has_run(self, tensors: frozenset[int]) -> bool:
        return any(not tensors.isdisjoint(key) for key in list(self._sets))

    @property
    def transferred_bytes(self) -> TransferredBytes:
        """Bytes transferred in the last call. Without device-resident values, they follow from sizes in the graph."""
        bound = self._latest
        if bound is None:
            return TransferredBytes(0, 0, 0, 0)
        if bound.resident_runner is not None:
            return bound.resident_runner.transferred_bytes
        fed = sum(bytes_of(self.region.inputs[place].meta["val"]) for _, place, _ in bound.fed)
        output_bytes = sum(bytes_of(node.meta["val"]) for node in self.region.outputs)
        return TransferredBytes(
            fed,
            output_bytes,
            *((planned_transfers(bound.session) or (fed, output_bytes)) if owning_device(bound.session) else (0, 0)),
        )

    @property
    def is_crowded(self) -> bool:
        bound = self._latest
        return bound is not None and bound.resident_runner is not None and bound.resident_runner.is_crowded

    @property
    def _latest(self) -> BoundSession | None:
        return None if self.failure else next(reversed(list(self._sets.values())), self._plain)

    @property
    def unfrozen_weights(self) -> int:
        return sum(changes > _REPACKED for changes in self._changes.values())

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Run the region; if its session fails, PyTorch or smaller sessions run it, unless fallback is forbidden."""
        if self._run_apart is not None:
            return self._run_apart(*inputs)
        bound = self._sets.get(self._key(inputs), self._plain)
        is_new = bound is None
        try:
            if bound is None or not bound.weights.hold(inputs):
                bound = self._bind(inputs)
            if bound.resident_runner is not None:
                results = bound.resident_runner.run(inputs, self._results)
            else:
                feeds = {name: convert(inputs[place]) for name, place, convert in bound.fed}
                results = self._results(bound.session.run(self._outputs, feeds), inputs)
            if is_new and self._rests_on_last_resort(bound.session):
                self._move_to_pytorch()
            return results
        except _SESSION_ERRORS as error:
            return self._cut(error, inputs)
        except (errors.ExecutionError, errors.InvalidInputError) as error:
            return self._rerun_in_pytorch(error, inputs)

    def _rests_on_last_resort(self, session: InferenceSession) -> bool:
        steps = session.provenance.steps if session.provenance is not None else ()
        spare = sum(step.seconds for step in steps if step.device == REFERENCE)
        named = {request if isinstance(request, str) else request[0] for request in self._settings.devices}
        return REFERENCE not in named and 2 * spare > sum(step.seconds for step in steps)

    def _move_to_pytorch(self) -> None:
        detail = "neither its devices nor ONNX Runtime's CPU support most of it"
        with self._lock:
            first = self._run_apart is None
            self._run_apart = self._fallback_runner(Unsupported(Reason.UNSUPPORTED_OPERATION, detail))
        if first:
            self._warn("compile", "because it is faster", errors.InvalidModelError(detail))

    def _cut(self, error: errors.NNAdapterError, inputs: Sequence[Any]) -> tuple[Any, ...]:
        if self._settings.options.fallback_at("compile") == "forbid":
            raise error
        with self._lock:
            first = self._run_apart is None
            if first:
                self._run_apart = self._divided() or self._fallback_runner(
                    Unsupported(Reason.COMPILE_FAILED, errors.describe(error))
                )
        if first and self.failure is not None:
            self._warn("compile", "because no session could be created", error)
        run: Callable[..., tuple[Any, ...]] = self._run_apart  # type: ignore[assignment]  # set above
        return run(*inputs)

    def _divided(self) -> Callable[..., tuple[Any, ...]] | None:
        if len(self.region.working) < 2 or not self._failures.take():
            return None
        module, regions = halves(self.region)
        weighing = [weights_of_part(module, region, self._is_weight) for region in regions]
        try:
            self._parts = tuple(self._part(*pair) for pair in zip(regions, weighing, strict=True))
        except ExportFailure:  # although the entire region was exported
            return None
        call_regions(module, regions, self._parts)
        run: Callable[..., tuple[Any, ...]] = module.forward
        return run

    def _part(self, region: Region, is_weight: IsWeight) -> Program:
        with ThreadPoolExecutor(1) as thread:  # running a compiled graph disables parts of PyTorch in its thread
            model = thread.submit(export, region.module).result()
        return Program(region, model, self._settings, is_weight, self._uses, self._failures)

    def _fallback_runner(self, reason: Unsupported) -> Callable[..., tuple[Any, ...]]:
        self.failure = reason
        return self._in_pytorch

    def _rerun_in_pytorch(self, error: errors.NNAdapterError, inputs: Sequence[Any]) -> tuple[Any, ...]:
        if self._settings.options.fallback_at("run") == "forbid":
            raise error
        results = self._in_pytorch(*inputs)
        first, self.repeated = self.repeated is None, Unsupported(Reason.DRIVER_ERROR, errors.describe(error))
        if first:
            self._warn("run", "because the session failed", error)
        return results

    def _warn(self, stage: str, reason: str, error: Exception) -> None:
        if self._settings.options.fallback_at(stage) == "warn":
            text = f"PyTorch runs {count(len(self.region.working), 'operator')} {reason}: {errors.describe(error)}"
            warnings.warn(errors.FallbackWarning(text), stacklevel=4)

    def _in_pytorch(self, *inputs: Any) -> tuple[Any, ...]:
        layout_copies = [copy_into_layout_of(node.meta["val"]) for node in self.region.inputs]
        laid = [lay(value) if lay else value for lay, value in zip(layout_copies, inputs, strict=True)]
        return tuple(self.region.module(*laid))

    def _key(self, inputs: Sequence[Any]) -> tuple[int, ...]:
        return tuple(map(id, self._taken(inputs)))

    def _bind(self, inputs: Sequence[Any]) -> BoundSession:
        with self._lock:
            if self._weighing is None:
                self._weighing = tuple(place for place, value in enumerate(inputs) if self._is_weight(place, value))
                self._taken = selector_of(self._weighing)
            key = self._key(inputs)
            bound = self._sets.get(key)
            if bound is None:
                self._begun += 1
                if self._begun > _SETS:
                    self._plain = self._plain or self._open_session(inputs, key, ())
                    return self._plain
            else:
                changed = bound.weights.changed(inputs)
                if not changed:  # another thread has updated it
                    return bound
                self._changes.update({place: self._changes.get(place, 0) + 1 for place in changed})
            self._sets[key] = bound = self._open_session(inputs, key, self._constant(inputs))
            return bound

    def _constant(self, inputs: Sequence[Any]) -> tuple[int, ...]:
        return tuple(
            place
            for place in self._weighing or ()
            if self._changes.get(place, 0) <= _REPACKED and not inputs[place].is_inference()
        )

    def _weight_finalizer(self, key: tuple[int, ...]) -> Callable[[Any], None]:
        """Return a callback that drops a set of weights, because ids can be reused."""
        program = weakref.ref(self)

        def forget(_: Any) -> None:
            alive = program()
            if alive is not None:
                alive._sets.pop(key, None)

        return forget

    def _open_session(self, inputs: Sequence[Any], key: tuple[int, ...], places: tuple[int, ...]) -> BoundSession:
        weights = note_weights(inputs, places, self._weight_finalizer(key))
        constants = [
            initializer_of(self._names[place], self._converts[place](inputs[place]))
            for place in weights.input_positions
        ]
        model = with_constants(self.model, constants) if constants else self.model
        session = InferenceSession(model, devices=self._settings.devices, options=self._settings.options)
        each = ((self._names[place], place, self._converts[place]) for place in range(len(inputs)))
        constant = frozenset(weights.input_positions)
        fed = tuple(feed for feed in each if feed[1] not in constant)
        return BoundSession(
            session=session, weights=weights, fed=fed, resident_runner=self._resident_runner(session, fed, inputs)
        )

    def _resident_runner(self, session: InferenceSession, fed: Fed, inputs: Sequence[Any]) -> ResidentRunner | None:
        roles = roles_of(self.region, self._uses)
        weighs = any(isinstance(inputs[place], (torch.nn.Parameter, Resident)) for _, place, _ in fed)
        # produced by another region
        follows = any(self.region.inputs[place].op == "call_function" for _, place, _ in fed)
        if not (weighs or follows or roles.resident_results) or not (device := owning_device(session)):
            return None
        dtypes = [node.meta["val"].dtype for node in self.region.outputs]
        return ResidentRunner(session, device, fed, dict(zip(self._outputs, dtypes, strict=True)), roles)
