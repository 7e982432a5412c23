"""A compiled segment: closures in order, each with the places of its values, and the loop that runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

import numpy as np

from nnadapter.drivers.control import Control
from nnadapter.drivers.interface import Execution, Program
from nnadapter.drivers.tables.constant_memory import ConstantMemory
from nnadapter.drivers.tables.lowering import Computes
from nnadapter.errors import FAILURES, CancelledError, ExecutionError, NNAdapterError, describe
from nnadapter.ir.model import ABSENT, Model
from nnadapter.ir.named_operation import NamedOperation
from nnadapter.ir.operand import Array


class Border(Protocol):
    """What brings values onto the device and back."""

    def to_device(self, array: Array) -> Any:
        """Return the device's form of an array."""

    def to_host(self, value: Any) -> Array:
        """Return an array of what a closure gave."""


class Step(NamedTuple):
    """One operation, all about it looked up beforehand."""

    compute: Computes
    read: Callable[[Sequence[Any]], Sequence[Any]]
    """Values of the model -> those that the closure is given."""
    result: int | None
    """Where what it gives is put; None where it gives a sequence."""
    results: tuple[int, ...]
    """Where the members of a sequence are put."""
    freed: tuple[int, ...]
    """What nobody reads behind it."""
    operation: NamedOperation
    """For messages."""


class Constants(NamedTuple):
    """Constants of a segment on its device."""

    values: Sequence[Any]
    """By operand, None for all others; behind them None for what is absent, which is read at the place -1."""
    memory: ConstantMemory
    """Where they lie in the host's memory."""


class TableExecution(Execution):
    """Runs the closures one after the other; holds nothing between runs, so many threads may share it."""

    def __init__(self, model: Model, closures: Sequence[Computes], border: Border, constants: Constants) -> None:
        self._steps = tuple(_steps(model, closures))
        self._inputs, self._outputs = model.inputs, model.outputs
        self._border = border
        self._constants = constants

    def compute(self, inputs: Sequence[Array]) -> Sequence[Array]:
        """See `Execution.compute`.

        Raises:
            ExecutionError: a closure failed; the message names its operation.
        """
        return self._computed(inputs, self._steps)

    def compute_within(self, inputs: Sequence[Array], control: Control) -> Sequence[Array]:
        """See `Execution.compute_within`: `control` is asked before every operation.

        Raises:
            CancelledError: nobody wants the results any more.
            ExecutionError: a closure failed; the message names its operation.
        """
        if control.cancelled is None:
            return self._computed(inputs, self._steps)
        return self._computed(inputs, _while_wanted(self._steps, control.cancelled))

    def _computed(self, inputs: Sequence[Array], steps: Iterable[Step]) -> list[Array]:
        values = list(self._constants.values)
        for index, array in zip(self._inputs, inputs, strict=True):
            values[index] = self._border.to_device(array)
        with np.errstate(all="ignore"):  # as ONNX Runtime, which overflows without a word
            _run(steps, values)
        return self._given_away([values[index] for index in self._outputs], inputs)

    def _given_away(self, results: Sequence[Any], inputs: Sequence[Array]) -> list[Array]:
        """Results as arrays to write to, that share memory with nothing that is given, kept, or given beside them."""
        live_arrays, arrays = list(inputs), []
        for value in results:
            array = np.asarray(self._border.to_host(value))
            is_protected = not array.flags.writeable or self._constants.memory.may_hold(array)
            if is_protected or any(np.may_share_memory(array, other) for other in live_arrays):
                array = array.copy()
            live_arrays.append(array)
            arrays.append(array)
        return arrays


