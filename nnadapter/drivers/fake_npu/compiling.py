"""Memory checks and compilation of models in one context."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from weakref import WeakKeyDictionary

from nnadapter.drivers import SUPPORTED, Admission, Program, Reason, Trace, Unsupported, Verdict
from nnadapter.drivers.fake_npu.clock import simulated_seconds
from nnadapter.drivers.fake_npu.execution import InstructionEvents, Resources
from nnadapter.drivers.fake_npu.limits import Arithmetic
from nnadapter.drivers.fake_npu.lowering import Lowered, evaluate, lower
from nnadapter.drivers.fake_npu.operations import types_needed
from nnadapter.drivers.fake_npu.options import FakeNpuOptions
from nnadapter.drivers.fake_npu.program import (
    FakeNpuOpenProgram,
    FakeNpuProgram,
    ProgramNeeds,
    packed_bytes,
    weight_bytes,
)
from nnadapter.drivers.fake_npu.reuse import Lowerings
from nnadapter.errors import NNAdapterError
from nnadapter.ir import DataType, Model, verify
from nnadapter.ir.passes import TOLERANCES, Observer, all_of, check_numbers, dump_to
from nnadapter.process.resources import new_lock


@contextmanager
def blame_invalid_models(model: Model) -> Iterator[None]:
    """Verify `model` if the block fails unexpectedly, because drivers do not verify models.

    Raises:
        InvalidModelError: the model is invalid; otherwise the failure passes unchanged.
    """
    try:
        yield
    except NNAdapterError:
        raise
    except Exception:
        verify(model)
        raise


_HALF = {**TOLERANCES, DataType.FLOAT32: TOLERANCES[DataType.FLOAT16]}
_ADMITTED = 64


def observer(folder: str, check: bool, arithmetic: Arithmetic) -> Observer | None:
    """Return the observer that dumps or checks passes, or None."""
    observers = [dump_to(_numbered(Path(folder)))] if folder else []
    if check:
        observers.append(check_numbers(evaluate, tolerances=_HALF if arithmetic.half_precision else TOLERANCES))
    return all_of(*observers) if observers else None


def _numbered(folder: Path) -> Path:
    for number in count(sum(1 for _ in folder.iterdir()) if folder.exists() else 0):
        place = folder / f"model-{number:04}"
        try:
            place.mkdir(parents=True)
        except FileExistsError:
            continue
        return place
    raise AssertionError("all folder names for dumped models are in use")


class Compiler:
    """Compiler of one context. Thread-safe."""

    def __init__(self, options: FakeNpuOptions, resources: Resources, trace: tuple[Trace, str] | None) -> None:
        self._options, self._resources, self._trace = options, resources, trace
        self._lowerings = Lowerings(options.arithmetic)
        self._admitted: WeakKeyDictionary[Model, Lowered] = WeakKeyDictionary()
        self._lock = new_lock()

    def admit(self, model: Model) -> Admission:
        """Return verdict, operation names and statistics. With dynamic shapes, only the weights' memory is checked."""
        lowered = self._prepare(model)
        with self._lock:
            if len(self._admitted) < _ADMITTED:
                self._admitted[model] = lowered
        memory, profile, arena, boundary = lowered.memory, self._options.profile, 0, 0
        weights = weight_bytes(lowered.graph)
        facts: dict[str, float] = {"weight_bytes": weights}
        if memory is not None:
            arena, boundary = memory.arena_bytes, _boundary_bytes(model)
            facts["arena_bytes"] = arena
            facts["arena_lower_bound_bytes"] = memory.arena_lower_bound_bytes
            facts["arena_over_bound_percent"] = memory.arena_over_bound_percent
        facts["instructions"] = len(lowered.graph.instructions)
        if memory is not None and profile is not None:
            facts["simulated_us"] = round(1e6 * simulated_seconds(lowered.graph, profile), 3)
        verdict = self._check_memory(weights, arena, boundary)
        return Admission(verdict=verdict, runs_as=lowered.runs_as(model), facts=facts)

    def compile(self, model: Model) -> Program:
        with self._lock:
            admitted = self._admitted.pop(model, None)
        return self._program(model, admitted or self._prepare(model))

    def clone_with_constants(self, program: Program, model: Model) -> Program | None:
        with self._lock:
            admitted = self._admitted.get(model)
        lowered = admitted or self._prepare(model)
        assert isinstance(program, FakeNpuProgram), "programs of a context are its own"
        if lowered.graph.instructions is not program.graph.instructions:
            return None
        with self._lock:
            self._admitted.pop(model, None)
        return self._program(model, lowered)

    def clear(self) -> None:
        with self._lock:
            self._admitted.clear()
        self._lowerings.clear()

    def _prepare(self, model: Model) -> Lowered:
        options = self._options
        if model.has_dynamic_shapes:
            return lower(model, options.arithmetic)
        check = observer(options.dump_passes, options.check_passes, options.arithmetic)
        with blame_invalid_models(model):
            if check is None:
                return self._lowerings.prepare(model)
            verify(model)  # no reuse: the observer must see all passes
            return lower(model, options.arithmetic, check=check)

    def _program(self, model: Model, lowered: Lowered) -> Program:
        graph, memory, weights = lowered.graph, lowered.memory, weight_bytes(lowered.graph)
        if memory is None:
            trace = None if self._trace is None else partial(InstructionEvents, *self._trace)
            available, packed = self._options.memory_bytes - weights, packed_bytes(graph, model)
            return FakeNpuOpenProgram(graph, available, self._resources, packed, trace)
        graph = graph.with_contents()
        needs = ProgramNeeds(
            arithmetic=self._options.arithmetic,
            memory_bytes=weights + memory.arena_bytes + _boundary_bytes(model),
            operations=tuple(sorted({type_ for operation in model.operations for type_ in types_needed(operation)})),
        )
        events = None if self._trace is None else InstructionEvents(*self._trace, graph)
        packed = packed_bytes(graph, model)
        return FakeNpuProgram(graph, memory, needs, self._resources, packed=packed, events=events)

    def _check_memory(self, weights: int, arena: int, boundary: int) -> Verdict:
        available, needed = self._options.memory_bytes, weights + arena + boundary
        if needed <= available:
            return SUPPORTED
        detail = (
            f"the segment needs {needed} bytes of device memory ({weights} for weights, {arena} for the arena, "
            f"{boundary} for inputs and outputs), available: {available}; raise the option memory_bytes"
        )
        return Unsupported(Reason.MEMORY_LIMIT, detail)


def _boundary_bytes(model: Model) -> int:
    return sum(model.type_at(operand).nbytes for operand in {*model.inputs, *model.outputs})
