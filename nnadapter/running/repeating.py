"""The run after another one like it: what was decided and checked for that one holds for this one too.

A feed with the data types and shapes of the run before needs no other plan, and its arrays are what the model declares.
That is told by looking at each array once; everything else is left out. Where all of the plan is one step on the CPU,
nothing is left but to call ONNX Runtime.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nnadapter.running.compilation import Compiled
from nnadapter.running.executor import BoundStep, Provenance, StepRun
from nnadapter.running.plans import Lease, PlanCache
from nnadapter.signature import Signature

Done = tuple[list[Any], Provenance]


class Repeat:
    """A plan, and the feeds that it takes as they are.

    Args:
        plans: where the plan is kept.
        lease: of the plan.
        compiled: the plan.
        signature: of the model.
        feed: of the run before, checked.
    """

    __slots__ = ("_alone", "_expected", "_outputs", "_plan", "_plans", "lease")

    def __init__(
        self,
        plans: PlanCache[Compiled],
        lease: Lease[Compiled],
        compiled: Compiled,
        signature: Signature,
        feed: Mapping[str, Any],
    ) -> None:
        self.lease = lease
        self._plans, self._plan = plans, compiled.plan
        self._outputs = signature.output_names
        self._alone = compiled.plan.alone(self._outputs)
        dtypes = signature.dtypes
        known = {name for name, value in feed.items() if name in dtypes and type(value) is np.ndarray}
        self._expected = tuple((name, dtypes[name], feed[name].shape) for name in feed if len(known) == len(feed))

    def run(self, feed: Any) -> Done | None:
        """Run the plan for all outputs; None, and nothing done, if the feed is not like the one before.

        What is wrong with such a feed, if anything, is for others to say.
        """
        if type(feed) is not dict or len(feed) != len(self._expected):
            return None
        for name, dtype, shape in self._expected:
            array = feed.get(name)
            if type(array) is not np.ndarray or array.shape != shape or array.dtype != dtype:
                return None
        if self._alone is not None:
            return self._run_alone(*self._alone, feed)
        if not self._plans.take_again(self.lease):
            return None
        try:
            return self._plan.run(feed, self._outputs, _never)
        finally:
            self._plans.give(self.lease)

    def _run_alone(
        self, bound: BoundStep, given: Sequence[str], order: Sequence[int], feed: Mapping[str, Any]
    ) -> Done | None:
        # ONNX Runtime's session lives as long as somebody holds it: to close the plan meanwhile takes nothing from it.
        if self.lease.dropped:
            return None
        self.lease.again += 1
        started = time.perf_counter()
        results = bound.pool.compute([feed[name] for name in given])
        seconds = bound.seconds = time.perf_counter() - started
        run = StepRun(bound.step.segment, bound.step.device, seconds)
        return [results[index] for index in order], Provenance((run,))


def _never() -> bool:
    return False
