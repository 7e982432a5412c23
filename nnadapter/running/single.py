"""A plan of one step on a device, run on checked arrays: what several steps need is left out."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from nnadapter.drivers.border import check_results, copied, read_only
from nnadapter.errors import FAILURES
from nnadapter.running.bound_step import BoundStep
from nnadapter.running.executor import CompiledPlan
from nnadapter.running.outputs import own_value
from nnadapter.running.provenance import Provenance, of_one


class SingleStep:
    """The step that is all of a plan.

    Args:
        plan: what goes on where the step fails.
        outputs: of the model, all that are wanted.
        bound: the step.
        names: of the inputs that it reads.
        order: where among its results the outputs are.
    """

    __slots__ = ("_bound", "_hand", "_health", "_names", "_order", "_outputs", "_plan")

    def __init__(
        self, plan: CompiledPlan, outputs: Sequence[str], bound: BoundStep, names: Sequence[str], order: Sequence[int]
    ) -> None:
        self._plan, self._outputs, self._bound = plan, outputs, bound
        self._names, self._order = names, order
        self._health, self._hand = bound.health, copied if bound.copies_inputs else read_only

    def run(self, feed: Mapping[str, Any]) -> tuple[list[Any], Provenance]:
        """Run the step, as `CompiledPlan.run` does."""
        if self._plan.note or self._health.is_troubled:
            return self._plan.run(feed, self._outputs)
        bound, hand, started = self._bound, self._hand, time.perf_counter()
        step = bound.step
        if bound.index_checks:
            self._plan.check_indices(bound, feed)
        try:
            made = bound.pool.compute([hand(feed[name]) for name in self._names])
            results = check_results(made, step.outputs, bound.expected)
        except FAILURES as error:
            return self._plan.run(feed, self._outputs, failed=error)
        seconds = bound.seconds = time.perf_counter() - started
        self._plan.transfers = None
        outputs = [own_value(results[index], fed=False) for index in self._order]
        return outputs, of_one(step.segment, step.device, seconds)
