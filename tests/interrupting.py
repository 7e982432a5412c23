"""An interrupt at each step of some modules in turn, so that every position is tried once.

CPython checks for signals after a call, at the start of a function and when a loop goes back; not where a `with` begins
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
    """Call `work` with an interrupt at one step.

    Args:
        work: callable to interrupt.
        step: number, from 1, of the interpreter step in `modules` at which signals are checked.
        modules: prefixes of module names.

    Returns:
        The interrupt, which keeps its frames alive; None if `work` finished without one.
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
        sys._getframe().f_trace_opcodes = True  # Python 3.12 emits opcode events only if this is set before settrace
        sys.settrace(trace)
        work()
    except KeyboardInterrupt as error:
        return error
    finally:
        sys.settrace(tracing)
    return None


@functools.cache
def _looked_at(code: CodeType) -> frozenset[int]:
    """Return the offsets of steps that follow a signal check."""
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
