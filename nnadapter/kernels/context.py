"""A driver's context with kernels around it: the driver is given its own operations alone.

Nothing of the driver changes, whatever it is written in. It judges, admits, compiles and deserializes its pieces of a
segment as if they were segments; the host calls kernels in between, and the plan sees one segment and one program.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from nnadapter.drivers.border import ask_admission, ask_supported, blamed_nodes, checked_program
from nnadapter.drivers.capability import Capability
from nnadapter.drivers.interface import KERNEL, NO_OPERATION, Admission, Compatibility, Context, Program, SegmentModel
from nnadapter.drivers.profile import Profile
from nnadapter.errors import CompilationError, IncompatibleProgramError
from nnadapter.ir.model import Model, Operation
from nnadapter.ir.operand import Array, Operand, OperandType
from nnadapter.ir.operations.custom import CUSTOM, CustomCall
from nnadapter.kernels.calling import KernelCall
from nnadapter.kernels.choosing import Choice, KernelTable, Request
from nnadapter.kernels.program import KernelProgram, Turn
from nnadapter.kernels.registry import kernel_table
from nnadapter.kernels.segment import Segment, SegmentOperation, ir_segment
from nnadapter.kernels.splitting import KernelPiece, split, without_calls
from nnadapter.kernels.stored import MAGIC, StoredKernelProgram, StoredPiece, calls_model, read
from nnadapter.process.closing import close_all
from partition.verdict import SUPPORTED, Unsupported, Verdict


class KernelContext(Context):
    """A context whose device also has kernels.

    Args:
        inner: the driver's own.
        table: the device's kernels.
        domains: ONNX domains whose nodes the driver is offered as they are, where no kernel fits.
    """

    def __init__(self, inner: Context, table: KernelTable, domains: Collection[str] = ()) -> None:
        self.inner = inner
        self.table = table
        self._domains = frozenset(domains)

    def supported(self, model: SegmentModel) -> Sequence[Verdict]:
        """See `Context.supported`: calls are judged by the table of kernels, the rest by the driver."""
        segment = self._segment(model)
        if segment is None:
            return self.inner.supported(model)
        verdicts: list[Verdict] = [SUPPORTED] * len(segment.operations)
        inner_model, positions = without_calls(segment)
        inner_verdicts = ask_supported(self.inner, inner_model, len(positions)) if positions else ()
        for position, verdict in zip(positions, inner_verdicts, strict=True):
            verdicts[position] = verdict
        for position in segment.calls:
            choice = self._choose(segment.operations[position])
            verdicts[position] = choice if isinstance(choice, Unsupported) else SUPPORTED
        return verdicts

    def admit(self, model: SegmentModel) -> Admission:
        """See `Context.admit`: every piece of the driver has to be admitted."""
        segment = self._segment(model)
        if segment is None:
            return self.inner.admit(model)
        pieces = split(segment)
        answers = [None if piece.model is None else ask_admission(self.inner, piece.model) for piece in pieces]
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
        """See `Context.profile`."""
        return self.inner.profile()

    def compile(self, model: SegmentModel) -> Program:
        """See `Context.compile`.

        Raises:
            CompilationError: no kernel fits a call.
        """
        segment = self._segment(model)
        return self.inner.compile(model) if segment is None else self._compiled(segment)

    def compile_whole(self, model: SegmentModel) -> Program:
        """See `Context.compile_whole`."""
        segment = self._segment(model)
        return self.inner.compile_whole(model) if segment is None else self._compiled(segment)

    def bind(self, program: Program, model: SegmentModel) -> Program | None:
        """See `Context.bind`; a model that calls kernels is compiled."""
        return self.inner.bind(program, model) if self._segment(model) is None else None

    def deserialize(self, blob: bytes) -> Program:
        """See `Context.deserialize`; kernels are chosen anew, among those that there are now.

        Raises:
            IncompatibleProgramError: also where no kernel fits a call any more.
        """
        if not _calls_kernels(blob):
            return self.inner.deserialize(blob)
        stored, blobs = read(blob)
        return _assembled(
            stored, [_Deserialized(self.inner, inner_blob) for inner_blob in blobs], self._bound_again(stored.calls)
        )

    def deserialize_view(self, blob: memoryview) -> Program:
        """See `Context.deserialize_view`: for what the device alone wrote."""
        return super().deserialize_view(blob) if _calls_kernels(blob) else self.inner.deserialize_view(blob)

    def check_blob(self, blob: memoryview) -> Compatibility | None:
        """See `Context.check_blob`: the device's answer, to what it alone wrote."""
        return None if _calls_kernels(blob) else self.inner.check_blob(blob)

    def close(self) -> None:
        """See `Context.close`."""
        self.inner.close()

    def _segment(self, model: SegmentModel) -> Segment | None:
        """The model, if it calls kernels."""
        if isinstance(model, Model):
            segment = ir_segment(model, self._is_call) if CUSTOM in model.operation_types else None
            return segment if segment is not None and segment.calls else None
        from nnadapter.kernels.onnx_segment import has_calls, onnx_segment  # for devices that take ONNX

        return onnx_segment(model) if has_calls(model) else None

    def _is_call(self, operation: Operation, types: Sequence[OperandType]) -> bool:
        """Whether an operation CUSTOM is none that the driver itself is offered."""
        call = CustomCall.of(operation.attributes)
        return call.domain not in self._domains or isinstance(self.table.choose(Request.of(call, types)), Choice)

    def _choose(self, operation: SegmentOperation) -> Choice | Unsupported:
        assert operation.called is not None, "it is a call"
        return self.table.choose(Request.of(operation.called.call, operation.called.types))

    def _bind(self, operation: SegmentOperation) -> KernelCall:
        choice, called = self._choose(operation), operation.called
        if isinstance(choice, Unsupported):
            raise CompilationError(f"{choice.detail}; register one")
        assert called is not None, "it is a call"
        return KernelCall.of(choice, called.call, called.call.spread(called.types), operation.makes)

    def _bound_again(self, calls: Model) -> list[KernelCall]:
        segment = ir_segment(calls, lambda _, __: True)
        try:
            return [self._bind(operation) for operation in segment.operations]
        except CompilationError as error:
            raise IncompatibleProgramError(f"the program calls a kernel that is not here: {error}") from error

    def _compiled(self, segment: Segment) -> Program:
        pieces = split(segment)
        bound = [self._bind(segment.operations[piece.operations[0]]) for piece in pieces if piece.model is None]
        programs: list[_Compiled | _Deserialized] = [
            _Compiled(self.inner, piece) for piece in pieces if piece.model is not None
        ]
        return _assembled(_stored(segment, pieces), programs, bound)


