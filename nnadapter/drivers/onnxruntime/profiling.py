"""ONNX Runtime's own events, for a trace: its sessions write profiles into a folder, which are read at the end.

ONNX Runtime keeps the events of a session in memory until profiling ends, a million of them at most. So it ends for all
sessions of a trace when they have enough together. What is written is in microseconds from the profile's start; that
start is told by a clock of C++, which is one of two clocks of Python.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnadapter.traces.recorder import Recorder
from nnadapter.traces.trace import ENGINE, Event, Trace

if TYPE_CHECKING:
    import onnxruntime

_CLOCKS = (time.time_ns, time.monotonic_ns)
"""One of them is ONNX Runtime's, depending on the platform; they are decades apart."""
_READINGS = 20
"""Pairs of readings of two clocks, to tell how far they are apart."""
_LEFT_OUT = frozenset(("thread_scheduling_stats",))
"""What is long and says little."""
_AROUND_NODES = 2
"""Events of a run beside those of its nodes."""
_numbers = count()


class SessionProfile:
    """What one session of ONNX Runtime notes of itself, from `begin` to `end`.

    Args:
        recorder: where its events go.
        lane: of the device that the session is a program of.
        nodes: of its model; who learns it later says so then.
    """

    def __init__(self, recorder: Recorder, lane: str, nodes: int = 0) -> None:
        self.prefix = str(Path(recorder.folder()) / str(next(_numbers)))
        """Of its file."""
        self._recorder, self._lane, self.nodes = recorder, lane, nodes
        self._sessions: list[onnxruntime.InferenceSession] = []
        self._files: list[str] = []
        self._start = 0

    def begin(self, session: onnxruntime.InferenceSession) -> None:
        """Take the session that was made with `prefix`."""
        self._start = _by_our_clock(int(session.get_profiling_start_time_ns()))
        self._sessions.append(session)
        self._recorder.add_source(self._read)

    def ran(self) -> None:
        """Say that the session ran once; where it notes nothing any more, its events are lost, and count as such."""
        if not self._recorder.reserve_events(self.nodes + _AROUND_NODES):
            self.end()

    def end(self) -> None:
        """Have the session write what it noted. May be called again."""
        with suppress(IndexError):
            self._files.append(self._sessions.pop().end_profiling())

    def _read(self) -> Iterator[Event]:
        self.end()
        for file in self._files:
            for entry in _entries(Path(file)):
                if entry.get("ph") == "X":
                    yield self._event(entry)

    def _event(self, entry: Mapping[str, Any]) -> Event:
        start = self._start + int(entry["ts"]) * 1_000
        facts = {name: fact for name, fact in entry.get("args", {}).items() if name not in _LEFT_OUT}
        end = start + int(entry["dur"]) * 1_000
        return Event(self._lane, int(entry["tid"]), ENGINE, str(entry["name"]), start, end, facts)


def profile_of(trace: Trace, lane: str, nodes: int = 0) -> SessionProfile | None:
    """Return what takes a session's own events, None where nobody keeps them, or there are enough."""
    if isinstance(trace, Recorder) and trace.reserve_events(_AROUND_NODES):
        return SessionProfile(trace, lane, nodes)
    return None


def _by_our_clock(started: int) -> int:
    """What the trace's clock showed when ONNX Runtime's showed `started`, or would have shown."""
    clock = min(_CLOCKS, key=lambda read_clock: abs(read_clock() - started))
    readings = []
    for _ in range(_READINGS):
        start_ns, theirs, end_ns = time.perf_counter_ns(), clock(), time.perf_counter_ns()
        readings.append((end_ns - start_ns, (start_ns + end_ns) // 2 - theirs))
    return started + min(readings)[1]  # the pair between whose readings nothing came


def _entries(file: Path) -> list[Mapping[str, Any]]:
    try:
        entries: list[Mapping[str, Any]] = json.loads(file.read_bytes())
    except (OSError, ValueError):  # the disk is full, say: the rest of the trace is as good without
        return []
    return entries
