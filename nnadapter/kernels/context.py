"""A driver's context with kernels around it: the driver is given its own operations alone.

Nothing of the driver changes, whatever it is written in. It judges, admits, compiles and deserializes its pieces of a
segment as if they were segments; the host calls kernels in between, and the plan sees one segment and one program.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from nnadapter.drivers.border import ask_admission, ask_supported, checked_program
from nnadapter.drivers.capability import Capability, ModelForm
from nnadapter.drivers.interface import KERNEL, NO_OPERATION, Admission, Compatibility, Context, Program, SegmentModel
from nnadapter.drivers.profile import Profile
from nnadapter.errors import CompilationError, IncompatibleProgramError
from nnadapter.ir.model import ABSENT, Model, Operation
from nnadapter.ir.operand import Array, Operand
from nnadapter.ir.operations.custom import CustomCall
from nnadapter.kernels.calling import KernelCall
from nnadapter.kernels.choosing import Choice, KernelTable, Request
from nnadapter.kernels.program import KernelProgram, Turn
from nnadapter.kernels.registry import kernel_table, no_kernels
from nnadapter.kernels.splitting import KernelPiece, calls_in, split, without_calls
from nnadapter.kernels.stored import MAGIC, Stored, StoredPiece, calls_model, read
from nnadapter.process.closing import close_all
from partition.verdict import SUPPORTED, Unsupported, Verdict


class KernelContext(Context):
    """A context whose device also has kernels.

    Args:
        inner: the driver's own.
        table: the device's kernels.
    """

    def __init__(self, inner: Context, table: KernelTable) -> None:
        self.inner = inner
        self.table = table

    def supported(self, model: SegmentModel) -> Sequence[Verdict]:
        """See `Context.supported`: calls are judged by the table of kernels, the rest by the driver."""
        calls = calls_in(model)
        if not calls:
            return self.inner.supported(model)
        verdicts: list[Verdict] = [SUPPORTED] * len(model.operations)
        rest, positions = without_calls(model)
        inner_verdicts = ask_supported(self.inner, rest, len(positions)) if positions else ()
        for position, verdict in zip(positions, inner_verdicts, strict=True):
            verdicts[position] = verdict
        for position in calls:
            choice = self._choose(model, model.operations[position])[1]
            verdicts[position] = choice if isinstance(choice, Unsupported) else SUPPORTED
        return verdicts

    def admit(self, model: SegmentModel) -> Admission:
        """See `Context.admit`: every piece of the driver has to be admitted."""
        if not calls_in(model):
            return self.inner.admit(model)
        pieces = split(model)
        answers = [None if piece.model is None else ask_admission(self.inner, piece.model) for piece in pieces]
        for answer in answers:
            if answer is not None and isinstance(answer.verdict, Unsupported):
                return answer
        texts = _Texts(len(model.operations))
        for piece, answer in zip(pieces, answers, strict=True):
            if answer is None:
                texts.call(piece, self._bound(model, piece))
            else:
                texts.program(piece, model, answer)
        facts = _summed([answer.facts for answer in answers if answer is not None])
        return Admission(runs_as=tuple(texts.runs_as), facts={**facts, "kernel_calls": len(calls_in(model))})

    def profile(self) -> Profile | None:
        """See `Context.profile`."""
        return self.inner.profile()

    def compile(self, model: SegmentModel) -> Program:
        """See `Context.compile`.

        Raises:
            CompilationError: no kernel fits a call.
        """
        if not calls_in(model):
            return self.inner.compile(model)
        return self._compiled(model)

    def compile_whole(self, model: SegmentModel) -> Program:
        """See `Context.compile_whole`."""
        return self._compiled(model) if calls_in(model) else self.inner.compile_whole(model)

    def bind(self, program: Program, model: SegmentModel) -> Program | None:
        """See `Context.bind`; a model that calls kernels is compiled."""
        return None if calls_in(model) else self.inner.bind(program, model)

    def deserialize(self, blob: bytes) -> Program:
        """See `Context.deserialize`; kernels are chosen anew, among those that there are now.

        Raises:
            IncompatibleProgramError: also where no kernel fits a call any more.
        """
        if not _calls_kernels(blob):
            return self.inner.deserialize(blob)
        stored, blobs = read(blob)
        return _assembled(stored, [_Deserialized(self.inner, each) for each in blobs], self._bound_again(stored.calls))

    def deserialize_view(self, blob: memoryview) -> Program:
        """See `Context.deserialize_view`: for what the device alone wrote."""
        return super().deserialize_view(blob) if _calls_kernels(blob) else self.inner.deserialize_view(blob)

    def check_blob(self, blob: memoryview) -> Compatibility | None:
        """See `Context.check_blob`: the device's answer, to what it alone wrote."""
        return None if _calls_kernels(blob) else self.inner.check_blob(blob)

    def close(self) -> None:
        """See `Context.close`."""
        self.inner.close()

    def _choose(self, model: Model, operation: Operation) -> tuple[CustomCall, Choice | Unsupported]:
        call = CustomCall.of(operation.attributes)
        types = [model.operands[operand].type for operand in operation.inputs if operand != ABSENT]
        return call, self.table.choose(Request.of(call, types))

    def _bound(self, model: Model, piece: KernelPiece) -> KernelCall:
        return self._bind(model, model.operations[piece.operations[0]])

    def _bind(self, model: Model, operation: Operation) -> KernelCall:
        call, choice = self._choose(model, operation)
        if isinstance(choice, Unsupported):
            raise CompilationError(f"{choice.detail}; register one")
        types = call.spread([model.operands[operand].type for operand in operation.inputs])
        return KernelCall.of(choice, call, types, [model.operands[operand].name for operand in operation.outputs])

    def _bound_again(self, calls: Model) -> list[KernelCall]:
        try:
            return [self._bind(calls, operation) for operation in calls.operations]
        except CompilationError as error:
            raise IncompatibleProgramError(f"the program calls a kernel that is not here: {error}") from error

    def _compiled(self, model: Model) -> Program:
        pieces = split(model)
        calls = [piece.operations[0] for piece in pieces if piece.model is None]
        bound = [self._bind(model, model.operations[position]) for position in calls]
        programs: list[_Compiled | _Deserialized] = [
            _Compiled(self.inner, piece.model) for piece in pieces if piece.model is not None
        ]
        return _assembled(_stored(model, pieces, calls), programs, bound)


