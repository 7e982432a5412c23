"""Compilation of a model on one device, its program as bytes, and executions of the program.

Bytes are an `Envelope` with message `Signature` of nnadapter/ir/model.proto as header.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any, Self

import numpy as np

from nnadapter import errors
from nnadapter.drivers import Admission, DeviceTensor, Program, Supported, Threading, Unsupported, Verdict, boundary
from nnadapter.drivers.envelope import ADVICE, Envelope
from nnadapter.drivers.failures import named_call
from nnadapter.drivers.interface import Execution as DriverExecution
from nnadapter.drivers.registry import device_lock
from nnadapter.ir import Array, Model, Operand, Operation, verify
from nnadapter.records import dataclass
from nnadapter.session.device import Context, Handle

_ENVELOPE = Envelope(magic=b"NNAPROG\0", version=2)


@dataclass(frozen=True, slots=True)
class ProgramSignature:
    """Inputs and outputs of a program."""

    device: str
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]


def seal(signature: ProgramSignature, contents: bytes) -> bytes:
    """Return the signature followed by the driver's bytes."""
    from nnadapter.ir.protobuf.serialization import new, write_operand

    message = new("Signature")
    message.device = signature.device
    for rows, operands in ((message.inputs, signature.inputs), (message.outputs, signature.outputs)):
        for operand in operands:
            write_operand(rows.add(), operand)
    header = message.SerializeToString(deterministic=True)
    return _ENVELOPE.close(header, [contents])


def unseal(blob: bytes, device: str) -> tuple[ProgramSignature, bytes]:
    """Split the bytes of a program for `device` into signature and driver's bytes. Raises IncompatibleProgramError."""
    header, contents = _ENVELOPE.open(blob)
    signature = _signature(header)
    if signature.device != device:
        raise errors.IncompatibleProgramError(
            f"the program was compiled for device {signature.device!r}, got a context of {device!r}; {ADVICE}"
        )
    return signature, bytes(contents)


def _signature(header: bytes) -> ProgramSignature:
    from nnadapter.ir.protobuf.serialization import parse, read_operand, refuse_unknown

    try:
        message = parse("Signature", header)
        refuse_unknown(message)
        inputs, outputs = (tuple(map(read_operand, rows)) for rows in (message.inputs, message.outputs))
    except errors.InvalidModelError as error:
        raise errors.IncompatibleProgramError(f"the program's signature cannot be read: {error}; {ADVICE}") from error
    return ProgramSignature(message.device, inputs, outputs)


_MOST_SHOWN = 3


