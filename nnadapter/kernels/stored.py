"""Programs with calls of kernels as bytes: the calls with their constants, and the driver's own bytes.

Bytes are an `Envelope`. Kernels are functions of a process, so they are not written: they are chosen again when the
program is deserialized, by what the calls say.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nnadapter.drivers.envelope import ADVICE, Envelope
from nnadapter.errors import IncompatibleProgramError, InvalidModelError, ModelFileError
from nnadapter.ir.model import Model, Operation
from nnadapter.ir.operand import DataType, Lifetime, Operand, OperandType
from nnadapter.ir.operations.custom import CUSTOM
from nnadapter.kernels.segment import Segment, SegmentOperation

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
    from nnadapter.ir.protobuf.serialized import to_bytes

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
    from nnadapter.ir.protobuf.serialized import from_bytes

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
