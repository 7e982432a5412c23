"""Inputs, a run, outputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from nnadapter.drivers.border import check_results, check_tensors, create_execution, read_only
from nnadapter.drivers.capability import Threading
from nnadapter.drivers.crashes import named_call
from nnadapter.drivers.device_tensors import DeviceTensor
from nnadapter.drivers.interface import Execution as DriverExecution
from nnadapter.drivers.registry import device_lock
from nnadapter.errors import (
    FAILURES,
    CancelledError,
    DeviceLostError,
    ExecutionError,
    InputTypeError,
    InvalidInputError,
    InvalidModelError,
    MissingInputError,
    NNAdapterError,
    OutOfMemoryError,
    TransientError,
    close_names,
    describe,
)
from nnadapter.ir.operand import Array, Operand
from nnadapter.runtime.compilation import Compilation
from nnadapter.runtime.handle import Handle


class Execution(Handle):
    """One set of buffers of a program: set the inputs, compute, fetch the outputs.

    An execution computes in one thread at a time; others wait. Executions of one compilation compute side by side,
    unless the device does one thing at a time (`device.capability.threading`): then these wait too.

    Source: NNAdapterExecution_create, _setInput, _setOutput, _compute.

    Args:
        compilation: what is to run; compiled now if it was not yet.

    Raises:
        NotDelegatedError, CompilationError: as in `Compilation.compile`.
        InvalidModelError: `compilation` is none.
        ExecutionError: the driver gave no execution.
        ClosedError: the compilation was closed.
    """

    def __init__(self, compilation: Compilation) -> None:
        if not isinstance(compilation, Compilation):
            raise InvalidModelError(
                f"an execution is made of a nnadapter.Compilation, got {type(compilation).__name__}; compile it first"
            )
        program = compilation.program()
        device = compilation.context.device
        self._compilation = compilation
        self._device = device.name
        self._call = named_call(device.name, "compute")
        self._inputs, self._outputs = compilation.inputs, compilation.outputs
        self._expected = [(output.type.dimensions, output.type.dtype.array_type) for output in self._outputs]
        self._names = [operand.name for operand in self._outputs]
        self._arrays: list[Array | None] = [None] * len(self._inputs)
        self._results: Sequence[Array] | None = None
        self._turn: AbstractContextManager[Any] = (
            device_lock(device.name) if device.capability.threading is Threading.SERIAL else nullcontext()
        )
        try:
            self._execution: DriverExecution = named_call(device.name, "create_execution")(create_execution, program)
        except FAILURES as error:
            raise self._failed("did not give an execution", error) from error
        super().__init__(compilation, self._execution)

    @property
    def inputs(self) -> tuple[Operand, ...]:
        """Names and types of what it is given, in order."""
        return self._inputs

    @property
    def outputs(self) -> tuple[Operand, ...]:
        """Names and types of what it gives back, in order."""
        return self._outputs

    def set_input(self, which: str | int, array: Array) -> None:
        """Set one input; it stays set for later runs. The array is not copied, so do not change it before `compute`.

        Args:
            which: the input's name or its position.
            array: of exactly the input's data type and dimensions.

        Raises:
            InputTypeError: it has another data type, or is no array.
            InvalidInputError: there is no such input, or it has other dimensions.
        """
        position = _position(which, self._inputs, "input")
        _check(self._inputs[position], array)
        with self._lock:
            self.check_open()
            self._arrays[position] = read_only(array)
            self._results = None

    def set_inputs(self, arrays: Mapping[str, Array] | Sequence[Array]) -> None:
        """Set several inputs: by name, or all of them by position; see `set_input`."""
        if not isinstance(arrays, Collection):
            raise InvalidInputError(f"inputs are {arrays!r}, expected arrays by name, or a list of them")
        if not isinstance(arrays, Mapping) and len(arrays) != len(self._inputs):
            raise InvalidInputError(f"got {len(arrays)} inputs, expected {len(self._inputs)} ({_names(self._inputs)})")
        for which, array in arrays.items() if isinstance(arrays, Mapping) else enumerate(arrays):
            self.set_input(which, array)

    def compute(self) -> tuple[Array, ...]:
        """Run the program once on the inputs that are set, and return the outputs in order.

        They are the caller's own arrays, which no later run writes to. `output` gives the same ones.

        Raises:
            MissingInputError: an input is not set.
            ExecutionError: the device failed, or gave something else than the model says.
        """
        with self._lock:
            self.check_open()
            inputs = [array for array in self._arrays if array is not None]
            if len(inputs) < len(self._arrays):
                pairs = zip(self._inputs, self._arrays, strict=True)
                missing = next(operand.name for operand, array in pairs if array is None)
                raise MissingInputError(f"input {missing!r} is not set; call set_input first", name=missing)
            self._results = None
            self._results = self._computed(inputs)
            return tuple(self._results)

    def compute_on_device(self, inputs: Sequence[DeviceTensor]) -> Sequence[DeviceTensor] | None:
        """Run the program once from memory of the device into new memory of it; inputs that are set are not looked at.

        Returns:
            The outputs, whose memory is the caller's to free; None, and nothing was done, where the driver cannot.

        Raises:
            ExecutionError: the device failed.
        """
        with self._lock:
            self.check_open()
            try:
                with self._turn:
                    computed = self._call(self._execution.compute_on_device, inputs)
                return None if computed is None else check_tensors(computed, self._names, self._expected, inputs)
            except FAILURES as error:
                raise self._failed("failed while it computed", error) from error

    def output(self, which: str | int) -> Array:
        """Return one output of the last run, by name or position: the very array that `compute` returned, no copy.

        Raises:
            InvalidInputError: there is no such output.
            ExecutionError: nothing was computed since the inputs were set.
        """
        position = _position(which, self._outputs, "output")
        with self._lock:
            self.check_open()
            if self._results is None:
                raise ExecutionError("nothing was computed since the inputs were set; call compute first")
            return self._results[position]

    def __repr__(self) -> str:
        """The kind and what runs."""
        return f"Execution({self._compilation})"

    def _computed(self, inputs: Sequence[Array]) -> Sequence[Array]:
        try:
            with self._turn:
                results = self._call(self._execution.compute, inputs)
            return [_own(result, inputs) for result in check_results(results, self._names, self._expected)]
        except FAILURES as error:
            raise self._failed("failed while it computed", error) from error

    def _failed(self, failure: str, error: BaseException) -> NNAdapterError:
        if isinstance(error, _TELLING):
            return error
        return ExecutionError(f"device {self._device!r} {failure}: {describe(error)}", device=self._device)


_TELLING = (CancelledError, DeviceLostError, OutOfMemoryError, TransientError)
"""Errors of drivers that say more than that the run failed."""


def _position(which: str | int, operands: Sequence[Operand], kind: str) -> int:
    if isinstance(which, str):
        names = [operand.name for operand in operands]
        if which in names:
            return names.index(which)
        raise InvalidInputError(f"there is no {kind} {which!r}; {close_names(which, names)}", name=which)
    if not isinstance(which, int) or not 0 <= which < len(operands):
        raise InvalidInputError(
            f"there is no {kind} {which!r}, expected a name or a position below {len(operands)} ({_names(operands)})"
        )
    return which


def _names(operands: Sequence[Operand]) -> str:
    return ", ".join(operand.name for operand in operands)


def _check(operand: Operand, array: object) -> None:
    type_, name = operand.type, operand.name
    if not isinstance(array, np.ndarray):
        raise InputTypeError(f"input {name!r} is {type(array).__name__}, expected a numpy array of {type_}", name=name)
    if array.dtype != type_.dtype.array_type:
        raise InputTypeError(f"input {name!r} is {array.dtype}{list(array.shape)}, expected {type_}", name=name)
    if array.shape != type_.dimensions:
        raise InvalidInputError(f"input {name!r} is {array.dtype}{list(array.shape)}, expected {type_}", name=name)


def _own(result: Array, inputs: Sequence[Array]) -> Array:
    """An output that nobody else holds: constants and inputs that are outputs as well are copied."""
    is_shared = not result.flags.writeable or any(np.may_share_memory(result, array) for array in inputs)
    return result.copy() if is_shared else result
