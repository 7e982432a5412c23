"""Segments with kernel calls: their operations, splitting into driver programs, and serialized form.

A segment as kernels see it, whatever form its device takes it in: operations, and values by name.

What splits segments, runs their pieces and keeps them in files knows this form alone.

A segment with calls of kernels in it, as programs for the driver and calls, in the order in which they run.

An operation of the driver is on the level of the calls that it waits for; what is on one level is one program, so that
there are as few programs as possible. A path from one operation of a level to another through a call cannot be: it
would raise the level.

Programs with calls of kernels as bytes: the calls with their constants, and the driver's own bytes.

Bytes are an `Envelope`. Kernels are functions of a process, so they are not written: they are chosen again when the
program is deserialized, by what the calls say.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property

from nnadapter.drivers.envelope import ADVICE, Envelope
from nnadapter.drivers.interface import SegmentModel
from nnadapter.errors import IncompatibleProgramError, InvalidModelError, ModelFileError
from nnadapter.ir.model import ABSENT, Model, Operation, submodel
from nnadapter.ir.operand import Array, DataType, Lifetime, Operand, OperandType
from nnadapter.ir.operations.custom import CUSTOM, CustomCall

Part = Callable[[Sequence[int], Sequence[str], Sequence[str]], SegmentModel]
"""Positions of operations, names of inputs and of outputs -> the model that holds just these."""


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """What a kernel reads of the model itself."""

    type: OperandType
    value: Array


@dataclass(frozen=True, slots=True, eq=False)
class Called:
    """What makes an operation the call of a kernel."""

    call: CustomCall
    inputs: tuple[str, ...]
    """Of the operation, constants among them."""
    types: tuple[OperandType, ...]
    """Of these."""


@dataclass(frozen=True, slots=True, eq=False)
class SegmentOperation:
    """One operation, or node."""

    type: str
    reads: tuple[str, ...]
    """What it reads, but for constants."""
    makes: tuple[str, ...]
    called: Called | None = None
    """None for the driver's own."""


@dataclass(frozen=True, eq=False)
class Segment:
    """A model that calls kernels."""

    operations: tuple[SegmentOperation, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, Constant]
    """Those that kernels read, and those that come out as they are."""
    part: Part
    type_of: Callable[[str], OperandType | None]
    """Of what an operation makes; None where it is not known beforehand."""

    @cached_property
    def calls(self) -> tuple[int, ...]:
        """Positions of the operations that kernels compute."""
        return tuple(at for at, operation in enumerate(self.operations) if operation.called is not None)


def ir_segment(model: Model, is_call: Callable[[Operation, Sequence[OperandType]], bool]) -> Segment:
    """A segment as adapter IR.

    Args:
        model: the segment.
        is_call: whether a kernel computes an operation CUSTOM, whose inputs have these types.
    """
    operands = model.operands
    numbers = {operand.name: number for number, operand in enumerate(operands)}

    def names(chosen: Iterable[int]) -> tuple[str, ...]:
        return tuple(operands[operand].name for operand in chosen if operand != ABSENT)

    def part(positions: Sequence[int], inputs: Sequence[str], outputs: Sequence[str]) -> Model:
        return submodel(model, positions, [numbers[name] for name in inputs], [numbers[name] for name in outputs])

    def read(operation: Operation) -> SegmentOperation:
        called = None
        types = tuple(operands[operand].type for operand in operation.inputs if operand != ABSENT)
        if operation.type == CUSTOM and is_call(operation, types):
            called = Called(CustomCall.of(operation.attributes), names(operation.inputs), types)
        computed = (
            input_index
            for input_index in operation.inputs
            if input_index != ABSENT and operands[input_index].value is None
        )
        return SegmentOperation(operation.type, names(computed), names(operation.outputs), called)

    operations = tuple(map(read, model.operations))
    needed_names = {name for operation in operations if operation.called for name in operation.called.inputs}
    needed_names.update(names(model.outputs))
    return Segment(
        operations,
        names(model.inputs),
        names(model.outputs),
        {
            constant_operand.name: Constant(constant_operand.type, constant_operand.value)
            for constant_operand in operands
            if constant_operand.value is not None and constant_operand.name in needed_names
        },
        part,
        lambda name: operands[numbers[name]].type,
    )


@dataclass(frozen=True, slots=True, eq=False)
class KernelPiece:
    """What is run in one go."""

    operations: tuple[int, ...]
    """Positions in the segment."""
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    model: SegmentModel | None
    """For the driver; None for the call of a kernel."""


