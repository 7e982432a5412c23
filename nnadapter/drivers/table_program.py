"""Lowering tables, and programs that run lowered operations in order."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

import numpy as np

from nnadapter import errors
from nnadapter.drivers.capability import OperationSupport
from nnadapter.drivers.interface import Control, Execution, Program
from nnadapter.drivers.table_lowering import Computes, Lowering
from nnadapter.ir import ABSENT, Array, DataType, Model, NamedOperation, Operand, Operation, Role, schema_of
from nnadapter.ir.operand import INTEGER
from nnadapter.ir.operations.windows import FUSE_CODES
from nnadapter.ir.structure import SymbolicModel
from nnadapter.records import dataclass
from partition.graph import Reason, Unsupported


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """Row of a lowering table, combined with the operation's schema."""

    lowering: Lowering
    dtypes: tuple[frozenset[DataType], ...]
    """Data types by input position; the last entry covers all further positions."""
    results: frozenset[DataType]
    quantized: frozenset[DataType]
    ranks: tuple[int, int]

    @property
    def support(self) -> OperationSupport:
        lowering = self.lowering
        return OperationSupport(type=lowering.type, dtypes=self.dtypes[0], ranks=self.ranks, limits=lowering.limits)


class LoweringTable:
    """Lowerings by operation; `dtypes` are the data types for lowerings without `types`."""

    def __init__(self, lowerings: Iterable[Lowering], dtypes: frozenset[DataType]) -> None:
        rows: dict[str, TableRow] = {}
        for lowering in lowerings:
            _check(lowering, rows.get(lowering.type))
            rows[lowering.type] = _row(lowering, dtypes)
        self.rows: Mapping[str, TableRow] = rows

    def lower(self, model: Model, operation: Operation) -> Computes | Unsupported:
        row = self.rows.get(operation.type)
        if row is None:
            return Unsupported(Reason.UNSUPPORTED_OPERATION, f"there is no kernel for {operation.type}")
        named = NamedOperation(model, operation)
        for refusal in _refusals(named, row):
            return refusal
        try:
            lowered = row.lowering.lower(named)
        except errors.FAILURES as error:
            return Unsupported(
                Reason.DRIVER_ERROR, f"the lowering of {operation.type} failed: {errors.describe(error)}"
            )
        if callable(lowered) or isinstance(lowered, Unsupported):
            return lowered
        detail = (
            f"the lowering of {operation.type} returned {type(lowered).__name__}, expected a function or Unsupported"
        )
        return Unsupported(Reason.DRIVER_ERROR, detail)


def _check(lowering: Lowering, other: TableRow | None) -> None:
    name = _name(lowering)
    try:
        schema = schema_of(lowering.type)
    except errors.InvalidModelError as error:
        raise errors.DriverError(f"lowering {name} is for {lowering.type!r}: {error}") from error
    if other is not None:
        raise errors.DriverError(f"{name} and {_name(other.lowering)} both lower {lowering.type}; remove one of them")
    unknown = lowering.fuse_codes - FUSE_CODES.keys()
    if unknown:
        raise errors.DriverError(
            f"{name} has the unknown activation {min(unknown)!r}; {errors.close_names(min(unknown), FUSE_CODES)}"
        )
    accepted_dtypes = frozenset[DataType]().union(*(role.dtypes for role in schema.inputs))
    if lowering.types is not None and not lowering.types & accepted_dtypes:
        raise errors.DriverError(
            f"{name} lowers {lowering.type} for {', '.join(sorted(lowering.types))}, "
            f"expected some of {', '.join(sorted(accepted_dtypes))}"
        )


def _name(lowering: Lowering) -> str:
    return getattr(lowering.lower, "__name__", "a function")


def _row(lowering: Lowering, dtypes: frozenset[DataType]) -> TableRow:
    schema = schema_of(lowering.type)
    row_dtypes = dtypes if lowering.types is None else lowering.types
    return TableRow(
        lowering=lowering,
        dtypes=tuple(_role_dtypes(role, row_dtypes) for role in schema.inputs),
        results=row_dtypes | lowering.results,
        quantized=row_dtypes & INTEGER if lowering.quantized else frozenset(),
        ranks=schema.ranks if lowering.ranks is None else lowering.ranks,
    )


def _role_dtypes(role: Role, dtypes: frozenset[DataType]) -> frozenset[DataType]:
    return role.dtypes & dtypes or role.dtypes


