"""Verdicts, admission and compilation under one set of options.

Verdicts, admission and compilation under one set of options.

A program that is loaded from a file needs none of this: neither the table of operations, nor passes and lowerings.
"""

from __future__ import annotations

from functools import partial
from itertools import count
from pathlib import Path
from weakref import WeakKeyDictionary

from nnadapter.drivers.arenas import Arenas
from nnadapter.drivers.fake_npu.clock import simulated_seconds
from nnadapter.drivers.fake_npu.device_memory import DeviceMemory
from nnadapter.drivers.fake_npu.execution import InstructionEvents
from nnadapter.drivers.fake_npu.graph import NpuGraph
from nnadapter.drivers.fake_npu.limits import Arithmetic
from nnadapter.drivers.fake_npu.lowering import LoweredModel, evaluate, lower, prepared
from nnadapter.drivers.fake_npu.open_program import FakeNpuOpenProgram
from nnadapter.drivers.fake_npu.operations import types_needed
from nnadapter.drivers.fake_npu.options import FakeNpuOptions
from nnadapter.drivers.fake_npu.program import FakeNpuProgram, ProgramNeeds, packed_bytes, weight_bytes
from nnadapter.drivers.fake_npu.reuse import Lowerings
from nnadapter.drivers.interface import Admission, Program
from nnadapter.drivers.invalid_models import invalid_models_told
from nnadapter.ir.model import Model
from nnadapter.ir.operand import DataType
from nnadapter.ir.passes import TOLERANCES, Observer, all_of, check_numbers, dump_to
from nnadapter.ir.verification import verify
from nnadapter.process.resources import new_lock
from nnadapter.traces.trace import Trace
from partition.graph import SUPPORTED, Reason, Unsupported, Verdict

_HALF = {**TOLERANCES, DataType.FLOAT32: TOLERANCES[DataType.FLOAT16]}
"""With half precision, folded constants are rounded to it."""


def observer(folder: str, check: bool, arithmetic: Arithmetic) -> Observer | None:
    """Return what watches the passes over one model, None if nobody asked.

    Args:
        folder: where the models go, each with its steps in a folder of its own, numbered; empty for nowhere.
        check: run the model before and after each pass, lowered without passes, in full precision, and compare.
        arithmetic: that of the context.
    """
    observers = [dump_to(_next(Path(folder)))] if folder else []
    if check:
        observers.append(check_numbers(evaluate, tolerances=_HALF if arithmetic.half_precision else TOLERANCES))
    return all_of(*observers) if observers else None


def _next(folder: Path) -> Path:
    """A new folder in `folder`, made now, so that nobody else takes it."""
    for number in count(sum(1 for _ in folder.iterdir()) if folder.exists() else 0):
        place = folder / f"model-{number:04}"
        try:
            place.mkdir(parents=True)
        except FileExistsError:
            continue
        return place
    raise AssertionError("there is a next number")


_REMEMBERED = 64
"""How many admitted models are kept, lowered, until they are compiled."""


