"""A segment that is computed in turns: by programs of the driver, and by kernels on the host in between."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from nnadapter.drivers.border import OutputCheck, check_results, create_execution, read_only
from nnadapter.drivers.control import UNLIMITED, Control
from nnadapter.drivers.interface import Execution, Program
from nnadapter.errors import CancelledError
from nnadapter.ir.operand import Array
from nnadapter.kernels.calling import KernelCall
from nnadapter.kernels.stored import StoredKernelProgram, write
from nnadapter.process.closing import close_all


@dataclass(frozen=True, eq=False)
class Turn:
    """One piece, compiled."""

    work: Program | KernelCall
    inputs: tuple[int, ...]
    """Operands of the segment's model."""
    outputs: tuple[int, ...]
    names: tuple[str, ...] = ()
    """Of the outputs of a program."""
    expected: OutputCheck = ()


class KernelProgram(Program):
    """Turns in order.

    Args:
        turns: the pieces.
        inputs: operands of the segment's model that go in.
        outputs: operands that come out.
        constants: contents of the operands that only kernels read, or that come out as they are.
        stored: what `serialize` writes beside the driver's programs.
    """

    def __init__(
        self,
        turns: Sequence[Turn],
        inputs: Sequence[int],
        outputs: Sequence[int],
        constants: Mapping[int, Array],
        stored: StoredKernelProgram,
    ) -> None:
        self._turns = tuple(turns)
        self._inputs, self._outputs = tuple(inputs), tuple(outputs)
        self._constants = dict(constants)
        self._stored = stored

    def create_execution(self) -> Execution:
        """See `Program.create_execution`."""
        return KernelExecution(self._turns, self._inputs, self._outputs, self._constants)

    @property
    def memory_bytes(self) -> int:
        """See `Program.memory_bytes`: all of the driver's programs, and what is kept for kernels."""
        return sum(program.memory_bytes for program in self._programs) + sum(
            array.nbytes for array in self._constants.values()
        )

    @property
    def execution_bytes(self) -> int:
        """See `Program.execution_bytes`."""
        return sum(program.execution_bytes for program in self._programs)

    @property
    def shared_bytes(self) -> Mapping[Hashable, int]:
        """See `Program.shared_bytes`."""
        return {key: nbytes for program in self._programs for key, nbytes in program.shared_bytes.items()}

    def serialize(self) -> bytes | None:
        """See `Program.serialize`: None where the driver has no such form of one of its programs."""
        blobs = [program.serialize() for program in self._programs]
        return write(self._stored, [blob for blob in blobs if blob is not None]) if None not in blobs else None

    def close(self) -> None:
        """See `Program.close`."""
        close_all(self._programs)

    @property
    def _programs(self) -> list[Program]:
        return [turn.work for turn in self._turns if isinstance(turn.work, Program)]


class KernelExecution(Execution):
    """An execution of each of the driver's programs. Nothing of a run is kept, so it is re-entrant where they are."""

    def __init__(
        self, turns: Sequence[Turn], inputs: Sequence[int], outputs: Sequence[int], constants: Mapping[int, Array]
    ) -> None:
        self._inputs, self._outputs, self._constants = inputs, outputs, constants
        self._made: list[Execution] = []
        self._steps: list[tuple[Turn, Execution | KernelCall]] = []
        try:
            for turn in turns:
                self._steps.append((turn, self._opened(turn)))
        except BaseException:
            self.close()
            raise

    def _opened(self, turn: Turn) -> Execution | KernelCall:
        if isinstance(turn.work, KernelCall):
            return turn.work
        self._made.append(create_execution(turn.work))
        return self._made[-1]

    def compute(self, inputs: Sequence[Array]) -> Sequence[Array]:
        """See `Execution.compute`.

        Raises:
            ExecutionError: a kernel failed, which is named, or the driver gave something else than its model says.
        """
        return self.compute_within(inputs, UNLIMITED)

    def compute_within(self, inputs: Sequence[Array], control: Control) -> Sequence[Array]:
        """See `Execution.compute_within`: `control` is asked before every turn, and given to the driver's."""
        values = {**self._constants, **dict(zip(self._inputs, inputs, strict=True))}
        for turn, step in self._steps:
            if control.cancelled is not None and control.cancelled():
                raise CancelledError("the run was stopped between two pieces of a segment")
            results = _computed(turn, step, [read_only(values[operand]) for operand in turn.inputs], control)
            values.update(zip(turn.outputs, results, strict=True))
        return [values[operand] for operand in self._outputs]

    def close(self) -> None:
        """See `Execution.close`."""
        close_all(self._made)


def _computed(turn: Turn, step: Execution | KernelCall, inputs: Sequence[Array], control: Control) -> Sequence[Array]:
    if isinstance(step, KernelCall):
        return step.compute(inputs)
    results = step.compute(inputs) if control is UNLIMITED else step.compute_within(inputs, control)
    return check_results(results, turn.names, turn.expected)
