"""Programs as bytes: what the driver wrote, with the names and types that an execution needs in front of it.

Bytes are an `Envelope`: its header is the message `Signature` of nnadapter/ir/model.proto, its contents are the
driver's own bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from nnadapter.drivers.envelope import ADVICE, Envelope
from nnadapter.errors import IncompatibleProgramError, InvalidModelError
from nnadapter.ir.operand import Operand

_ENVELOPE = Envelope(magic=b"NNAPROG\0", version=2)


@dataclass(frozen=True, slots=True)
class ProgramSignature:
    """What goes into a program and comes out of it."""

    device: str
    """The device that it was compiled for."""
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]


def seal(signature: ProgramSignature, contents: bytes) -> bytes:
    """Return a driver's bytes with the signature of the program in front."""
    from nnadapter.ir.protobuf.messages import new
    from nnadapter.ir.protobuf.operands import write_operand

    message = new("Signature")
    message.device = signature.device
    for rows, operands in ((message.inputs, signature.inputs), (message.outputs, signature.outputs)):
        for operand in operands:
            write_operand(rows.add(), operand)
    header = message.SerializeToString(deterministic=True)
    return _ENVELOPE.close(header, [contents])


def unseal(blob: bytes, device: str) -> tuple[ProgramSignature, bytes]:
    """Return the signature and the driver's bytes of a program for `device`.

    Raises:
        IncompatibleProgramError: the bytes are damaged, or from another version or device.
    """
    header, contents = _ENVELOPE.open(blob)
    signature = _signature(header)
    if signature.device != device:
        raise IncompatibleProgramError(
            f"the program was compiled for device {signature.device!r}, got a context of {device!r}; {ADVICE}"
        )
    return signature, bytes(contents)


def _signature(header: bytes) -> ProgramSignature:
    from nnadapter.ir.protobuf.messages import parse, refuse_unknown
    from nnadapter.ir.protobuf.operands import read_operand

    try:
        message = parse("Signature", header)
        refuse_unknown(message)
        inputs, outputs = (tuple(map(read_operand, rows)) for rows in (message.inputs, message.outputs))
    except InvalidModelError as error:
        raise IncompatibleProgramError(f"the program does not say what goes in and out: {error}") from error
    return ProgramSignature(message.device, inputs, outputs)
