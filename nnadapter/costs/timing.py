"""Timing in turns: a stopwatch for interleaved runs, and programs timed on one device.

Turns of runs that are timed: each begins when the threads of the one before rest, and gives one figure.

Threads of a pool look for more work for a while after a run (ONNX Runtime's some 25 ms, OpenBLAS's 100 ms) and take a
processor from whoever comes next: on two cores OpenVINO took 1.7 times its own time right behind ONNX Runtime. So a
turn waits until the process uses next to no processor time, as long as that may help. A turn is a few runs, of which
the first does not count, and its figure is their median: a single lucky or unlucky run says nothing. What runs longer
than a turn runs once.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from statistics import median

import numpy as np

from nnadapter.drivers.boundary import (
    OutputCheck,
    ask_admission,
    ask_supported,
    check_results,
    checked_program,
    create_execution,
    read_only,
)
from nnadapter.drivers.capability import Capability, ModelForm, Threading
from nnadapter.drivers.interface import Context, Execution, Program
from nnadapter.drivers.onnxruntime.program import not_counting, pools_held
from nnadapter.drivers.registry import device_lock
from nnadapter.errors import describe
from nnadapter.ir.model import Model
from nnadapter.ir.operand import Array
from nnadapter.process.processors import own_seconds
from nnadapter.process.resources import close_all
from partition.verdict import all_of

_MOST_RUNS = 50
_LOOK_SECONDS = 0.002
"""For so long a look at the processor time lasts."""
_QUIET = 6
"""Looks in a row: of a thread that runs, systems count the processor time at their ticks, 4 to 10 ms apart."""
_LOOKS = 75
"""Looks at most: other threads of the program may never rest."""
_RESTING = 0.25
"""Processors in use by whom rests, the one that looks included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopwatch:
    """Times turns. The first three are seconds of clocks, of which differences count."""

    clock: Callable[[], float] = field(default_factory=lambda: time.perf_counter)
    """That passes."""
    busy: Callable[[], float] = field(default_factory=lambda: own_seconds)
    """Of processors, that this process used, or a device in a process of its own."""
    sleep: Callable[[float], None] = field(default_factory=lambda: time.sleep)
    turn_seconds: float = 0.02
    """A turn of short runs takes about so long."""

    def turn(self, run: Callable[[], object]) -> float:
        """Return the seconds of one run, by a turn of it."""
        self.wait_until_process_idle()
        first = self._seconds(run)
        if first >= self.turn_seconds:
            return first
        samples = [self._seconds(run)]
        while sum(samples) < self.turn_seconds and len(samples) < _MOST_RUNS:
            samples.append(self._seconds(run))
        return median(samples)

    def wait_until_process_idle(self) -> None:
        """Wait until nothing in this process computes, as long as that may be expected."""
        quiet = 0
        for _ in range(_LOOKS):
            start_busy, started = self.busy(), self.clock()
            self.sleep(_LOOK_SECONDS)
            quiet = quiet + 1 if self.busy() - start_busy <= _RESTING * (self.clock() - started) else 0
            if quiet == _QUIET:
                return

    def _seconds(self, run: Callable[[], object]) -> float:
        started = self.clock()
        run()
        return self.clock() - started


_LEAST_ROUNDS = 3
_LOOKED_AT_SECONDS = 0.05
"""For so long a program runs while the processors in use are counted."""
_LONGEST_SECONDS = 0.5
"""A program that takes longer is not timed: a calibration must end."""