def _refusals(operation: NamedOperation, row: TableRow) -> Iterator[Unsupported]:
    lowering, inputs = row.lowering, operation.inputs
    code = operation.attributes.get("fuse_code", "none")
    if code not in lowering.fuse_codes:
        detail = f"{operation.type} has the activation {code}, accepted: {', '.join(sorted(lowering.fuse_codes))}"
        yield Unsupported(Reason.UNSUPPORTED_ATTRIBUTE, detail)
    last = len(row.dtypes) - 1
    for position, operand in enumerate(inputs):
        if operand is not None:
            yield from _refused_operand(operation, operand, row.dtypes[min(position, last)], row)
    for operand in operation.outputs:
        yield from _refused_operand(operation, operand, row.results, row)
    smallest, largest = row.ranks
    if inputs and inputs[0] is not None and not smallest <= inputs[0].type.rank <= largest:
        detail = f"{operation.type} got {inputs[0].type} for {inputs[0].name!r}, accepted: rank {smallest} to {largest}"
        yield Unsupported(Reason.UNSUPPORTED_RANK, detail)


def _refused_operand(
    operation: NamedOperation, operand: Operand, dtypes: frozenset[DataType], row: TableRow
) -> Iterator[Unsupported]:
    """Yield refusals of an operand. Dynamic shapes are formatted only for refusals, because formatting adds guards."""
    type_, layouts = operand.type, row.lowering.layouts
    accepted_dtypes = dtypes if type_.quantization is None else row.quantized
    if not accepted_dtypes:
        yield _operand_refusal(operation, operand, "operands that are not quantized")
    elif type_.dtype not in accepted_dtypes:
        yield _operand_refusal(operation, operand, ", ".join(sorted(accepted_dtypes)))
    elif type_.layout not in layouts:
        yield _operand_refusal(operation, operand, ", ".join(sorted(layouts)))


def _operand_refusal(operation: NamedOperation, operand: Operand, accepted: str) -> Unsupported:
    quantized = "" if operand.type.quantization is None else "quantized "
    detail = f"{operation.type} got {quantized}{operand.type} for {operand.name!r}, accepted: {accepted}"
    return Unsupported(Reason.UNSUPPORTED_DTYPE, detail)


class ConstantMemory:
    """Address ranges of constants in host memory."""

    __slots__ = ("_begins", "_ends")

    def __init__(self, arrays: Iterable[Array]) -> None:
        spans = sorted(_span(array) for array in arrays if array.size)
        self._begins = [begin for begin, _ in spans]
        self._ends = list(accumulate((end for _, end in spans), max))

    def may_hold(self, array: Array) -> bool:
        begin, end = _span(array)
        earlier = bisect_left(self._begins, end)
        return earlier > 0 and self._ends[earlier - 1] > begin


def _span(array: Array) -> tuple[int, int]:
    begin: int = array.__array_interface__["data"][0]
    end = begin + array.itemsize
    for size, stride in zip(array.shape, array.strides, strict=True):
        if stride < 0:
            begin += (size - 1) * stride
        else:
            end += (size - 1) * stride
    return begin, end


class HostTransfers(Protocol):
    """Conversion of values between host and device."""

    def to_device(self, array: Array) -> Any: ...

    def to_host(self, value: Any) -> Array: ...


class Step(NamedTuple):
    """One operation, prepared for running."""

    compute: Computes
    read: Callable[[Sequence[Any]], Sequence[Any]]
    result: int | None
    """Index of the result; None if the function returns a sequence of results."""
    results: tuple[int, ...]
    freed: tuple[int, ...]
    operation: NamedOperation


class Constants(NamedTuple):
    """Constants of a segment on its device."""

    values: Sequence[Any]
    """Values by operand index, with None at the end for absent inputs (index -1)."""
    memory: ConstantMemory


class TableExecution(Execution):
    """Stateless run of compute functions; threads may share it."""

    def __init__(
        self, model: Model, closures: Sequence[Computes], transfers: HostTransfers, constants: Constants
    ) -> None:
        self._steps = tuple(_steps(model, closures))
        self._inputs, self._outputs = model.inputs, model.outputs
        self._transfers = transfers
        self._constants = constants

    def compute(self, inputs: Sequence[Array]) -> Sequence[Array]:
        return self._computed(inputs, self._steps)

    def compute_within(self, inputs: Sequence[Array], control: Control) -> Sequence[Array]:
        if control.cancelled is None:
            return self._computed(inputs, self._steps)
        return self._computed(inputs, _until_cancelled(self._steps, control.cancelled))

    def _computed(self, inputs: Sequence[Array], steps: Iterable[Step]) -> list[Array]:
        values = list(self._constants.values)
        for index, array in zip(self._inputs, inputs, strict=True):
            values[index] = self._transfers.to_device(array)
        with np.errstate(all="ignore"):  # like ONNX Runtime, which overflows silently
            _run(steps, values)
        return self._independent_arrays([values[index] for index in self._outputs], inputs)

    def _independent_arrays(self, results: Sequence[Any], inputs: Sequence[Array]) -> list[Array]:
        live_arrays, arrays = list(inputs), []
        for value in results:
            array = np.asarray(self._transfers.to_host(value))
            is_protected = not array.flags.writeable or self._constants.memory.may_hold(array)
            if is_protected or any(np.may_share_memory(array, other) for other in live_arrays):
                array = array.copy()
            live_arrays.append(array)
            arrays.append(array)
        return arrays


