"""Signals simulated between any two bytecode steps."""

from __future__ import annotations

import dis
import sys
from pathlib import Path
from types import CodeType, FrameType

import nnadapter

_OURS = str(Path(nnadapter.__file__).parent)
_LOOKED_BEHIND = ("CALL", "JUMP_BACKWARD", "RESUME")
"""Bytecode steps after which CPython checks for signals."""


def call_with_signals(call, handler) -> int:
    """Call, run the handler wherever our files could receive a signal, and return the count.

    The handler itself receives no signals. If it raises, no more arrive.
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
            previous, last[frame] = last.get(frame, ""), _step(frame, names)
            if previous.startswith(_LOOKED_BEHIND):
                calls += 1
                sys.settrace(None)
                handler()
                sys.settrace(trace)
        return trace

    previous = sys.gettrace()
    try:
        sys._getframe().f_trace_opcodes = True  # before settrace, or Python 3.12 has no opcode events
        sys.settrace(trace)
        call()
    finally:
        sys.settrace(previous)
    return calls


def _step(frame: FrameType, names: dict[CodeType, list[str]]) -> str:
    code = frame.f_code
    if code not in names:
        names[code] = [dis.opname[byte] for byte in code.co_code[::2]]
    return names[code][frame.f_lasti // 2]