@dataclass(eq=False)
class ProgramTiming:
    """One program and what its runs took."""

    model: Model
    execution: Execution
    inputs: Sequence[Array]
    outputs: Sequence[str]
    expected: OutputCheck
    samples: list[float] = field(default_factory=list)
    """Seconds of one run."""

    @property
    def seconds(self) -> float:
        """The lower quartile: noise of a shared machine only adds time, and the least may be luck."""
        return sorted(self.samples)[len(self.samples) // 4]

    @property
    def tensors(self) -> int:
        """How many go in and out."""
        return len(self.model.inputs) + len(self.model.outputs)

    @property
    def nbytes(self) -> int:
        """Bytes of what goes in and out."""
        return sum(self.model.operands[operand].type.nbytes for operand in (*self.model.inputs, *self.model.outputs))


class ProgramTimer:
    """Programs on one device. A context manager: it closes what it made.

    Args:
        name: the device's.
        capability: the device's.
        context: where programs are compiled; it stays open.
        stopwatch: times them.
    """

    def __init__(self, name: str, capability: Capability, context: Context, stopwatch: Stopwatch) -> None:
        self._capability = capability
        self._context = context
        self._stopwatch, self._clock = stopwatch, stopwatch.clock
        self._made: list[Program | Execution] = []
        self._programs: list[ProgramTiming] = []
        is_serial = capability.threading is Threading.SERIAL
        self._lock: AbstractContextManager[object] = device_lock(name) if is_serial else nullcontext()

    def __enter__(self) -> ProgramTimer:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close every execution, then every program."""
        self.clear()

    def add(self, model: Model, *, is_standalone: bool = False) -> ProgramTiming | str:
        """Compile a model and run it twice; its first run does not count. Return why it cannot be timed, if so.

        Args:
            model: what to compile.
            is_standalone: it is all that runs, see `Context.compile_whole_graph`; else a segment beside others.
        """
        sent = self._form(model)
        verdict = all_of(ask_supported(self._context, sent, len(model.operations)))
        verdict = ask_admission(self._context, sent).verdict if verdict else verdict
        if not verdict:
            return str(verdict)
        try:
            timed = self._compiled(model, sent, is_standalone)
        except Exception as error:  # noqa: BLE001  a driver may raise anything; what cannot be timed is left out
            return f"it failed: {describe(error)}"
        if timed is None:
            return f"one run takes longer than {_LONGEST_SECONDS} seconds"
        self._programs.append(timed)
        return timed

    def drop(self, timed: ProgramTiming) -> None:
        """Time a program no more."""
        self._programs.remove(timed)

    def clear(self) -> None:
        """Close what was made; what was timed stays known."""
        resources = self._made.copy()
        self._made.clear()
        self._programs.clear()
        close_all(reversed(resources))

    def run(self, rounds: int, budget_seconds: float, advance: Callable[[], None], *, cold: bool = False) -> None:
        """Time every program once a round, in turn, so that what disturbs the machine disturbs all alike.

        Every round has an order of its own: who comes after whom decides what is found. A program takes a turn of
        runs, see `Stopwatch`. If `cold`, it runs once, where a segment stands: after another program, and work of the
        host that takes the caches. Alone, over and over, it finds caches full and threads awake, and a small one takes
        a third of the time.
        """
        started, chance = self._clock(), random.Random(0)
        for round_index in range(rounds):
            if round_index >= _LEAST_ROUNDS and self._clock() - started > budget_seconds:
                return
            for timed in chance.sample(self._programs, len(self._programs)):
                if cold:
                    _elsewhere()
                timed.samples.append(self._sample(timed) if cold else self._stopwatch.turn(partial(self._once, timed)))
            advance()

    def processors(self) -> float:
        """Return how many of the host's processors are in use while the program computes that takes longest."""
        timed = max(self._programs, key=lambda program: program.seconds)
        start_busy, started, passed = self._stopwatch.busy(), self._clock(), 0.0
        while passed < _LOOKED_AT_SECONDS:
            self._once(timed)
            elapsed = self._clock() - started
            if elapsed <= passed:  # a clock that stands still
                return 0.0
            passed = elapsed
        return (self._stopwatch.busy() - start_busy) / passed

    def _form(self, model: Model) -> object:
        if self._capability.form is ModelForm.IR:
            return model
        from nnadapter.costs.probes import onnx_form

        return onnx_form(model)

    def _compiled(self, model: Model, sent: object, is_standalone: bool) -> ProgramTiming | None:
        compile_ = self._context.compile_whole_graph if is_standalone else self._context.compile
        with not_counting(pools_held()):  # it has threads, however many sessions and programs live beside
            program = checked_program(compile_(sent))
        self._made.append(program)
        execution = create_execution(program)
        self._made.append(execution)
        generator = np.random.default_rng(0)
        types = [model.operands[operand].type for operand in model.inputs]
        numbers = [generator.standard_normal(type_.dimensions, np.float32) for type_ in types]
        inputs = [
            read_only(array.astype(type_.dtype.array_type, copy=False))
            for array, type_ in zip(numbers, types, strict=True)
        ]
        outputs = [model.operands[operand] for operand in model.outputs]
        expected = [(operand.type.dimensions, operand.type.dtype.array_type) for operand in outputs]
        timed = ProgramTiming(model, execution, inputs, [operand.name for operand in outputs], expected)
        self._sample(timed)
        return timed if self._sample(timed) <= _LONGEST_SECONDS else None

    def _sample(self, timed: ProgramTiming) -> float:
        """The seconds of one run, with what a run of a plan does to guard it."""
        started = self._clock()
        self._once(timed)
        return self._clock() - started

    def _once(self, timed: ProgramTiming) -> None:
        with self._lock:
            results = timed.execution.compute([read_only(array) for array in timed.inputs])
            check_results(list(results), timed.outputs, timed.expected)


_SWEPT = np.ones(1 << 20, np.float32)


def _elsewhere() -> None:
    """Work of the host between two runs: a pass over 4 MiB.

    No product of matrices: threads of BLAS look for more work for 100 ms, and take a processor from what is timed.
    """
    np.negative(_SWEPT, out=_SWEPT)
