"""Which faults are due at a call: counted, drawn by the seed, and noted."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from nnadapter.drivers.faulty.kinds import READING, Kind, Phase
from nnadapter.drivers.faulty.log import EarlierCounts, Log
from nnadapter.drivers.faulty.script import Fault, Script
from nnadapter.drivers.faulty.subjects import NOTHING, Subject
from nnadapter.errors import DeviceLostError
from nnadapter.process.forking import new_lock

_OF_PROGRAMS = frozenset((Phase.CREATE, Phase.RUN, Phase.CLOSE))
"""Phases whose calls are counted for each program."""


@dataclass(frozen=True, slots=True)
class Due:
    """A fault that is made at a call."""

    fault: Fault
    number: int
    """In the script, counted from 1."""
    call: int
    """Which of the calls that it is for."""
    draw: int
    """A random number of 64 bits, for what the fault itself leaves open."""

    @property
    def text(self) -> str:
        """What an error says of it."""
        message = self.fault.message or f"made by faulty, as fault {self.number} of its script says"
        return f"{message} ({self.fault.phase.value}, call {self.call})"


class Faults:
    """What a script asks for, and how much of it was made; safe to use from many threads.

    Args:
        script: what to do wrong.
        seed: in place of the script's own, if it is not negative.
    """

    def __init__(self, script: Script, seed: int = -1) -> None:
        self._script = script
        self._seed = script.seed if seed < 0 else seed
        self._log = Log(script.log) if script.log else None
        self._earlier = self._log.earlier if self._log is not None else EarlierCounts()
        self._counts = dict(self._earlier.counts)
        self._made = dict(self._earlier.made)
        self._lock = new_lock()
        self._lost: Due | None = None
        self._back = 0.0
        self._loses = any(fault.kind is Kind.DEVICE_LOST for fault in script.faults)
        self.last_blob = b""
        """The program that was serialized last."""

    def moment(self, phase: Phase, subject: Subject = NOTHING, kinds: frozenset[Kind] = READING) -> CallPoint | None:
        """Return the calls of a phase about something; None where no fault can ever be due at them."""
        numbered_faults = [
            (number, fault)
            for number, fault in self._script
            if fault.phase is phase and fault.kind in kinds and subject.concerns(fault)
        ]
        return CallPoint(self, phase, subject, numbered_faults) if numbered_faults or self._loses else None

    def due(self, phase: Phase, about: str, numbered_faults: Sequence[tuple[int, Fault]]) -> list[Due]:
        """Count a call, and return the faults that come at it."""
        if phase is not Phase.CLOSE:  # what is lost can be let go of
            self._refuse_lost()
        return list(self._due(phase, about, numbered_faults))

    def note(self, due: Due, about: str) -> None:
        """Note a fault that is about to be made."""
        if self._log is not None:
            self._log.note(due.number, due.fault.kind, due.fault.phase, about, due.call, self._counts.copy())

    def lose(self, due: Due) -> None:
        """Let the device be gone."""
        seconds = due.fault.seconds
        self._back = float("inf") if seconds is None else time.monotonic() + seconds
        self._lost = due

    def end(self) -> None:
        """Note how far counts came."""
        if self._log is not None:
            self._log.end(self._counts.copy())

    def _due(self, phase: Phase, about: str, numbered_faults: Sequence[tuple[int, Fault]]) -> Iterator[Due]:
        where = about if phase in _OF_PROGRAMS else ""
        for number, fault in numbered_faults:
            counted = f"{number} {where}"
            with self._lock:
                call = self._counts[counted] = self._counts.get(counted, 0) + 1
            draw = self._draw(counted, call)
            if _is_its_turn(fault, call) and draw < fault.probability * 2**64 and self._has_left(number, fault):
                yield Due(fault, number, call, draw=self._draw(f"{counted} itself", call))

    def _draw(self, counted: str, call: int) -> int:
        text = f"{self._seed} {counted} {call}".encode()
        return int.from_bytes(blake2b(text, digest_size=8).digest())

    def _has_left(self, number: int, fault: Fault) -> bool:
        with self._lock:
            count = self._made.get(number, 0)
            self._made[number] = count + 1
        return fault.times is None or count < fault.times

    def _refuse_lost(self) -> None:
        lost = self._lost
        if lost is None:
            return
        if time.monotonic() < self._back:
            raise DeviceLostError(f"the device is gone: {lost.text}")
        self._lost = None


@dataclass(frozen=True, slots=True)
class CallPoint:
    """Calls of one phase about one thing."""

    faults: Faults
    phase: Phase
    subject: Subject
    found: Sequence[tuple[int, Fault]]

    def due(self) -> list[Due]:
        """Count one call, and return the faults that come at it, in the order of the script.

        Raises:
            DeviceLostError: the device is gone.
        """
        return self.faults.due(self.phase, self.subject.key, self.found)

    def note(self, due: Due) -> None:
        """Note a fault that is about to be made."""
        self.faults.note(due, self.subject.key)


def _is_its_turn(fault: Fault, call: int) -> bool:
    if fault.nth is not None:
        return call == fault.nth
    first = fault.from_ or 1
    return call >= first and (call - first) % (fault.every or 1) == 0