class Compilation(Handle):
    """Model on one device: verdicts, and its compiled program. Thread-safe.

    Source: NNAdapterCompilation_create, _finish, NNAdapterModel_getSupportedOperations.

    Args:
        model: result of `ModelBuilder.finish`. It is verified now and compiled by `compile`.

    Raises:
        InvalidModelError, InvalidOptionError: the model or the context is not valid.
        ClosedError: the context was closed.
    """

    def __init__(self, context: Context, model: Model) -> None:
        _check_context(context)
        if not isinstance(model, Model):
            raise errors.InvalidModelError(
                f"a compilation needs a model from ModelBuilder.finish, got {type(model).__name__}; finish "
                "the model first"
            )
        verify(model)
        signature = ProgramSignature(
            context.device.name,
            tuple(model.operands[index] for index in model.inputs),
            tuple(model.operands[index] for index in model.outputs),
        )
        self._begin(context, model, signature)

    def _begin(self, context: Context, model: Model | None, signature: ProgramSignature) -> None:
        self._context = context
        self._model = model
        self._signature = signature
        super().__init__(context)

    @classmethod
    def deserialize(cls, context: Context, blob: bytes) -> Self:
        """Return a compilation from the bytes of `serialize`. Raises IncompatibleProgramError."""
        _check_context(context)
        signature, contents = unseal(blob, context.device.name)
        compilation = cls.__new__(cls)
        compilation._begin(context, None, signature)
        try:
            compilation._owned = boundary.checked_program(
                compilation._call("deserialize")(context.driver_context.deserialize, contents)
            )
        except errors.IncompatibleProgramError:
            raise
        except errors.FAILURES as error:
            raise errors.IncompatibleProgramError(
                f"device {context.device.name!r} did not deserialize the program: {errors.describe(error)}; "
                "compile it again"
            ) from error
        return compilation

    @property
    def context(self) -> Context:
        return self._context

    @property
    def inputs(self) -> tuple[Operand, ...]:
        return self._signature.inputs

    @property
    def outputs(self) -> tuple[Operand, ...]:
        return self._signature.outputs

    @cached_property
    def verdicts(self) -> tuple[Verdict, ...]:
        """Verdict of the device on each operation, without compiling; empty if deserialized."""
        if self._model is None:
            return ()
        with self._lock:
            self.check_open()
            count = len(self._model.operations)
            return tuple(
                self._call("supported")(boundary.ask_supported, self._context.driver_context, self._model, count)
            )

    @cached_property
    def admission(self) -> Admission:
        """Verdict on the entire model, with facts such as memory; the first refusal if an operation is refused."""
        refused = next((verdict for verdict in self.verdicts if isinstance(verdict, Unsupported)), None)
        if refused is not None or self._model is None:
            return Admission() if refused is None else Admission(verdict=refused)
        with self._lock:
            self.check_open()
            admission: Admission = self._call("admit")(
                boundary.ask_admission, self._context.driver_context, self._model
            )
            return admission

    def compile(self) -> Self:
        """Compile the program if needed, and return self.

        Raises:
            NotDelegatedError: the device refuses an operation, or the entire model.
            CompilationError: the device accepted the model and could not compile it.
        """
        self.program()
        return self

    def program(self) -> Program:
        """Return the driver's program, compiled if needed. Errors as in `compile`."""
        with self._lock:
            self.check_open()
            if self._owned is None:
                assert self._model is not None, "a deserialized compilation has its program"
                self._refuse(self._model)
                self._owned = self._compiled(self._model)
            assert isinstance(self._owned, Program)
            return self._owned

    def serialize(self) -> bytes | None:
        """Return the program as bytes for `deserialize`, compiled if needed; None if the driver cannot.

        Raises:
            NotDelegatedError, CompilationError: as in `compile`.
            DriverError: the driver failed.
        """
        program = self.program()
        try:
            contents = program.serialize()
        except errors.FAILURES as error:
            name = self._context.device.name
            raise errors.DriverError(
                f"device {name!r} did not serialize the program: {errors.describe(error)}; report it to the vendor",
                device=name,
            ) from error
        return None if contents is None else seal(self._signature, contents)

    def __repr__(self) -> str:
        names = (", ".join(operand.name for operand in operands) for operands in (self.inputs, self.outputs))
        return f"Compilation({self._context.device.name!r}: {' -> '.join(names)})"

    def _refuse(self, model: Model) -> None:
        refused = [
            (operation, position, verdict)
            for position, (operation, verdict) in enumerate(zip(model.operations, self.verdicts, strict=True))
            if not isinstance(verdict, Supported)
        ]
        admission_verdict = self.admission.verdict
        if not refused and isinstance(admission_verdict, Supported):
            return
        name = self._context.device.name
        because = [
            f"operation {position} {operation.type} ({_output_names(model, operation)}): {verdict}"
            for operation, position, verdict in refused[:_MOST_SHOWN]
        ] or [str(admission_verdict)]
        more = f"; and {len(refused) - _MOST_SHOWN} more" if len(refused) > _MOST_SHOWN else ""
        raise errors.NotDelegatedError(
            f"device {name!r} does not support the model: {'; '.join(because)}{more}",
            device=name,
            nodes=[model.operands[index].name for operation, _, _ in refused for index in operation.outputs],
        )

    def _call(self, call: str) -> Callable[..., Any]:
        return named_call(self._context.device.name, call)

    def _compiled(self, model: Model) -> Program:
        try:
            return boundary.checked_program(self._call("compile")(self._context.driver_context.compile, model))
        except errors.FAILURES as error:
            name = self._context.device.name
            raise errors.CompilationError(
                (
                    f"device {name!r} accepted the model and failed to compile it: {errors.describe(error)}; "
                    "report it to the vendor"
                ),
                device=name,
            ) from error


def _check_context(context: object) -> None:
    if not isinstance(context, Context):
        raise errors.InvalidOptionError(
            f"a compilation needs an nnadapter.Context, got {context!r}; create one on a device"
        )


def _output_names(model: Model, operation: Operation) -> str:
    return ", ".join(repr(model.operands[index].name) for index in operation.outputs)


