"""A device's verdicts on a model, and the program that it makes of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Self

from nnadapter.drivers.border import ask_admission, ask_supported, checked_program
from nnadapter.drivers.crashes import named_call
from nnadapter.drivers.interface import Admission, Program
from nnadapter.errors import (
    FAILURES,
    CompilationError,
    DriverError,
    IncompatibleProgramError,
    InvalidModelError,
    InvalidOptionError,
    NotDelegatedError,
    describe,
)
from nnadapter.ir.model import Model, Operation
from nnadapter.ir.operand import Operand
from nnadapter.ir.verifying import verify
from nnadapter.runtime.context import Context
from nnadapter.runtime.handle import Handle
from nnadapter.runtime.sealed import ProgramSignature, seal, unseal
from partition.verdict import Supported, Unsupported, Verdict

_MOST_SHOWN = 3


class Compilation(Handle):
    """A model on its way to a program. Safe to use from many threads.

    Source: NNAdapterCompilation_create, _finish, NNAdapterModel_getSupportedOperations.

    Args:
        context: where it is to run.
        model: what `ModelBuilder.finish` gave. It is checked as a whole; nothing is compiled before `compile`.

    Raises:
        InvalidModelError: the model contradicts itself, or is none.
        InvalidOptionError: the context is none.
        ClosedError: the context was closed.
    """

    def __init__(self, context: Context, model: Model) -> None:
        _check_context(context)
        if not isinstance(model, Model):
            raise InvalidModelError(
                f"a compilation takes what ModelBuilder.finish gave, got {type(model).__name__}; finish the model first"
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
        """Return the compilation that `serialize` wrote, compiled as it was.

        Raises:
            IncompatibleProgramError: the bytes are damaged, from another version or device, or were compiled under
                options that do not fit the context's.
            InvalidOptionError: the context is none.
        """
        _check_context(context)
        signature, contents = unseal(blob, context.device.name)
        compilation = cls.__new__(cls)
        compilation._begin(context, None, signature)
        try:
            compilation._own(
                checked_program(compilation._call("deserialize")(context.driver_context.deserialize, contents))
            )
        except IncompatibleProgramError:
            raise
        except FAILURES as error:
            raise IncompatibleProgramError(
                f"device {context.device.name!r} did not deserialize the program: {describe(error)}; compile it again"
            ) from error
        return compilation

    @property
    def context(self) -> Context:
        """Where it runs."""
        return self._context

    @property
    def inputs(self) -> tuple[Operand, ...]:
        """Names and types of what an execution is given, in order."""
        return self._signature.inputs

    @property
    def outputs(self) -> tuple[Operand, ...]:
        """Names and types of what an execution gives back, in order."""
        return self._signature.outputs

    @cached_property
    def verdicts(self) -> tuple[Verdict, ...]:
        """What the device says of each operation, in the model's order, not compiling; empty for a deserialized one."""
        if self._model is None:
            return ()
        with self._lock:
            self.check_open()
            count = len(self._model.operations)
            return tuple(self._call("supported")(ask_supported, self._context.driver_context, self._model, count))

    @cached_property
    def admission(self) -> Admission:
        """What the device says of the model as a whole: a verdict, and facts such as bytes of memory.

        The verdict is that of the first refused operation if there is one; a deserialized program is admitted.
        """
        refused = next((verdict for verdict in self.verdicts if isinstance(verdict, Unsupported)), None)
        if refused is not None or self._model is None:
            return Admission() if refused is None else Admission(verdict=refused)
        with self._lock:
            self.check_open()
            admission: Admission = self._call("admit")(ask_admission, self._context.driver_context, self._model)
            return admission

    def compile(self) -> Self:
        """Have the device make its program, if it did not yet; return the compilation itself.

        Raises:
            NotDelegatedError: the device refuses an operation, or the model as a whole.
            CompilationError: it said yes and could not compile.
        """
        self.program()
        return self

    def program(self) -> Program:
        """The driver's own program, compiled now if it was not yet; errors as in `compile`."""
        with self._lock:
            self.check_open()
            if self._owned is None:
                assert self._model is not None, "a deserialized compilation has its program"
                self._refuse(self._model)
                self._own(self._compiled(self._model))
            assert isinstance(self._owned, Program)
            return self._owned

    def serialize(self) -> bytes | None:
        """The program as bytes that `deserialize` takes, compiled now if it was not yet; None where the driver cannot.

        Raises:
            NotDelegatedError, CompilationError: as in `compile`.
            DriverError: the driver failed to write it.
        """
        program = self.program()
        try:
            contents = program.serialize()
        except FAILURES as error:
            name = self._context.device.name
            raise DriverError(
                f"device {name!r} did not serialize the program: {describe(error)}; report it to the vendor",
                device=name,
            ) from error
        return None if contents is None else seal(self._signature, contents)

    def __repr__(self) -> str:
        """The kind, the device and what goes in and out."""
        names = (", ".join(operand.name for operand in operands) for operands in (self.inputs, self.outputs))
        return f"Compilation({self._context.device.name!r}: {' -> '.join(names)})"

    def _refuse(self, model: Model) -> None:
        """Raise what says why the device does not take the model, if it does not."""
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
            f"operation {position} {operation.type} ({_made(model, operation)}): {verdict}"
            for operation, position, verdict in refused[:_MOST_SHOWN]
        ] or [str(admission_verdict)]
        more = f"; and {len(refused) - _MOST_SHOWN} more" if len(refused) > _MOST_SHOWN else ""
        raise NotDelegatedError(
            f"device {name!r} does not take the model: {'; '.join(because)}{more}",
            device=name,
            nodes=[model.operands[index].name for operation, _, _ in refused for index in operation.outputs],
        )

    def _call(self, call: str) -> Callable[..., Any]:
        return named_call(self._context.device.name, call)

    def _compiled(self, model: Model) -> Program:
        try:
            return checked_program(self._call("compile")(self._context.driver_context.compile, model))
        except FAILURES as error:
            name = self._context.device.name
            raise CompilationError(
                f"device {name!r} took the model and failed to compile it: {describe(error)}; report it to the vendor",
                device=name,
            ) from error

    def _own(self, program: Program) -> None:
        self._owned = program


def _check_context(context: object) -> None:
    if not isinstance(context, Context):
        raise InvalidOptionError(f"a compilation is made in a nnadapter.Context, got {context!r}; make one on a device")


def _made(model: Model, operation: Operation) -> str:
    return ", ".join(repr(model.operands[index].name) for index in operation.outputs)
