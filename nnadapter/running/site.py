"""The devices that a plan is bound to, as far as binding asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nnadapter.drivers.capability import Threading
from nnadapter.drivers.interface import Program
from nnadapter.running.pool import ExecutionPool
from nnadapter.running.traced_programs import pool_of
from nnadapter.traces.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where plans run: those of a session that has the model, and those of a compiled file."""

    accelerators: frozenset[str]
    """Names of the devices on which nodes count as delegated."""
    owning: frozenset[str]
    """Names of the devices that have memory of their own."""
    threading: Mapping[str, Threading]
    """Of every device, by name."""
    trace: Trace
    """Takes what happens."""

    def pool(self, device: str, program: Program, *about: Any) -> ExecutionPool:
        """Return executions of a program of a device, as its threading says."""
        return pool_of(self.trace, program, self.threading[device], device, *about)