class TableProgram(Program):
    """A segment that was lowered.

    Args:
        model: with known sizes.
        closures: one for each operation.
        lower: gives such closures again, for executions that must share none.
        border: brings values onto the device and back.
    """

    def __init__(
        self,
        model: Model,
        closures: Sequence[Computes],
        lower: Callable[[Model], Sequence[Computes]],
        border: Border,
    ) -> None:
        self._model, self._lower, self._border = model, lower, border
        self._unused = [closures]
        """Those that no execution has yet."""
        self._constants = brought(model, border)

    def create_execution(self) -> Execution:
        """See `Program.create_execution`: closures may keep something where `Threading` keeps executions apart.

        Raises:
            CompilationError: a lowering refuses what it took before.
        """
        try:
            closures = self._unused.pop()
        except IndexError:
            closures = self._lower(self._model)
        return TableExecution(self._model, closures, self._border, self._constants)

    @property
    def memory_bytes(self) -> int:
        """See `Program.memory_bytes`: the constants; what closures keep is not known."""
        return sum(operand.value.nbytes for operand in self._model.operands if operand.value is not None)

    @property
    def execution_bytes(self) -> int:
        """See `Program.execution_bytes`: executions share the constants."""
        return 0


def brought(model: Model, border: Border) -> Constants:
    """Return the constants of a model, brought to the device."""
    arrays = [operand.value for operand in model.operands]
    values = (*(None if array is None else border.to_device(array) for array in arrays), None)
    return Constants(values, ConstantMemory(_on_the_host(arrays, values, border)))


def _on_the_host(arrays: Iterable[Array | None], values: Iterable[Any], border: Border) -> Iterator[Array]:
    """Constants, and what results would be that are constants of the device; what has no such form is no result."""
    for array, value in zip(arrays, values, strict=False):
        if array is not None:
            yield array
            with suppress(*FAILURES):
                array = np.asarray(border.to_host(value))
            yield array


def _run(steps: Iterable[Step], values: list[Any]) -> None:
    for step in steps:
        compute, read, result, results, freed, _ = step
        try:
            if result is not None:
                values[result] = compute(*read(values))
                if values[result] is None:
                    raise TypeError("its function gave None, expected a value")
            else:
                for index, value in zip(results, _several(compute(*read(values)), len(results)), strict=True):
                    values[index] = value
        except NNAdapterError:
            raise
        except FAILURES as error:
            raise ExecutionError(f"{step.operation} failed: {describe(error)}") from error
        for index in freed:
            values[index] = None


def _several(results: Any, count: int) -> Sequence[Any]:
    if not isinstance(results, Sequence):  # an array would be taken for its rows
        raise TypeError(f"its function gave {type(results).__name__}, expected a list or tuple of {count} values")
    if len(results) != count:
        raise ValueError(f"its function gave {len(results)} values, expected {count}")
    return results


def _while_wanted(steps: Sequence[Step], cancelled: Callable[[], bool]) -> Iterator[Step]:
    for position, step in enumerate(steps):
        if cancelled():
            raise CancelledError(f"stopped before operation {position} of {len(steps)}")
        yield step


def _steps(model: Model, closures: Sequence[Computes]) -> Iterator[Step]:
    freed = _last_uses(model)
    for operation, compute, ends in zip(model.operations, closures, freed, strict=True):
        named = NamedOperation(model, operation)
        several = named.schema.variadic_outputs or len(operation.outputs) > 1
        result = None if several else operation.outputs[0]
        yield Step(compute, _reader(named.positions), result, operation.outputs, ends, named)


def _reader(positions: tuple[int, ...]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """What picks values in C: a slice for one, since itemgetter of one gives no sequence."""
    if len(positions) == 1:
        return itemgetter(slice(positions[0], positions[0] + 1))
    return itemgetter(*positions)


def _last_uses(model: Model) -> list[tuple[int, ...]]:
    """For every operation the values that nobody reads behind it; constants and outputs of the model stay."""
    live_values = {
        *model.outputs,
        ABSENT,
        *(i for i, operand in enumerate(model.operands) if operand.value is not None),
    }
    ends: list[tuple[int, ...]] = []
    for operation in reversed(model.operations):
        last = {*operation.inputs, *operation.outputs} - live_values
        live_values |= last
        ends.append(tuple(sorted(last)))
    return ends[::-1]
