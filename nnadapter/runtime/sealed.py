"""Programs as bytes: what the driver wrote, with the names and types that an execution needs in front of it.

Bytes are: magic, version and length of the signature as little-endian uint32, SHA-256 of everything that follows it,
the signature (message `Signature` of nnadapter/ir/model.proto), and the driver's own bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from hashlib import sha256

from nnadapter.errors import IncompatibleProgramError, InvalidModelError
from nnadapter.ir.operand import Operand

MAGIC = b"NNAPROG\0"
VERSION = 1
_PREFIX = struct.Struct("<8sII32s")
_ADVICE = "compile the model again"


@dataclass(frozen=True, slots=True)
class Signature:
    """What goes into a program and comes out of it."""

    device: str
    """The device that it was compiled for."""
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]


def seal(signature: Signature, contents: bytes) -> bytes:
    """Return a driver's bytes with the signature of the program in front."""
    from nnadapter.ir.protobuf.messages import new
    from nnadapter.ir.protobuf.operands import write_operand

    message = new("Signature")
    message.device = signature.device
    for rows, operands in ((message.inputs, signature.inputs), (message.outputs, signature.outputs)):
        for operand in operands:
            write_operand(rows.add(), operand)
    header = message.SerializeToString(deterministic=True)
    digest = sha256(header)
    digest.update(contents)
    return b"".join((_PREFIX.pack(MAGIC, VERSION, len(header), digest.digest()), header, contents))


def unseal(blob: bytes, device: str) -> tuple[Signature, bytes]:
    """Return the signature and the driver's bytes of a program for `device`.

    Raises:
        IncompatibleProgramError: the bytes are damaged, or from another version or device.
    """
    header, contents = _opened(blob)
    signature = _signature(header)
    if signature.device != device:
        raise IncompatibleProgramError(
            f"the program was compiled for device {signature.device!r}, got a context of {device!r}; {_ADVICE}"
        )
    return signature, contents


def _opened(blob: bytes) -> tuple[bytes, bytes]:
    if not isinstance(blob, bytes) or len(blob) < _PREFIX.size:
        got = f"{len(blob)} bytes" if isinstance(blob, bytes) else type(blob).__name__
        raise IncompatibleProgramError(f"a program is at least {_PREFIX.size} bytes, got {got}; {_ADVICE}")
    magic, version, length, digest = _PREFIX.unpack_from(blob)
    if magic != MAGIC:
        raise IncompatibleProgramError(f"the program starts with {magic!r}, expected {MAGIC!r}; {_ADVICE}")
    if version != VERSION:
        raise IncompatibleProgramError(f"the program has version {version}, expected {VERSION}; {_ADVICE}")
    rest = memoryview(blob)[_PREFIX.size :]
    if length > len(rest) or sha256(rest).digest() != digest:
        raise IncompatibleProgramError(f"the program's contents do not match its digest: damaged; {_ADVICE}")
    return bytes(rest[:length]), bytes(rest[length:])


def _signature(header: bytes) -> Signature:
    from nnadapter.ir.protobuf.messages import parse, refuse_unknown
    from nnadapter.ir.protobuf.operands import read_operand

    try:
        message = parse("Signature", header)
        refuse_unknown(message)
        inputs, outputs = (tuple(map(read_operand, rows)) for rows in (message.inputs, message.outputs))
    except InvalidModelError as error:
        raise IncompatibleProgramError(f"the program does not say what goes in and out: {error}") from error
    return Signature(message.device, inputs, outputs)