class Execution(Handle):
    """Buffers of one run of a program: set the inputs, compute, read the outputs.

    Calls from several threads are serialized. Executions of one compilation run concurrently unless the device is
    serial (`device.capability.threading`). Source: NNAdapterExecution_create, _setInput, _setOutput, _compute.

    Args:
        compilation: compilation to run; compiled if needed.

    Raises:
        NotDelegatedError, CompilationError: as in `Compilation.compile`.
        ExecutionError: the driver failed to create an execution.
        InvalidModelError, ClosedError: `compilation` is not a Compilation, or closed.
    """

    def __init__(self, compilation: Compilation) -> None:
        if not isinstance(compilation, Compilation):
            raise errors.InvalidModelError(
                f"an execution needs an nnadapter.Compilation, got {type(compilation).__name__}; compile the "
                "model first"
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
            self._execution: DriverExecution = named_call(device.name, "create_execution")(
                boundary.create_execution, program
            )
        except errors.FAILURES as error:
            raise self._failed("failed to create an execution", error) from error
        super().__init__(compilation, self._execution)

    @property
    def inputs(self) -> tuple[Operand, ...]:
        return self._inputs

    @property
    def outputs(self) -> tuple[Operand, ...]:
        return self._outputs

    def set_input(self, which: str | int, array: Array) -> None:
        """Set one input, by name or index, for all later runs. Do not change the array: it is not copied.

        Raises:
            InputTypeError: the data type differs.
            InvalidInputError: there is no such input, or the shape differs.
        """
        position = _position(which, self._inputs, "input")
        _check(self._inputs[position], array)
        with self._lock:
            self.check_open()
            self._arrays[position] = boundary.read_only(array)
            self._results = None

    def set_inputs(self, arrays: Mapping[str, Array] | Sequence[Array]) -> None:
        """Set inputs by name, or all in order. See `set_input`."""
        if not isinstance(arrays, Collection):
            raise errors.InvalidInputError(f"inputs must be arrays by name, or a list of them, got {arrays!r}")
        if not isinstance(arrays, Mapping) and len(arrays) != len(self._inputs):
            raise errors.InvalidInputError(
                f"got {len(arrays)} inputs, expected {len(self._inputs)} ({_names(self._inputs)})"
            )
        for which, array in arrays.items() if isinstance(arrays, Mapping) else enumerate(arrays):
            self.set_input(which, array)

    def compute(self) -> tuple[Array, ...]:
        """Run the program once and return the outputs in order. The caller owns them.

        Raises:
            MissingInputError: an input is not set.
            ExecutionError: the device failed, or returned wrong types or shapes.
        """
        with self._lock:
            self.check_open()
            inputs = [array for array in self._arrays if array is not None]
            if len(inputs) < len(self._arrays):
                pairs = zip(self._inputs, self._arrays, strict=True)
                missing = next(operand.name for operand, array in pairs if array is None)
                raise errors.MissingInputError(f"input {missing!r} is not set; call set_input first", name=missing)
            self._results = None
            self._results = self._computed(inputs)
            return tuple(self._results)

    def compute_on_device(self, inputs: Sequence[DeviceTensor]) -> Sequence[DeviceTensor] | None:
        """Run the program once on device tensors, ignoring inputs that are set. Raises ExecutionError.

        Returns:
            Outputs in new device memory, which the caller frees; None if the driver cannot.
        """
        with self._lock:
            self.check_open()
            try:
                with self._turn:
                    computed = self._call(self._execution.compute_on_device, inputs)
                return (
                    None if computed is None else boundary.check_tensors(computed, self._names, self._expected, inputs)
                )
            except errors.FAILURES as error:
                raise self._failed("failed while computing", error) from error

    def output(self, which: str | int) -> Array:
        """Return one output of the last run by name or index, without a copy.

        Raises:
            InvalidInputError: there is no such output.
            ExecutionError: nothing was computed since the inputs were set.
        """
        position = _position(which, self._outputs, "output")
        with self._lock:
            self.check_open()
            if self._results is None:
                raise errors.ExecutionError("nothing was computed since the inputs were set; call compute first")
            return self._results[position]

    def __repr__(self) -> str:
        return f"Execution({self._compilation})"

    def _computed(self, inputs: Sequence[Array]) -> Sequence[Array]:
        try:
            with self._turn:
                results = self._call(self._execution.compute, inputs)
            return [
                _copy_if_shared(result, inputs)
                for result in boundary.check_results(results, self._names, self._expected)
            ]
        except errors.FAILURES as error:
            raise self._failed("failed while computing", error) from error

    def _failed(self, failure: str, error: BaseException) -> errors.NNAdapterError:
        if isinstance(error, _PASSED_ON):
            return error
        return errors.ExecutionError(
            f"device {self._device!r} {failure}: {errors.describe(error)}", device=self._device
        )


_PASSED_ON = (errors.CancelledError, errors.DeviceLostError, errors.OutOfMemoryError, errors.TransientError)
"""Driver errors that the caller gets unchanged."""


def _position(which: str | int, operands: Sequence[Operand], kind: str) -> int:
    if isinstance(which, str):
        names = [operand.name for operand in operands]
        if which in names:
            return names.index(which)
        raise errors.InvalidInputError(f"there is no {kind} {which!r}; {errors.close_names(which, names)}", name=which)
    if not isinstance(which, int) or not 0 <= which < len(operands):
        raise errors.InvalidInputError(
            f"there is no {kind} {which!r}, expected a name or an index below {len(operands)} ({_names(operands)})"
        )
    return which


def _names(operands: Sequence[Operand]) -> str:
    return ", ".join(operand.name for operand in operands)


def _check(operand: Operand, array: object) -> None:
    type_, name = operand.type, operand.name
    if not isinstance(array, np.ndarray):
        raise errors.InputTypeError(
            f"input {name!r} is {type(array).__name__}, expected a numpy array of {type_}", name=name
        )
    if array.dtype != type_.dtype.array_type:
        raise errors.InputTypeError(f"input {name!r} is {array.dtype}{list(array.shape)}, expected {type_}", name=name)
    if array.shape != type_.dimensions:
        raise errors.InvalidInputError(
            f"input {name!r} is {array.dtype}{list(array.shape)}, expected {type_}", name=name
        )


def _copy_if_shared(result: Array, inputs: Sequence[Array]) -> Array:
    is_shared = not result.flags.writeable or any(np.may_share_memory(result, array) for array in inputs)
    return result.copy() if is_shared else result
