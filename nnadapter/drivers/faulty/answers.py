"""Lies: verdicts, admissions, and what is said of programs as bytes, changed as faults say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from nnadapter.drivers.faulty.faults import Due
from nnadapter.drivers.faulty.kinds import Kind
from nnadapter.drivers.faulty.subjects import Subject
from nnadapter.drivers.interface import Admission, Compatibility
from partition.verdict import SUPPORTED, Reason, Unsupported, Verdict

_FOREIGN = b"a program of somebody else"


def lie(verdicts: Sequence[Verdict], due: Sequence[Due], subject: Subject) -> Sequence[Verdict]:
    """Return other verdicts on the operations of a subject."""
    altered_verdicts = list(verdicts)
    for triggered_fault in due:
        if triggered_fault.fault.kind is Kind.WRONG_COUNT:
            altered_verdicts = altered_verdicts[:-1]
            continue
        for position in subject.positions(triggered_fault.fault):
            altered_verdicts[position : position + 1] = [_verdict(triggered_fault)][: len(altered_verdicts) - position]
    return altered_verdicts


def lie_of_segment(admission: Admission, due: Sequence[Due]) -> Admission:
    """Return another admission."""
    return replace(admission, verdict=_verdict(due[-1])) if due else admission


def lie_of_blob(compatibility: Compatibility | None) -> Compatibility:
    """Return the opposite of what a driver says of a program as bytes."""
    wrong = (Compatibility.RECOMPILE, Compatibility.NO)
    return Compatibility.SAME if compatibility in wrong else Compatibility.NO


def other_bytes(blob: bytes, previous_blob: bytes, due: Due) -> bytes:
    """Return what stands for a program, which was serialized behind another one."""
    if due.fault.kind is Kind.FOREIGN_BLOB:
        return previous_blob or _FOREIGN
    damaged, random = bytearray(blob), Random(due.draw)
    for _ in range(1 + len(blob) // 1000 if blob else 0):
        damaged[random.randrange(len(blob))] ^= random.randrange(1, 256)
    return bytes(damaged)


def _verdict(due: Due) -> Verdict:
    return SUPPORTED if due.fault.kind is Kind.SAYS_YES else Unsupported(Reason.DEVICE_REFUSED, due.text)
