"""An execution around another one: every way to compute, with the faults that are due."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from nnadapter.drivers.control import UNLIMITED, Control
from nnadapter.drivers.device_tensors import DeviceTensor
from nnadapter.drivers.faulty.acting import act, make
from nnadapter.drivers.faulty.faults import CallPoint, Due
from nnadapter.drivers.faulty.kinds import Kind
from nnadapter.drivers.faulty.results import (
    RetainedOutputs,
    changed,
    changed_on_device,
    written_to,
    written_to_on_device,
)
from nnadapter.drivers.interface import Execution
from nnadapter.drivers.streams import Stream
from nnadapter.ir.operand import Array


class FaultyExecution(Execution):
    """What the execution inside computes, and the faults of a script.

    Args:
        inner: the execution inside.
        run: its runs; None where no fault comes at them.
        close: the ends of it and of its program; None where no fault comes at them.
        kept: the outputs that it gave away and writes to.
    """

    def __init__(
        self,
        inner: Execution,
        run: CallPoint | None,
        close: CallPoint | None,
        retained_outputs: RetainedOutputs | None = None,
    ) -> None:
        self._inner, self._run, self._close = inner, run, close
        self._kept = RetainedOutputs() if retained_outputs is None else retained_outputs
        self._undone: deque[list[Due]] = deque()
        """Faults of runs that the execution inside left to another way of computing, which the host tries next."""

    def compute(self, inputs: Sequence[Array]) -> Sequence[Array]:
        """See `Execution.compute`."""
        return self._computed(inputs, self._inner.compute)

    def compute_within(self, inputs: Sequence[Array], control: Control) -> Sequence[Array]:
        """See `Execution.compute_within`."""
        return self._computed(inputs, partial(self._inner.compute_within, control=control))

    def at(self, sizes: Sequence[Any]) -> Execution:
        """See `Execution.at`."""
        return FaultyExecution(self._inner.at(sizes), self._run, None, self._kept)

    def compute_into(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Sequence[Array]:
        """See `Execution.compute_into`."""
        return self._computed(inputs, partial(self._inner.compute_into, outputs=outputs))

    def compute_on_device(
        self, inputs: Sequence[DeviceTensor], control: Control = UNLIMITED
    ) -> Sequence[DeviceTensor] | None:
        """See `Execution.compute_on_device`."""
        return self._on_device(inputs, partial(self._inner.compute_on_device, control=control))

    def enqueue(
        self, inputs: Sequence[DeviceTensor], stream: Stream, control: Control = UNLIMITED
    ) -> Sequence[DeviceTensor] | None:
        """See `Execution.enqueue`; where the run has a fault, the work of the stream is waited for."""
        return self._on_device(inputs, partial(self._inner.enqueue, stream=stream, control=control), stream)

    def close(self) -> None:
        """See `Execution.close`."""
        try:
            act(self._close)
        finally:
            self._inner.close()

    def _computed(
        self, inputs: Sequence[Array], compute: Callable[[Sequence[Array]], Sequence[Array]]
    ) -> Sequence[Array]:
        due, is_begun = self._due()
        if not due:
            return compute(inputs)
        if _has(due, Kind.WRITES_INPUTS):
            inputs = written_to(inputs)
        due = due if is_begun else self._make(due)
        results = changed(compute(inputs), due)
        if _has(due, Kind.KEEPS_OUTPUTS):
            self._kept.keep(results)
        return results

    def _on_device(
        self,
        inputs: Sequence[DeviceTensor],
        compute: Callable[[Sequence[DeviceTensor]], Sequence[DeviceTensor] | None],
        stream: Stream | None = None,
    ) -> Sequence[DeviceTensor] | None:
        due, is_begun = self._due()
        remaining_faults = due if is_begun else self._make(due)
        results = compute(inputs)
        if results is None:
            self._undone.append(remaining_faults)
            return None
        if not due:
            return results
        if stream is not None:
            stream.synchronize()
        if _has(due, Kind.WRITES_INPUTS):
            written_to_on_device(inputs)
        results = changed_on_device(results, remaining_faults)
        if _has(due, Kind.KEEPS_OUTPUTS):
            self._kept.keep(results)
        return results

    def _due(self) -> tuple[list[Due], bool]:
        """What comes at this run, and whether those that come before the computation were made already."""
        self._kept.write()
        if self._undone:
            return self._undone.popleft(), True
        return [] if self._run is None else self._run.due(), False

    def _make(self, due: Sequence[Due]) -> list[Due]:
        """Make those that come before the computation, and return the others."""
        return [] if self._run is None or not due else make(self._run, due)


def _has(due: Sequence[Due], kind: Kind) -> bool:
    return any(triggered_fault.fault.kind is kind for triggered_fault in due)
