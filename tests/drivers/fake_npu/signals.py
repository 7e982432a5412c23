"""What may come between two steps of a thread: an interrupt, or a handler of signals that computes."""

from __future__ import annotations

import dis
import sys
from pathlib import Path
from types import CodeType, FrameType

import nnadapter

_OURS = str(Path(nnadapter.__file__).parent)
_LOOKED_BEHIND = ("CALL", "JUMP_BACKWARD", "RESUME")
"""Steps behind which CPython looks for signals."""


def call_with_signals(call, handler) -> int:
    """Call, and the handler wherever a signal may come in files of ours; how often it was called.

    What the handler calls itself gets none, and where it raises none come any more.
    """
    last: dict[FrameType, str] = {}
    names: dict[CodeType, list[str]] = {}
    calls = 0

    def trace(frame, kind, _):
        nonlocal calls
        if not frame.f_code.co_filename.startswith(_OURS):
            return None
        frame.f_trace_opcodes = True
        if kind == "opcode":
            before, last[frame] = last.get(frame, ""), _step(frame, names)
            if before.startswith(_LOOKED_BEHIND):
                calls += 1
                sys.settrace(None)
                handler()
                sys.settrace(trace)
        return trace

    before = sys.gettrace()
    try:
        sys._getframe().f_trace_opcodes = True  # Python 3.12 has events of opcodes only if this is set before settrace
        sys.settrace(trace)
        call()
    finally:
        sys.settrace(before)
    return calls


def _step(frame: FrameType, names: dict[CodeType, list[str]]) -> str:
    code = frame.f_code
    if code not in names:
        names[code] = [dis.opname[each] for each in code.co_code[::2]]
    return names[code][frame.f_lasti // 2]
