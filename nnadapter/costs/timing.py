"""Programs on one device, timed in turn through the border to drivers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from statistics import median, median_low

import numpy as np

from nnadapter.closing import close_all
from nnadapter.drivers.border import (
    ask_admission,
    ask_supported,
    check_results,
    checked_program,
    create_execution,
    describe,
    read_only,
)
from nnadapter.drivers.capability import Capability, ModelForm, Threading
from nnadapter.drivers.interface import Context, Execution, Program
from nnadapter.drivers.registry import device_lock
from nnadapter.ir.model import Model
from nnadapter.ir.operand import Array
from partition.verdict import Verdict, all_of

_LEAST_ROUNDS = 3
_SAMPLE_SECONDS = 1e-3
"""Of runs that are shorter several make a sample, their median: the first ones find everything cold."""
_MOST_AT_A_TIME = 20
_LONGEST_SECONDS = 0.5
"""A program that takes longer is not timed: a calibration must end."""


@dataclass(eq=False)
class Timed:
    """One program and what its runs took."""

    model: Model
    execution: Execution
    inputs: Sequence[Array]
    at_a_time: int
    samples: list[float] = field(default_factory=list)
    """Seconds of one run."""

    @property
    def seconds(self) -> float:
        """The median."""
        return median(self.samples)

    @property
    def tensors(self) -> int:
        """How many go in and out."""
        return len(self.model.inputs) + len(self.model.outputs)

    @property
    def nbytes(self) -> int:
        """Bytes of what goes in and out."""
        return sum(self.model.operands[each].type.nbytes for each in (*self.model.inputs, *self.model.outputs))


class Bench:
    """Programs on one device. A context manager: it closes what it made.

    Args:
        name: the device's.
        capability: the device's.
        context: where programs are compiled; it stays open.
        clock: gives seconds.
    """

    def __init__(self, name: str, capability: Capability, context: Context, clock: Callable[[], float]) -> None:
        self._capability = capability
        self._context = context
        self._clock = clock
        self._made: list[Program | Execution] = []
        self._programs: list[Timed] = []
        alone = capability.threading is Threading.SERIAL
        self._lock: AbstractContextManager[object] = device_lock(name) if alone else nullcontext()

    def __enter__(self) -> Bench:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close every execution, then every program."""
        close_all(reversed(self._made))

    def add(self, model: Model) -> Timed | str:
        """Compile a model and run it twice; its first run does not count. Return why it cannot be timed, if so."""
        sent = self._form(model)
        verdict = self._verdict(sent, len(model.operations))
        if not verdict:
            return str(verdict)
        try:
            timed = self._compiled(model, sent)
        except Exception as error:  # noqa: BLE001  a driver may raise anything; what cannot be timed is left out
            return f"it failed: {describe(error)}"
        if timed is None:
            return f"one run takes longer than {_LONGEST_SECONDS} seconds"
        self._programs.append(timed)
        return timed

    def drop(self, timed: Timed) -> None:
        """Time a program no more."""
        self._programs.remove(timed)

    def run(self, rounds: int, budget_seconds: float, advance: Callable[[], None]) -> None:
        """Time every program once a round, in turn, so that what disturbs the machine disturbs all alike."""
        started = self._clock()
        for done in range(rounds):
            if done >= _LEAST_ROUNDS and self._clock() - started > budget_seconds:
                return
            for timed in self._programs:
                timed.samples.append(self._sample(timed))
            advance()

    def _form(self, model: Model) -> object:
        if self._capability.form is ModelForm.IR:
            return model
        from nnadapter.costs.onnx_programs import onnx_form

        return onnx_form(model)

    def _verdict(self, sent: object, operations: int) -> Verdict:
        refused = all_of(ask_supported(self._context, sent, operations))
        return ask_admission(self._context, sent).verdict if refused else refused

    def _compiled(self, model: Model, sent: object) -> Timed | None:
        program = checked_program(self._context.compile(sent))
        self._made.append(program)
        execution = create_execution(program)
        self._made.append(execution)
        generator = np.random.default_rng(0)
        types = [model.operands[operand].type for operand in model.inputs]
        inputs = [
            read_only(generator.standard_normal(type_.dimensions).astype(type_.dtype.array_type)) for type_ in types
        ]
        outputs = [model.operands[operand] for operand in model.outputs]
        expected = [(operand.type.dimensions, operand.type.dtype.array_type) for operand in outputs]
        timed = Timed(model, execution, inputs, 1)
        with self._lock:
            check_results(list(execution.compute(inputs)), [operand.name for operand in outputs], expected)
        once = self._sample(timed)
        timed.at_a_time = int(min(_MOST_AT_A_TIME, max(1.0, _SAMPLE_SECONDS / once))) if once > 0 else 1
        return timed if once <= _LONGEST_SECONDS else None

    def _sample(self, timed: Timed) -> float:
        compute, inputs, clock = timed.execution.compute, timed.inputs, self._clock
        found = []
        with self._lock:
            for _ in range(timed.at_a_time):
                started = clock()
                compute(inputs)
                found.append(clock() - started)
        return median_low(found)
