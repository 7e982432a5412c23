"""Trace events of instructions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from nnadapter.drivers.fake_npu.graph import Instruction, NpuGraph
from nnadapter.drivers.fake_npu.kernels.kernel import Run
from nnadapter.traces.trace import ENGINE, Trace


class InstructionEvents:
    """Makes events of the instructions of one program.

    Args:
        trace: takes them.
        lane: the device's.
        graph: the program's.
    """

    def __init__(self, trace: Trace, lane: str, graph: NpuGraph) -> None:
        self._trace, self._lane = trace, lane
        self._notes = [(instruction.kernel, _facts(instruction, graph)) for instruction in graph.instructions]

    def of(self, runs: list[Run]) -> list[Run]:
        """The bound instructions as they are to be run: each an event, as long as the trace has room."""
        if not self._trace.reserve_events(len(runs)):
            return runs
        return [partial(self._run, run, *note) for run, note in zip(runs, self._notes, strict=True)]

    def _run(self, run: Run, kernel: str, facts: Mapping[str, Any]) -> None:
        start = self._trace.timestamp()
        run()
        self._trace.add(self._lane, ENGINE, kernel, start, facts)


def _facts(instruction: Instruction, graph: NpuGraph) -> Mapping[str, Any]:
    fused = {} if instruction.activation is None else {"activation": instruction.activation.function}
    shapes = {
        name: [f"{graph.tensors[tensor].type.dtype}{list(graph.tensors[tensor].type.dimensions)}" for tensor in tensors]
        for name, tensors in (("inputs", instruction.inputs), ("outputs", instruction.outputs))
    }
    return {**shapes, **fused}