def split(segment: Segment) -> tuple[KernelPiece, ...]:
    """Return the pieces of a segment, in an order in which they can run. Linear in the segment."""
    levels = _levels(segment)
    read = _read_outside(segment, levels)
    by_level: dict[int, list[int]] = {}
    for position, level in enumerate(levels):
        by_level.setdefault(level, []).append(position)
    return tuple(piece for level in sorted(by_level) for piece in _pieces(segment, by_level[level], read))


def without_calls(segment: Segment) -> tuple[SegmentModel, list[int]]:
    """Return what of a segment is the driver's, with holes where kernels compute, and where its operations stand."""
    operations = segment.operations
    positions = [position for position, operation in enumerate(operations) if operation.called is None]
    produced_names = {name for position in positions for name in operations[position].makes}
    required_names = [*segment.outputs, *(name for position in segment.calls for name in operations[position].reads)]
    outputs = [name for name in dict.fromkeys(required_names) if name in produced_names]
    return segment.part(positions, _inputs_of(segment, positions, produced_names), outputs), positions


def _levels(segment: Segment) -> list[int]:
    """Even levels are the driver's, odd ones calls."""
    of_value: dict[str, int] = {}
    levels = []
    for operation in segment.operations:
        level = max((of_value[name] for name in operation.reads if name in of_value), default=0)
        if operation.called is not None:
            level += level % 2 == 0
        else:
            level += level % 2
        levels.append(level)
        of_value.update((name, level) for name in operation.makes)
    return levels


def _read_outside(segment: Segment, levels: Sequence[int]) -> set[str]:
    """Values that are read on another level than they are made on, or by a call, or go out."""
    producer_levels = {name: levels[at] for at, operation in enumerate(segment.operations) for name in operation.makes}
    boundary_values = set(segment.outputs)
    for at, operation in enumerate(segment.operations):
        is_call_level = levels[at] % 2 == 1
        boundary_values.update(
            name for name in operation.reads if is_call_level or producer_levels.get(name) != levels[at]
        )
    return boundary_values


def _pieces(segment: Segment, positions: list[int], read: set[str]) -> Iterator[KernelPiece]:
    operations = [segment.operations[position] for position in positions]
    if operations[0].called is None:
        produced_names = dict.fromkeys(name for operation in operations for name in operation.makes)
        inputs = _inputs_of(segment, positions, produced_names.keys())
        outputs = tuple(name for name in produced_names if name in read)
        yield KernelPiece(tuple(positions), inputs, outputs, segment.part(positions, inputs, outputs))
        return
    # Calls may wait for calls of their own level: the model's order is one in which all can run.
    for position, operation in zip(positions, operations, strict=True):
        assert operation.called is not None, "a level is of one kind"
        yield KernelPiece((position,), operation.called.inputs, operation.makes, None)


def _inputs_of(segment: Segment, positions: Sequence[int], produced_names: Set[str]) -> tuple[str, ...]:
    read = (name for position in positions for name in segment.operations[position].reads)
    return tuple(name for name in dict.fromkeys(read) if name not in produced_names)


MAGIC = b"NNAKERN\0"
"""The first bytes of such a program."""
_ENVELOPE = Envelope(magic=MAGIC, version=1)


@dataclass(frozen=True, eq=False)
class StoredPiece:
    """One of the driver's programs."""

    inputs: tuple[str, ...]
    """Names of operands."""
    outputs: tuple[str, ...]
    types: tuple[OperandType | None, ...]
    """Of the outputs; None where that is not known beforehand."""


