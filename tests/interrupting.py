"""An interrupt at one step after the other of what is done in some modules, so that each comes once.

CPython looks for signals behind a call, where a function begins, and where a loop goes back; not where a `with` begins
or ends.
"""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Callable
from itertools import pairwise
from linecache import getline
from types import CodeType

_LOOKS = ("CALL", "RESUME", "JUMP_BACKWARD")


def interrupt(work: Callable[[], object], step: int, modules: tuple[str, ...]) -> KeyboardInterrupt | None:
    """Do some work with an interrupt at a step.

    Args:
        work: what is done.
        step: the how manieth, from 1, of the interpreter's steps in `modules` behind which it looks for signals.
        modules: how their names begin.

    Returns:
        What came, which keeps what its frames have; None where nothing did, and the work is done.
    """
    left = step

    def trace(frame, kind, _):
        nonlocal left
        if not frame.f_globals.get("__name__", "").startswith(modules):
            return None
        frame.f_trace_opcodes = True
        if kind != "opcode" or frame.f_lasti not in _looked_at(frame.f_code):
            return trace
        left -= 1
        if not left:
            raise KeyboardInterrupt
        return trace

    tracing = sys.gettrace()
    try:
        sys._getframe().f_trace_opcodes = True  # Python 3.12 has events of opcodes only if this is set before settrace
        sys.settrace(trace)
        work()
    except KeyboardInterrupt as error:
        return error
    finally:
        sys.settrace(tracing)
    return None


@functools.cache
def _looked_at(code: CodeType) -> frozenset[int]:
    """Where steps begin that follow one behind which signals are looked for."""
    steps = [step for step in dis.get_instructions(code) if step.opname != "CACHE"]
    lines = dict[int, str]()
    for step in steps:
        position = step.positions
        number = position.lineno if position is not None else None
        lines[step.offset] = getline(code.co_filename, number or 0).lstrip()
    return frozenset(
        step.offset
        for before, step in pairwise(steps)
        if before.opname.startswith(_LOOKS) and lines[step.offset] and not lines[step.offset].startswith("with ")
    )
