"""Wrappers that call kernels on the host between a driver's programs.

A segment is divided at its kernels, and the driver compiles each piece. In the plan it remains one segment with one
program.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

import nnadapter.kernels.segments as segments
from nnadapter import errors
from nnadapter.drivers import boundary
from nnadapter.drivers.capability import Capability, Profile
from nnadapter.drivers.interface import (
    KERNEL,
    NO_OPERATION,
    UNLIMITED,
    Admission,
    Compatibility,
    Context,
    Control,
    Execution,
    Program,
    SegmentModel,
)
from nnadapter.drivers.kernel import Kernel, KernelType
from nnadapter.ir import Array, Layout, Model, Operand, OperandType, Operation
from nnadapter.ir.operations.custom import CUSTOM, CustomCall
from nnadapter.kernels.registry import Choice, KernelTable, Request, complete, kernel_table, needs_transpose
from nnadapter.process.resources import close_all
from nnadapter.records import dataclass
from partition.graph import SUPPORTED, Unsupported, Verdict

_TO_NHWC = (0, 2, 3, 1)
_TO_NCHW = (0, 3, 1, 2)


@dataclass(frozen=True, eq=False)
class KernelCall:
    """Kernel bound to an operation."""

    kernel: Kernel
    call: CustomCall
    types: tuple[OperandType | None, ...]
    names: tuple[str, ...]
    attributes: Mapping[str, Any]

    def compute(self, inputs: Sequence[Array]) -> list[Array]:
        """Call the kernel. Raises ExecutionError, also if results do not match the model."""
        arguments = [
            None if array is None else _argument(array, kernel_type, type_)
            for array, kernel_type, type_ in zip(
                self.call.spread(inputs), _padded(self.kernel.inputs, len(self.types)), self.types, strict=True
            )
        ]
        try:
            kernel_result = self.kernel.function(*arguments, **self.attributes)
        except errors.CancelledError:
            raise
        except errors.FAILURES as error:
            raise self._failed(f"raised {_error_text(error)}", "correct it") from error
        try:
            return self._checked(kernel_result, inputs)
        except Exception as error:
            text = errors.describe(error).replace("the driver returned", "returned")
            raise self._failed(text, "correct the kernel, or its infer function") from error

    def _checked(self, kernel_result: object, inputs: Sequence[Array]) -> list[Array]:
        results = list(kernel_result) if isinstance(kernel_result, (tuple, list)) else [kernel_result]
        # Reductions to a scalar return numpy scalars, not arrays.
        results = [np.asarray(result) if isinstance(result, np.generic) else result for result in results]
        if len(results) == len(self.call.outputs):
            kernel_types = _padded(self.kernel.outputs, len(results))
            results = [
                _transposed_back(*triple) for triple in zip(results, kernel_types, self.call.outputs, strict=True)
            ]
        expected = [(type_.dimensions, type_.dtype.array_type) for type_ in self.call.outputs]
        return [_copy_if_shared(array, inputs) for array in boundary.check_results(results, self.names, expected)]

    def _failed(self, problem: str, advice: str) -> errors.ExecutionError:
        return errors.ExecutionError(f"kernel {self.kernel.name!r} of {self.call.display_name} {problem}; {advice}")


def _error_text(error: BaseException) -> str:
    text = errors.describe(error)
    if isinstance(error, ValueError) and "read-only" in text:
        return f"{text} (it may not write to its inputs)"
    return text


def _padded(stated: Sequence[KernelType], count: int) -> list[KernelType | None]:
    return [*stated[:count], *[None] * (count - len(stated))]


def _argument(array: Array, kernel_type: KernelType | None, type_: OperandType | None) -> Array:
    if kernel_type is not None and needs_transpose(kernel_type, type_):
        array = array.transpose(_TO_NHWC if kernel_type.layout is Layout.NHWC else _TO_NCHW)
    return boundary.read_only(array)


def _transposed_back(result: object, kernel_type: KernelType | None, type_: OperandType) -> object:
    if (
        kernel_type is None
        or not needs_transpose(kernel_type, type_)
        or type(result) is not np.ndarray
        or result.ndim != type_.rank
    ):
        return result
    return np.ascontiguousarray(result.transpose(_TO_NCHW if kernel_type.layout is Layout.NHWC else _TO_NHWC))


def _copy_if_shared(result: Array, inputs: Sequence[Array]) -> Array:
    is_shared = not result.flags.writeable or any(np.may_share_memory(result, array) for array in inputs)
    return result.copy() if is_shared else result


@dataclass(frozen=True, eq=False)
class ProgramStep:
    """Step of a kernel program: a driver's program or a kernel call."""

    work: Program | KernelCall
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    names: tuple[str, ...] = ()
    expected: boundary.OutputCheck = ()


