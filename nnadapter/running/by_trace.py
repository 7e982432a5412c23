"""What stands around programs and what they do where a session has a trace; where it has none, they stand alone.

Most have none, and import nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from nnadapter.drivers.capability import Threading
from nnadapter.drivers.failures import NamedCalls
from nnadapter.drivers.interface import Program
from nnadapter.running.pool import ExecutionPool
from nnadapter.traces.trace import COMPILE, FALLBACK, Trace
from partition.plan import Step

if TYPE_CHECKING:
    from nnadapter.drivers.tensor_copies import Transfer


def pools_of(trace: Trace, threading: Threading, calls: NamedCalls) -> Callable[[Program], ExecutionPool]:
    """Return what makes pools of programs of one segment; if there is a trace, their computations are events."""
    if not trace.is_recording:
        return lambda program: ExecutionPool(program, threading, calls)
    from nnadapter.running.traced_programs import traced_pools

    return traced_pools(trace, threading, calls)


def transfers_of(trace: Trace) -> Callable[[], list[Transfer]]:
    """Return what makes a list for the transfers of a run; if there is a trace, they are events."""
    if not trace.is_recording:
        return list
    from nnadapter.running.traced_programs import traced_transfers

    return traced_transfers(trace)


def making(trace: Trace, device: str, call: str, *about: Any) -> AbstractContextManager[object]:
    """Return a block in which a device makes a program of a segment."""
    if not trace.is_logging:  # a new shape makes many, and what would be told of them takes longer than the rest
        return trace.span(device, COMPILE, call)
    from nnadapter.running.traced_programs import segment_facts, segment_name

    return trace.span(device, COMPILE, f"{call} {segment_name(*about)}", **segment_facts(*about))


def fell_back(trace: Trace, step: Step, reason: str, instead: str) -> None:
    """Take note of what a device failed to do, and of what is done instead."""
    trace.mark(step.device, FALLBACK, "fall back", segment=step.segment, reason=reason, then=instead)