class _Compiled:
    """What is compiled when it is its turn, so that what was made before can be closed if it fails."""

    def __init__(self, inner: Context, model: Model) -> None:
        self._inner, self._model = inner, model

    def program(self) -> Program:
        return checked_program(self._inner.compile(self._model))


def _calls_kernels(blob: bytes | memoryview) -> bool:
    return blob[: len(MAGIC)] == MAGIC


class _Deserialized:
    """The same of bytes."""

    def __init__(self, inner: Context, blob: bytes) -> None:
        self._inner, self._blob = inner, blob

    def program(self) -> Program:
        return checked_program(self._inner.deserialize(self._blob))


def _stored(model: Model, pieces: Sequence[KernelPiece], calls: Sequence[int]) -> Stored:
    def names(operands: Sequence[int]) -> tuple[str, ...]:
        return tuple(model.operands[operand].name for operand in operands)

    own = [piece for piece in pieces if piece.model is not None]
    numbers = iter(range(len(own)))
    return Stored(
        calls=calls_model(model, calls),
        pieces=tuple(
            StoredPiece(
                names(piece.inputs),
                names(piece.outputs),
                tuple(model.operands[operand].type for operand in piece.outputs),
            )
            for piece in own
        ),
        order=tuple(-1 if piece.model is None else next(numbers) for piece in pieces),
        inputs=names(model.inputs),
        outputs=names(model.outputs),
    )


def _assembled(
    stored: Stored, programs: Sequence[_Compiled | _Deserialized], calls: Sequence[KernelCall]
) -> KernelProgram:
    """The program, compiled or deserialized: what it needs is in `stored`, so both are made in the same way."""
    numbers: dict[str, int] = {}

    def slots(names: Sequence[str]) -> tuple[int, ...]:
        return tuple(numbers.setdefault(name, len(numbers)) for name in names)

    made: list[Program] = []
    turns: list[Turn] = []
    waiting = iter(zip(stored.calls.operations, calls, strict=True))
    try:
        for number in stored.order:
            if number == -1:
                operation, call = next(waiting)
                sides = (operation.inputs, operation.outputs)
                input_names, written = ([stored.calls.operands[each].name for each in side] for side in sides)
                turns.append(Turn(call, slots(input_names), slots(written)))
                continue
            piece = stored.pieces[number]
            made.append(programs[number].program())
            expected = [(type_.dimensions, type_.dtype.array_type) for type_ in piece.types]
            turns.append(Turn(made[-1], slots(piece.inputs), slots(piece.outputs), piece.outputs, expected))
    except BaseException:
        close_all(made)
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
        again = f" #{self._calls[name]}" if self._calls[name] > 1 else ""
        self.runs_as[piece.operations[0]] = f"{KERNEL}{name}{again}"

    def program(self, piece: KernelPiece, model: Model, answer: Admission) -> None:
        number, self._programs = self._programs, self._programs + 1
        told = answer.runs_as if len(answer.runs_as) == len(piece.operations) else ()
        for place, position in enumerate(piece.operations):
            text = told[place] if told else f"{model.operations[position].type} {position}"
            self.runs_as[position] = text if not number or text == NO_OPERATION else f"{text} (program {number + 1})"


def _summed(facts: Sequence[Mapping[str, int | float | str]]) -> dict[str, int | float | str]:
    """Numbers added up over the pieces; of texts, the first."""
    totals: dict[str, int | float | str] = {}
    for each in facts:
        for name, value in each.items():
            before = totals.get(name)
            both = isinstance(value, (int, float)) and isinstance(before, (int, float))
            totals[name] = before + value if both else totals.get(name, value)  # type: ignore[operator]
    return totals


def with_kernels(device: str, capability: Capability, context: Context) -> tuple[Context, KernelTable]:
    """Return a context with the kernels of its device around it, if there are any, and these.

    Raises:
        InvalidOptionError: there are kernels for a device that takes ONNX.
    """
    table = kernel_table(device, context)
    if not table.kernels:
        return context, table
    if capability.form is not ModelForm.IR:
        context.close()
        raise no_kernels(device)
    return KernelContext(context, table), table