class _Compiled:
    """What is compiled when it is its turn, so that what was made before can be closed if it fails."""

    def __init__(self, inner: Context, piece: KernelPiece) -> None:
        self._inner, self._piece = inner, piece

    def program(self) -> Program:
        positions = self._piece.operations
        try:
            return checked_program(self._inner.compile(self._piece.model))
        except CompilationError as error:  # the driver counts the operations of its piece
            blamed = blamed_nodes(error, len(positions))
            if not blamed:
                raise
            refused = {positions[position]: refusal for position, refusal in blamed.items()}
            raise CompilationError(str(error), refused=refused) from error


def _calls_kernels(blob: bytes | memoryview) -> bool:
    return blob[: len(MAGIC)] == MAGIC


class _Deserialized:
    """The same of bytes."""

    def __init__(self, inner: Context, blob: bytes) -> None:
        self._inner, self._blob = inner, blob

    def program(self) -> Program:
        return checked_program(self._inner.deserialize(self._blob))


def _stored(segment: Segment, pieces: Sequence[KernelPiece]) -> StoredKernelProgram:
    driver_pieces = [piece for piece in pieces if piece.model is not None]
    numbers = iter(range(len(driver_pieces)))
    return StoredKernelProgram(
        calls=calls_model(segment),
        pieces=tuple(
            StoredPiece(piece.inputs, piece.outputs, tuple(map(segment.type_of, piece.outputs)))
            for piece in driver_pieces
        ),
        order=tuple(-1 if piece.model is None else next(numbers) for piece in pieces),
        inputs=segment.inputs,
        outputs=segment.outputs,
    )