class KernelProgram(Program):
    """Program of a segment with kernel calls."""

    def __init__(
        self,
        steps: Sequence[ProgramStep],
        inputs: Sequence[int],
        outputs: Sequence[int],
        constants: Mapping[int, Array],
        stored: segments.StoredKernelProgram,
    ) -> None:
        self.steps, self.inputs, self.outputs, self.constants = steps, inputs, outputs, constants
        self._stored = stored

    def create_execution(self) -> Execution:
        return KernelExecution(self)

    @property
    def memory_bytes(self) -> int:
        return sum(program.memory_bytes for program in self._programs) + sum(
            array.nbytes for array in self.constants.values()
        )

    @property
    def execution_bytes(self) -> int:
        return sum(program.execution_bytes for program in self._programs)

    @property
    def shared_bytes(self) -> Mapping[Hashable, int]:
        return {key: nbytes for program in self._programs for key, nbytes in program.shared_bytes.items()}

    def serialize(self) -> bytes | None:
        blobs = [program.serialize() for program in self._programs]
        return segments.write(self._stored, [blob for blob in blobs if blob is not None]) if None not in blobs else None

    def close(self) -> None:
        close_all(self._programs)

    @property
    def _programs(self) -> list[Program]:
        return [step.work for step in self.steps if isinstance(step.work, Program)]


class KernelExecution(Execution):
    """Stateless execution, as re-entrant as the executions of the driver."""

    def __init__(self, program: KernelProgram) -> None:
        self._program = program
        self._executions: list[Execution] = []
        self._steps: list[tuple[ProgramStep, Execution | KernelCall]] = []
        try:
            for step in program.steps:
                self._steps.append((step, self._open(step)))
        except BaseException:
            self.close()
            raise

    def _open(self, step: ProgramStep) -> Execution | KernelCall:
        if isinstance(step.work, KernelCall):
            return step.work
        self._executions.append(boundary.create_execution(step.work))
        return self._executions[-1]

    def compute(self, inputs: Sequence[Array]) -> Sequence[Array]:
        return self.compute_within(inputs, UNLIMITED)

    def compute_within(self, inputs: Sequence[Array], control: Control) -> Sequence[Array]:
        values = {**self._program.constants, **dict(zip(self._program.inputs, inputs, strict=True))}
        for step, work in self._steps:
            if control.cancelled is not None and control.cancelled():
                raise errors.CancelledError("the run was cancelled between two programs of a segment with kernels")
            results = _computed(step, work, [boundary.read_only(values[operand]) for operand in step.inputs], control)
            values.update(zip(step.outputs, results, strict=True))
        return [values[operand] for operand in self._program.outputs]

    def close(self) -> None:
        close_all(self._executions)


def _computed(
    step: ProgramStep, work: Execution | KernelCall, inputs: Sequence[Array], control: Control
) -> Sequence[Array]:
    if isinstance(work, KernelCall):
        return work.compute(inputs)
    results = work.compute(inputs) if control is UNLIMITED else work.compute_within(inputs, control)
    return boundary.check_results(results, step.names, step.expected)


