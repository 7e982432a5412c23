"""Programs of C drivers as bytes: an envelope with the types at the border, and the driver's own bytes in it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from nnadapter.drivers.envelope import ADVICE, PREFIX_BYTES, Envelope
from nnadapter.errors import IncompatibleProgramError
from nnadapter.ir.operand import DataType, Layout, OperandType

_ENVELOPE = Envelope(magic=b"NNACDRIV", version=1)


class Border(NamedTuple):
    """What goes into a program and comes out of it."""

    inputs: tuple[OperandType, ...]
    outputs: tuple[OperandType, ...]


def seal(driver: str, border: Border, parts: Sequence[bytes]) -> bytes:
    """Return what a driver wrote as bytes that `unseal` takes."""
    header = {
        "driver": driver,
        "inputs": [_plain(type_) for type_ in border.inputs],
        "outputs": [_plain(type_) for type_ in border.outputs],
    }
    return _ENVELOPE.close(json.dumps(header).encode(), parts)


def unseal(driver: str, blob: bytes | memoryview, *, is_checked: bool = False) -> tuple[Border, memoryview]:
    """Return the types at the border and the driver's own bytes; for `is_checked`, see `Envelope.open`.

    Raises:
        IncompatibleProgramError: they are damaged, of another kind or version, or of another driver.
    """
    header, contents = _ENVELOPE.open(blob, is_checked=is_checked)
    try:
        read = json.loads(header)
        border = Border(*(tuple(_type(entry) for entry in read[name]) for name in ("inputs", "outputs")))
        writer = read["driver"]
    except (ValueError, KeyError, TypeError) as error:
        raise IncompatibleProgramError(f"the program's header cannot be read: {error}; {ADVICE}") from error
    if writer != driver:
        raise IncompatibleProgramError(f"the program was compiled by {writer!r}, expected {driver!r}; {ADVICE}")
    return border, contents


def written_by(driver: str, blob: memoryview) -> memoryview | None:
    """Return the driver's own bytes, which are neither read nor checked; None if they are not this driver's."""
    header = _ENVELOPE.header_of(blob)
    if header is None:
        return None
    try:
        writer = json.loads(header)["driver"]
    except (ValueError, KeyError, TypeError):
        return None
    return blob[PREFIX_BYTES + len(header) :] if writer == driver else None


def _plain(type_: OperandType) -> list[object]:
    return [type_.dtype.value, [int(size) for size in type_.dimensions], type_.layout.value]


def _type(plain: list[object]) -> OperandType:
    dtype, dimensions, layout = plain
    if not isinstance(dimensions, list) or not all(isinstance(size, int) and size >= 0 for size in dimensions):
        raise ValueError(f"{dimensions!r} are no dimensions")
    return OperandType(DataType(str(dtype)), tuple(dimensions), Layout(str(layout)))