class TableProgram(Program):
    """Lowered segment with static shapes.

    Each execution lowers the model again, because compute functions may keep state.
    """

    execution_bytes = 0

    def __init__(
        self,
        model: Model,
        closures: Sequence[Computes],
        lower: Callable[[Model], Sequence[Computes]],
        transfers: HostTransfers,
    ) -> None:
        self._model, self._lower, self._transfers = model, lower, transfers
        self._unused = [closures]
        self._constants = copy_constants(model, transfers)

    def create_execution(self) -> Execution:
        try:
            closures = self._unused.pop()
        except IndexError:
            closures = self._lower(self._model)
        return TableExecution(self._model, closures, self._transfers, self._constants)

    @property
    def memory_bytes(self) -> int:
        return sum(operand.value.nbytes for operand in self._model.operands if operand.value is not None)


def copy_constants(model: Model, transfers: HostTransfers) -> Constants:
    """Convert the constants of a model to device values."""
    arrays = [operand.value for operand in model.operands]
    values = (*(None if array is None else transfers.to_device(array) for array in arrays), None)
    return Constants(values, ConstantMemory(_host_forms(arrays, values, transfers)))


def _host_forms(arrays: Iterable[Array | None], values: Iterable[Any], transfers: HostTransfers) -> Iterator[Array]:
    for array, value in zip(arrays, values, strict=False):
        if array is not None:
            yield array
            with suppress(*errors.FAILURES):
                array = np.asarray(transfers.to_host(value))
            yield array


def _run(steps: Iterable[Step], values: list[Any]) -> None:
    for step in steps:
        compute, read, result, results, freed, _ = step
        try:
            if result is not None:
                values[result] = compute(*read(values))
                if values[result] is None:
                    raise TypeError("the lowered function returned None, expected a value")
            else:
                for index, value in zip(results, _output_sequence(compute(*read(values)), len(results)), strict=True):
                    values[index] = value
        except errors.NNAdapterError:
            raise
        except errors.FAILURES as error:
            raise errors.ExecutionError(f"{step.operation} failed: {errors.describe(error)}") from error
        for index in freed:
            values[index] = None


def _output_sequence(results: Any, count: int) -> Sequence[Any]:
    if not isinstance(results, Sequence):  # an array is a sequence of rows
        raise TypeError(
            f"the lowered function returned {type(results).__name__}, expected a list or tuple of {count} values"
        )
    if len(results) != count:
        raise ValueError(f"the lowered function returned {len(results)} values, expected {count}")
    return results


def _until_cancelled(steps: Sequence[Step], cancelled: Callable[[], bool]) -> Iterator[Step]:
    for position, step in enumerate(steps):
        if cancelled():
            raise errors.CancelledError(f"the run was cancelled before operation {position} of {len(steps)}")
        yield step


def _steps(model: Model, closures: Sequence[Computes]) -> Iterator[Step]:
    freed = _last_uses(model)
    for operation, compute, ends in zip(model.operations, closures, freed, strict=True):
        named = NamedOperation(model, operation)
        several = named.schema.variadic_outputs or len(operation.outputs) > 1
        result = None if several else operation.outputs[0]
        yield Step(compute, _reader(named.positions), result, operation.outputs, ends, named)


def _reader(positions: tuple[int, ...]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    if len(positions) == 1:
        return itemgetter(slice(positions[0], positions[0] + 1))
    return itemgetter(*positions)


def _last_uses(model: Model) -> list[tuple[int, ...]]:
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


class DynamicTableProgram(Program):
    """Segment with dynamic shapes, lowered again for each new set of sizes."""

    def __init__(self, model: Model, lower: Callable[[Model], Sequence[Computes]], transfers: HostTransfers) -> None:
        self._symbolic_model = SymbolicModel(model)
        self._lower, self._transfers = lower, transfers
        self._constants = copy_constants(model, transfers)

    def create_execution(self) -> Execution:
        return DynamicTableExecution(self)

    def execution_at(self, sizes: Sequence[Any]) -> TableExecution:
        model = self._symbolic_model.specialize(sizes)
        return TableExecution(model, self._lower(model), self._transfers, self._constants)


class SpecializableProgram(Protocol):
    """Program with dynamic shapes."""

    def execution_at(self, sizes: Sequence[Any]) -> Execution: ...


class DynamicTableExecution(Execution):
    """Execution that must be specialized before it can compute."""

    def __init__(self, program: SpecializableProgram) -> None:
        self._program = program
        self._last: tuple[Sequence[Any], Execution] | None = None

    def compute(self, inputs: Sequence[Array]) -> Sequence[Array]:
        raise errors.DriverError("the program has dynamic shapes; call `specialize` first")

    def specialize(self, sizes: Sequence[Any]) -> Execution:
        last = self._last
        if last is None or last[0] is not sizes:
            last = self._last = sizes, self._program.execution_at(sizes)
        return last[1]