class KernelContext(Context):
    """Context of a device with kernels. The driver gets the nodes of `domains` unconverted."""

    def __init__(self, inner: Context, table: KernelTable, domains: Collection[str] = ()) -> None:
        self.inner = inner
        self.table = table
        self._domains = frozenset(domains)

    def supported(self, model: SegmentModel) -> Sequence[Verdict]:
        segment = self._segment(model)
        if segment is None:
            return self.inner.supported(model)
        verdicts: list[Verdict] = [SUPPORTED] * len(segment.operations)
        inner_model, positions = segments.without_calls(segment)
        inner_verdicts = boundary.ask_supported(self.inner, inner_model, len(positions)) if positions else ()
        for position, verdict in zip(positions, inner_verdicts, strict=True):
            verdicts[position] = verdict
        for position in segment.calls:
            choice = self._choose(segment.operations[position])
            verdicts[position] = choice if isinstance(choice, Unsupported) else SUPPORTED
        return verdicts

    def admit(self, model: SegmentModel) -> Admission:
        segment = self._segment(model)
        if segment is None:
            return self.inner.admit(model)
        pieces = segments.split(segment)
        answers = [None if piece.model is None else boundary.ask_admission(self.inner, piece.model) for piece in pieces]
        for answer in answers:
            if answer is not None and isinstance(answer.verdict, Unsupported):
                return answer
        texts = _Texts(len(segment.operations))
        for piece, answer in zip(pieces, answers, strict=True):
            if answer is None:
                texts.call(piece, self._bind(segment.operations[piece.operations[0]]))
            else:
                texts.program(piece, segment, answer)
        facts = _summed([answer.facts for answer in answers if answer is not None])
        return Admission(runs_as=tuple(texts.runs_as), facts={**facts, "kernel_calls": len(segment.calls)})

    def profile(self) -> Profile | None:
        return self.inner.profile()

    def compile(self, model: SegmentModel) -> Program:
        segment = self._segment(model)
        return self.inner.compile(model) if segment is None else self._compiled(segment)

    def compile_whole_graph(self, model: SegmentModel) -> Program:
        segment = self._segment(model)
        return self.inner.compile_whole_graph(model) if segment is None else self._compiled(segment)

    def clone_with_constants(self, program: Program, model: SegmentModel) -> Program | None:
        return self.inner.clone_with_constants(program, model) if self._segment(model) is None else None

    def deserialize(self, blob: bytes) -> Program:
        """Deserialize a program. Raises IncompatibleProgramError if no kernel of the current table fits."""
        if not _calls_kernels(blob):
            return self.inner.deserialize(blob)
        stored, blobs = segments.read(blob)
        loaders = [partial(self.inner.deserialize, inner_blob) for inner_blob in blobs]
        return _assembled(stored, loaders, self._rebind(stored.calls))

    def deserialize_view(self, blob: memoryview) -> Program:
        return super().deserialize_view(blob) if _calls_kernels(blob) else self.inner.deserialize_view(blob)

    def check_blob(self, blob: memoryview) -> Compatibility | None:
        """Return the driver's answer, or None with kernel calls, which only `deserialize` can check."""
        return None if _calls_kernels(blob) else self.inner.check_blob(blob)

    def close(self) -> None:
        self.inner.close()

    def _segment(self, model: SegmentModel) -> segments.Segment | None:
        if isinstance(model, Model):
            segment = segments.ir_segment(model, self._is_call) if CUSTOM in model.operation_types else None
            return segment if segment is not None and segment.calls else None
        from nnadapter.kernels.segments import has_calls, onnx_segment  # only for devices that take ONNX

        return onnx_segment(model) if has_calls(model) else None

    def _is_call(self, operation: Operation, types: Sequence[OperandType]) -> bool:
        call = CustomCall.of(operation.attributes)
        return call.domain not in self._domains or isinstance(self.table.choose(Request.of(call, types)), Choice)

    def _choose(self, operation: segments.SegmentOperation) -> Choice | Unsupported:
        assert operation.called is not None, "it is a call"
        return self.table.choose(Request.of(operation.called.call, operation.called.types))

    def _bind(self, operation: segments.SegmentOperation) -> KernelCall:
        choice, called = self._choose(operation), operation.called
        if isinstance(choice, Unsupported):
            raise errors.CompilationError(f"{choice.detail}; register a kernel that fits")
        assert called is not None, "it is a call"
        types, attributes = tuple(called.call.spread(called.types)), complete(choice.kernel, called.call.attributes)
        return KernelCall(choice.kernel, called.call, types, operation.makes, attributes)

    def _rebind(self, calls: Model) -> list[KernelCall]:
        segment = segments.ir_segment(calls, lambda _, __: True)
        try:
            return [self._bind(operation) for operation in segment.operations]
        except errors.CompilationError as error:
            raise errors.IncompatibleProgramError(
                f"the program calls a kernel that is not registered: {error}"
            ) from error

    def _compiled(self, segment: segments.Segment) -> Program:
        pieces = segments.split(segment)
        bound = [self._bind(segment.operations[piece.operations[0]]) for piece in pieces if piece.model is None]
        compilers = [partial(_compile, self.inner, piece) for piece in pieces if piece.model is not None]
        return _assembled(_stored(segment, pieces), compilers, bound)