@dataclass(frozen=True, eq=False)
class StoredKernelProgram:
    """What stands beside the driver's programs."""

    calls: Model
    """The operations that kernels compute; what the driver makes for them goes in."""
    pieces: tuple[StoredPiece, ...]
    order: tuple[int, ...]
    """Per turn, the piece, or -1 for the next call."""
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def calls_model(segment: Segment) -> Model:
    """The calls of a segment as a model of their own, with what passes the segment by."""
    called = [segment.operations[position] for position in segment.calls]
    operands: dict[str, Operand] = {
        name: Operand(name, constant.type, Lifetime.CONSTANT, constant.value)
        for name, constant in segment.constants.items()
    }
    produced_names = [name for operation in called for name in operation.makes]
    for operation in called:
        assert operation.called is not None, "it is a call"
        results = zip(operation.makes, operation.called.call.outputs, strict=True)
        operands.update((name, Operand(name, type_, Lifetime.MODEL_OUTPUT)) for name, type_ in results)
    for operation in called:
        assert operation.called is not None, "it is a call"
        for name, type_ in zip(operation.called.inputs, operation.called.types, strict=True):
            operands.setdefault(name, Operand(name, type_, Lifetime.MODEL_INPUT))
    numbers = {name: number for number, name in enumerate(operands)}
    passthrough_names = [name for name in dict.fromkeys(segment.outputs) if name in segment.constants]
    return Model(
        tuple(operands.values()),
        tuple(_operation(call, numbers) for call in called),
        tuple(numbers[name] for name, operand in operands.items() if operand.lifetime is Lifetime.MODEL_INPUT),
        tuple(numbers[name] for name in dict.fromkeys((*produced_names, *passthrough_names))),
    )


def _operation(operation: SegmentOperation, numbers: Mapping[str, int]) -> Operation:
    assert operation.called is not None, "it is a call"
    inputs, outputs = (tuple(numbers[name] for name in side) for side in (operation.called.inputs, operation.makes))
    return Operation(CUSTOM, inputs, outputs, operation.called.call.to_attributes())


def write(stored: StoredKernelProgram, blobs: Sequence[bytes]) -> bytes:
    """Return a program as bytes."""
    from nnadapter.ir.protobuf.serialization import to_bytes

    calls, weights = to_bytes(stored.calls)
    parts = [calls, weights, *blobs]
    header = {
        "lengths": list(map(len, parts)),
        "pieces": [
            {
                "inputs": piece.inputs,
                "outputs": piece.outputs,
                "types": [type_ and _type(type_) for type_ in piece.types],
            }
            for piece in stored.pieces
        ],
        "order": stored.order,
        "inputs": stored.inputs,
        "outputs": stored.outputs,
    }
    return _ENVELOPE.close(json.dumps(header, separators=(",", ":")).encode(), parts)


def read(blob: bytes) -> tuple[StoredKernelProgram, list[bytes]]:
    """Return what `write` wrote, with the driver's bytes.

    Raises:
        IncompatibleProgramError: the bytes are damaged, or of another version.
    """
    from nnadapter.ir.protobuf.serialization import from_bytes

    header, contents = _ENVELOPE.open(blob)
    try:
        fields = json.loads(header)
        parts = _parts(contents, fields["lengths"])
        pieces = tuple(
            StoredPiece(tuple(piece["inputs"]), tuple(piece["outputs"]), tuple(map(_read_type, piece["types"])))
            for piece in fields["pieces"]
        )
        calls = from_bytes(parts[0], {"weights": parts[1]})
        stored = StoredKernelProgram(
            calls, pieces, tuple(fields["order"]), tuple(fields["inputs"]), tuple(fields["outputs"])
        )
        _check(stored, len(parts) - 2)
    except (ValueError, KeyError, TypeError, IndexError, InvalidModelError, ModelFileError) as error:
        raise IncompatibleProgramError(f"the program with kernels contradicts itself: {error}; {ADVICE}") from error
    return stored, parts[2:]


def _check(stored: StoredKernelProgram, blobs: int) -> None:
    programs = [number for number in stored.order if number != -1]
    if programs != list(range(len(stored.pieces))) or blobs != len(programs):
        raise ValueError(f"{blobs} programs and {len(stored.pieces)} pieces, in the order {programs}")
    if stored.order.count(-1) != len(stored.calls.operations):
        raise ValueError(f"{len(stored.calls.operations)} calls, {stored.order.count(-1)} of them in order")


def _parts(contents: memoryview, lengths: Sequence[int]) -> list[bytes]:
    if sum(lengths) != len(contents) or any(length < 0 for length in lengths):
        raise ValueError(f"parts of {list(lengths)} bytes in {len(contents)}")
    ends = [sum(lengths[: number + 1]) for number in range(len(lengths))]
    return [bytes(contents[end - length : end]) for end, length in zip(ends, lengths, strict=True)]


def _type(type_: OperandType) -> list[object]:
    return [type_.dtype.value, list(type_.dimensions)]


def _read_type(fields: Sequence[object] | None) -> OperandType | None:
    if fields is None:
        return None
    dtype, dimensions = fields
    return OperandType(DataType(str(dtype)), tuple(map(int, dimensions)))  # type: ignore[call-overload]
