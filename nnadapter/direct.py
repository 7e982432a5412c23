"""Runs of a plan that leaves everything to the CPU, at next to no cost beside ONNX Runtime's own.

What a run of a plan decides is the same every time if there is one step, on the host, and if the feed has the data
types and shapes of the run before. Then nothing is left but to call ONNX Runtime.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nnadapter.compilation import Compiled
from nnadapter.drivers.selection import CPU
from nnadapter.executor import BoundStep, Provenance, StepRun
from nnadapter.signature import Shapes, Signature

Expected = Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]
"""Data type and shape of inputs by name."""


class DirectRun:
    """The only step of a plan, for feeds of one set of data types and shapes."""

    __slots__ = ("_bound", "_compute", "_expected", "_given", "_in_order", "_order", "_segment")

    def __init__(self, bound: BoundStep, given: Sequence[str], outputs: Sequence[str], expected: Expected) -> None:
        self._bound = bound
        self._compute = bound.pool.shortest()
        self._given = tuple(given)
        self._order = [bound.step.outputs.index(name) for name in outputs]
        self._in_order = self._order == list(range(len(bound.step.outputs)))
        self._segment = bound.step.segment
        self._expected = tuple((name, *row) for name, row in expected.items())

    def run(self, feed: Mapping[str, Any]) -> tuple[list[Any], Provenance] | None:
        """Run the step for all outputs; None, and nothing done, if the feed is not just as expected."""
        if type(feed) is not dict or len(feed) != len(self._expected):
            return None
        for name, dtype, shape in self._expected:
            array = feed.get(name)
            if type(array) is not np.ndarray or array.shape != shape or array.dtype != dtype:
                return None
        bound = self._bound
        started = time.perf_counter()
        results = self._compute([feed[name] for name in self._given])
        seconds = bound.seconds = time.perf_counter() - started
        ordered = list(results) if self._in_order else [results[index] for index in self._order]
        return ordered, Provenance((StepRun(self._segment, CPU, seconds),))


def direct_run(compiled: Compiled, signature: Signature, shapes: Shapes) -> DirectRun | None:
    """Return how to run a plan directly, or None if its runs leave something to decide.

    Args:
        compiled: the plan.
        signature: of the model.
        shapes: those of its inputs that the plan is for; inputs that have none are left out.
    """
    plan, outputs = compiled.plan, signature.output_names
    if len(plan.steps) != 1 or signature.overridable:
        return None
    (bound,) = plan.steps
    given = [plan.names[slot] for slot in bound.inputs]
    expected = {name: (signature.dtypes[name], shapes[name]) for name in shapes if name in signature.dtypes}
    if bound.step.device != CPU or not set(outputs) <= set(bound.step.outputs) or not set(given) <= expected.keys():
        return None
    return DirectRun(bound, given, outputs, expected) if len(expected) == len(signature.inputs) else None