def _compile(inner: Context, piece: segments.KernelPiece) -> Program:
    positions = piece.operations
    try:
        return inner.compile(piece.model)
    except errors.CompilationError as error:  # indices are relative to the piece
        blamed = boundary.blamed_nodes(error, len(positions))
        if not blamed:
            raise
        refused = {positions[position]: refusal for position, refusal in blamed.items()}
        raise errors.CompilationError(str(error), refused=refused) from error


def _calls_kernels(blob: bytes | memoryview) -> bool:
    return blob[: len(segments.MAGIC)] == segments.MAGIC


def _stored(segment: segments.Segment, pieces: Sequence[segments.KernelPiece]) -> segments.StoredKernelProgram:
    driver_pieces = [piece for piece in pieces if piece.model is not None]
    numbers = iter(range(len(driver_pieces)))
    return segments.StoredKernelProgram(
        calls=segments.calls_model(segment),
        pieces=tuple(
            segments.StoredPiece(piece.inputs, piece.outputs, tuple(map(segment.type_of, piece.outputs)))
            for piece in driver_pieces
        ),
        order=tuple(-1 if piece.model is None else next(numbers) for piece in pieces),
        inputs=segment.inputs,
        outputs=segment.outputs,
    )


def _assembled(
    stored: segments.StoredKernelProgram, loaders: Sequence[Callable[[], Program]], calls: Sequence[KernelCall]
) -> KernelProgram:
    numbers: dict[str, int] = {}

    def slots(names: Sequence[str]) -> tuple[int, ...]:
        return tuple(numbers.setdefault(name, len(numbers)) for name in names)

    built_programs: list[Program] = []
    steps: list[ProgramStep] = []
    waiting = iter(zip(stored.calls.operations, calls, strict=True))
    try:
        for number in stored.order:
            if number == -1:
                operation, call = next(waiting)
                sides = (operation.inputs, operation.outputs)
                input_names, written = ([stored.calls.operands[operand].name for operand in side] for side in sides)
                steps.append(ProgramStep(call, slots(input_names), slots(written)))
                continue
            piece = stored.pieces[number]
            built_programs.append(boundary.checked_program(loaders[number]()))
            expected = [
                None if value_type is None else (value_type.dimensions, value_type.dtype.array_type)
                for value_type in piece.types
            ]
            steps.append(
                ProgramStep(built_programs[-1], slots(piece.inputs), slots(piece.outputs), piece.outputs, expected)
            )
    except BaseException:
        close_all(built_programs)
        raise
    inputs, outputs = slots(stored.inputs), slots(stored.outputs)
    return KernelProgram(steps, inputs, outputs, _constants(stored.calls.operands, numbers), stored)


def _constants(operands: Sequence[Operand], numbers: Mapping[str, int]) -> dict[int, Array]:
    return {
        numbers[operand.name]: operand.value
        for operand in operands
        if operand.value is not None and operand.name in numbers
    }


class _Texts:
    """Texts for `Admission.runs_as`, made unique by numbers."""

    def __init__(self, count: int) -> None:
        self.runs_as = [""] * count
        self._calls: Counter[str] = Counter()
        self._programs = 0

    def call(self, piece: segments.KernelPiece, bound: KernelCall) -> None:
        name = bound.kernel.name
        self._calls[name] += 1
        suffix = f" #{self._calls[name]}" if self._calls[name] > 1 else ""
        self.runs_as[piece.operations[0]] = f"{KERNEL}{name}{suffix}"

    def program(self, piece: segments.KernelPiece, segment: segments.Segment, answer: Admission) -> None:
        number, self._programs = self._programs, self._programs + 1
        labels = answer.runs_as if len(answer.runs_as) == len(piece.operations) else ()
        for place, position in enumerate(piece.operations):
            text = labels[place] if labels else f"{segment.operations[position].type} {position}"
            self.runs_as[position] = text if not number or text == NO_OPERATION else f"{text} (program {number + 1})"


def _summed(facts: Sequence[Mapping[str, int | float | str]]) -> dict[str, int | float | str]:
    totals: dict[str, int | float | str] = {}
    for piece_facts in facts:
        for name, value in piece_facts.items():
            total = totals.get(name)
            both = isinstance(value, (int, float)) and isinstance(total, (int, float))
            totals[name] = total + value if both else totals.get(name, value)  # type: ignore[operator]
    return totals


def with_kernels(device: str, capability: Capability, context: Context) -> tuple[Context, KernelTable]:
    """Wrap a context with the kernels of its device, if any; return both."""
    table = kernel_table(device, context)
    return (KernelContext(context, table, capability.domains), table) if table.kernels else (context, table)