class Compiler:
    """Judges and compiles models; safe to use from many threads."""

    def __init__(
        self, options: FakeNpuOptions, arenas: Arenas, memory: DeviceMemory, traced: tuple[Trace, str] | None
    ) -> None:
        """Compile for a context.

        Args:
            options: of the context.
            arenas: working memory of its programs.
            memory: of the device.
            traced: who takes events, and of which lane; None for nobody.
        """
        self._options, self._arenas, self._memory, self._traced = options, arenas, memory, traced
        self._lowerings = Lowerings(options.arithmetic)
        self._prepared: WeakKeyDictionary[Model, LoweredModel] = WeakKeyDictionary()
        self._open: WeakKeyDictionary[Model, NpuGraph] = WeakKeyDictionary()
        """Admitted models whose sizes are open, lowered."""
        self._lock = new_lock()

    def admit(self, model: Model) -> Admission:
        """See `Context.admit`. Of a model that leaves sizes open, memory is judged when they are known."""
        if model.has_dynamic_shapes:
            return self._admit_open(model)
        lowered_model = self._prepare(model)
        with self._lock:
            if len(self._prepared) < _REMEMBERED:
                self._prepared[model] = lowered_model
        weights, memory = lowered_model.weight_bytes, lowered_model.memory
        return Admission(
            verdict=self._room_for(weights, memory.arena_bytes, _border_bytes(model)),
            runs_as=lowered_model.runs_as,
            facts={
                "weight_bytes": weights,
                "arena_bytes": memory.arena_bytes,
                "arena_lower_bound_bytes": memory.arena_lower_bound_bytes,
                "arena_over_bound_percent": memory.arena_over_bound_percent,
                "instructions": len(lowered_model.graph.instructions),
                **self._simulated(lowered_model.graph),
            },
        )

    def compile(self, model: Model) -> Program:
        """See `Context.compile`."""
        if model.has_dynamic_shapes:
            return self._compile_open(model)
        with self._lock:
            known = self._prepared.pop(model, None)
        return self._program(model, known or self._prepare(model))

    def clone_with_constants(self, program: Program, model: Model) -> Program | None:
        """See `Context.clone_with_constants`; None if the lowering of one model does not hold for the other."""
        with self._lock:
            known = self._prepared.get(model)
        lowered_model = known or self._prepare(model)
        assert isinstance(program, FakeNpuProgram), "programs of a context are its own"
        if lowered_model.graph.instructions is not program.graph.instructions:
            return None
        with self._lock:
            self._prepared.pop(model, None)
        return self._program(model, lowered_model)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._prepared.clear()
            self._open.clear()
        self._lowerings.clear()

    def _admit_open(self, model: Model) -> Admission:
        lowered = lower(model, self._options.arithmetic)
        with self._lock:
            self._open[model] = lowered.graph
        weights = weight_bytes(lowered.graph)
        return Admission(
            verdict=self._room_for(weights, 0, 0),
            runs_as=lowered.roles.runs_as(model),
            facts={"weight_bytes": weights, "instructions": len(lowered.graph.instructions)},
        )

    def _compile_open(self, model: Model) -> Program:
        with self._lock:
            graph = self._open.pop(model, None)
        if graph is None:
            graph = lower(model, self._options.arithmetic).graph
        available = self._options.memory_bytes - weight_bytes(graph)
        events = None if self._traced is None else partial(InstructionEvents, *self._traced)
        around = self._arenas, self._memory, self._options.threads
        return FakeNpuOpenProgram(graph, available, *around, packed_bytes(graph, model), events)

    def _prepare(self, model: Model) -> LoweredModel:
        options = self._options
        watch = observer(options.dump_passes, options.check_passes, options.arithmetic)
        with invalid_models_told(model):
            if watch is None:
                return self._lowerings.prepare(model)
            # What is looked at is no trace, so every model is seen.
            verify(model)
            return prepared(lower(model, options.arithmetic, check=watch), model)

    def _program(self, model: Model, lowered_model: LoweredModel) -> Program:
        needs, graph = self._needs(model, lowered_model), lowered_model.graph.with_contents()
        return FakeNpuProgram(
            graph,
            lowered_model.memory,
            self._arenas,
            needs,
            device_memory=self._memory,
            threads=self._options.threads,
            packed=packed_bytes(graph, model),
            events=None if self._traced is None else InstructionEvents(*self._traced, graph),
        )

    def _needs(self, model: Model, lowered_model: LoweredModel) -> ProgramNeeds:
        return ProgramNeeds(
            arithmetic=self._options.arithmetic,
            memory_bytes=lowered_model.weight_bytes + lowered_model.memory.arena_bytes + _border_bytes(model),
            operations=tuple(sorted({type_ for operation in model.operations for type_ in types_needed(operation)})),
        )

    def _simulated(self, graph: NpuGraph) -> dict[str, float]:
        profile = self._options.profile
        return {} if profile is None else {"simulated_us": round(1e6 * simulated_seconds(graph, profile), 3)}

    def _room_for(self, weights: int, arena: int, border: int) -> Verdict:
        available, needed = self._options.memory_bytes, weights + arena + border
        if needed <= available:
            return SUPPORTED
        detail = (
            f"needs {needed} bytes of device memory ({weights} for weights, {arena} for the arena, {border} for inputs "
            f"and outputs), available: {available}; the option memory_bytes sets it"
        )
        return Unsupported(Reason.MEMORY_LIMIT, detail)


def _border_bytes(model: Model) -> int:
    return sum(model.operands[operand].type.nbytes for operand in {*model.inputs, *model.outputs})
