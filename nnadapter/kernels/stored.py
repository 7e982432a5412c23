"""Programs with calls of kernels as bytes: the calls with their constants, and the driver's own bytes.

Bytes are an `Envelope`. Kernels are functions of a process, so they are not written: they are chosen again when the
program is deserialized, by what the calls say.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from nnadapter.drivers.envelope import ADVICE, Envelope
from nnadapter.errors import IncompatibleProgramError, InvalidModelError, ModelFileError
from nnadapter.ir.extract import submodel
from nnadapter.ir.model import Model
from nnadapter.ir.operand import DataType, OperandType

MAGIC = b"NNAKERN\0"
"""The first bytes of such a program."""
_ENVELOPE = Envelope(magic=MAGIC, version=1)


@dataclass(frozen=True, eq=False)
class StoredPiece:
    """One of the driver's programs."""

    inputs: tuple[str, ...]
    """Names of operands."""
    outputs: tuple[str, ...]
    types: tuple[OperandType, ...]
    """Of the outputs."""


@dataclass(frozen=True, eq=False)
class Stored:
    """What stands beside the driver's programs."""

    calls: Model
    """The operations that kernels compute; what the driver makes for them goes in."""
    pieces: tuple[StoredPiece, ...]
    order: tuple[int, ...]
    """Per turn, the piece, or -1 for the next call."""
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def calls_model(model: Model, calls: Sequence[int]) -> Model:
    """The calls of a segment as a model of their own, with what passes the segment by."""
    operations = [model.operations[position] for position in calls]
    made = {operand for operation in operations for operand in operation.outputs}
    read = dict.fromkeys(operand for operation in operations for operand in operation.inputs)
    outside = [each for each in read if each not in made and model.operands[each].value is None]
    kept = [each for each in dict.fromkeys(model.outputs) if model.operands[each].value is not None]
    return submodel(model, calls, outside, [*dict.fromkeys((*made, *kept))])


def write(stored: Stored, blobs: Sequence[bytes]) -> bytes:
    """Return a program as bytes."""
    from nnadapter.ir.protobuf.serialized import to_bytes

    calls, weights = to_bytes(stored.calls)
    parts = [calls, weights, *blobs]
    header = {
        "lengths": list(map(len, parts)),
        "pieces": [
            {"inputs": each.inputs, "outputs": each.outputs, "types": [_type(type_) for type_ in each.types]}
            for each in stored.pieces
        ],
        "order": stored.order,
        "inputs": stored.inputs,
        "outputs": stored.outputs,
    }
    return _ENVELOPE.close(json.dumps(header, separators=(",", ":")).encode(), parts)


def read(blob: bytes) -> tuple[Stored, list[bytes]]:
    """Return what `write` wrote, with the driver's bytes.

    Raises:
        IncompatibleProgramError: the bytes are damaged, or of another version.
    """
    from nnadapter.ir.protobuf.serialized import from_bytes

    header, contents = _ENVELOPE.open(blob)
    try:
        told = json.loads(header)
        parts = _parts(contents, told["lengths"])
        pieces = tuple(
            StoredPiece(tuple(each["inputs"]), tuple(each["outputs"]), tuple(map(_read_type, each["types"])))
            for each in told["pieces"]
        )
        calls = from_bytes(parts[0], {"weights": parts[1]})
        stored = Stored(calls, pieces, tuple(told["order"]), tuple(told["inputs"]), tuple(told["outputs"]))
        _check(stored, len(parts) - 2)
    except (ValueError, KeyError, TypeError, IndexError, InvalidModelError, ModelFileError) as error:
        raise IncompatibleProgramError(f"the program with kernels contradicts itself: {error}; {ADVICE}") from error
    return stored, parts[2:]


def _check(stored: Stored, blobs: int) -> None:
    programs = [each for each in stored.order if each != -1]
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


def _read_type(told: Sequence[object]) -> OperandType:
    dtype, dimensions = told
    return OperandType(DataType(str(dtype)), tuple(map(int, dimensions)))  # type: ignore[call-overload]