def _assembled(
    stored: StoredKernelProgram, programs: Sequence[_Compiled | _Deserialized], calls: Sequence[KernelCall]
) -> KernelProgram:
    """The program, compiled or deserialized: what it needs is in `stored`, so both are made in the same way."""
    numbers: dict[str, int] = {}

    def slots(names: Sequence[str]) -> tuple[int, ...]:
        return tuple(numbers.setdefault(name, len(numbers)) for name in names)

    built_programs: list[Program] = []
    turns: list[Turn] = []
    waiting = iter(zip(stored.calls.operations, calls, strict=True))
    try:
        for number in stored.order:
            if number == -1:
                operation, call = next(waiting)
                sides = (operation.inputs, operation.outputs)
                input_names, written = ([stored.calls.operands[operand].name for operand in side] for side in sides)
                turns.append(Turn(call, slots(input_names), slots(written)))
                continue
            piece = stored.pieces[number]
            built_programs.append(programs[number].program())
            expected = [
                None if value_type is None else (value_type.dimensions, value_type.dtype.array_type)
                for value_type in piece.types
            ]
            turns.append(Turn(built_programs[-1], slots(piece.inputs), slots(piece.outputs), piece.outputs, expected))
    except BaseException:
        close_all(built_programs)
        raise
    inputs, outputs = slots(stored.inputs), slots(stored.outputs)
    return KernelProgram(turns, inputs, outputs, _constants(stored.calls.operands, numbers), stored)


def _constants(operands: Sequence[Operand], numbers: Mapping[str, int]) -> dict[int, Array]:
    return {
        numbers[operand.name]: operand.value
        for operand in operands
        if operand.value is not None and operand.name in numbers
    }


class _Texts:
    """What the operations of a segment run as, told apart where the same words mean another thing."""

    def __init__(self, count: int) -> None:
        self.runs_as = [""] * count
        self._calls: Counter[str] = Counter()
        self._programs = 0

    def call(self, piece: KernelPiece, bound: KernelCall) -> None:
        name = bound.kernel.name
        self._calls[name] += 1
        suffix = f" #{self._calls[name]}" if self._calls[name] > 1 else ""
        self.runs_as[piece.operations[0]] = f"{KERNEL}{name}{suffix}"

    def program(self, piece: KernelPiece, segment: Segment, answer: Admission) -> None:
        number, self._programs = self._programs, self._programs + 1
        labels = answer.runs_as if len(answer.runs_as) == len(piece.operations) else ()
        for place, position in enumerate(piece.operations):
            text = labels[place] if labels else f"{segment.operations[position].type} {position}"
            self.runs_as[position] = text if not number or text == NO_OPERATION else f"{text} (program {number + 1})"


def _summed(facts: Sequence[Mapping[str, int | float | str]]) -> dict[str, int | float | str]:
    """Numbers added up over the pieces; of texts, the first."""
    totals: dict[str, int | float | str] = {}
    for piece_facts in facts:
        for name, value in piece_facts.items():
            total = totals.get(name)
            both = isinstance(value, (int, float)) and isinstance(total, (int, float))
            totals[name] = total + value if both else totals.get(name, value)  # type: ignore[operator]
    return totals


def with_kernels(device: str, capability: Capability, context: Context) -> tuple[Context, KernelTable]:
    """Return a context with the kernels of its device around it, if there are any, and these."""
    table = kernel_table(device, context)
    return (KernelContext(context, table, capability.domains), table) if table.kernels else (context, table)
