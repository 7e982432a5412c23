"""The file in which faults are noted before they are made, so that a process that follows a crash goes on behind it."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from nnadapter.drivers.faulty.kinds import Kind, Phase
from nnadapter.errors import FaultScriptError


@dataclass(frozen=True, slots=True)
class EarlierCounts:
    """What was noted before."""

    counts: Mapping[str, int] = field(default_factory=dict)
    """Calls, by what they are counted under."""
    made: Mapping[int, int] = field(default_factory=Counter)
    """Faults, by their number in the script."""


class Log:
    """A file with a line of JSON for each fault.

    Raises:
        FaultScriptError: it cannot be written.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self.earlier = _read(path)

    def note(self, number: int, kind: Kind, phase: Phase, about: str, call: int, counts: Mapping[str, int]) -> None:
        """Note a fault that is about to be made, written when this returns."""
        fault = {"fault": number, "kind": kind.value, "phase": phase.value, "about": about, "call": call}
        self._write({**fault, "process": os.getpid(), "counts": dict(counts)})

    def end(self, counts: Mapping[str, int]) -> None:
        """Note how far counts came, where a context ends."""
        self._write({"process": os.getpid(), "counts": dict(counts)})

    def _write(self, line: Mapping[str, object]) -> None:
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            os.write(file, json.dumps(line).encode() + b"\n")
        finally:
            os.close(file)


def _read(path: str) -> EarlierCounts:
    counts: dict[str, int] = {}
    fault_counts: Counter[int] = Counter()
    try:
        file = Path(path)
        text = file.read_text() if file.exists() else ""
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FaultScriptError(
            f"script of faults, key 'log': {path!r} cannot be written: {reason}; name another file", key="log"
        ) from error
    for line in text.splitlines():
        with suppress(ValueError):  # somebody else's line, or half of one
            noted = json.loads(line)
            if isinstance(noted, dict):
                fault_counts[noted.get("fault", 0)] += 1
                for key, count in noted.get("counts", {}).items():
                    counts[key] = max(count, counts.get(key, 0))
    return EarlierCounts(counts, fault_counts)
