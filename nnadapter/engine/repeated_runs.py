"""Repeated runs that reuse the previous run's decisions and checks, and plans of a single step.

The run after another one like it: what was decided and checked for that one holds for this one too.

A feed with the data types and shapes of the run before needs no other plan, and its arrays are what the model declares.
That is told by looking at each array once; everything else is left out. One with other shapes of the class that the
plan serves needs their numbers besides. Where all of the plan is one step on the CPU, nothing is left but to call ONNX
Runtime, with the person's own feed; where it is one on a device, to call that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from nnadapter.drivers.boundary import check_results, copied, read_only
from nnadapter.drivers.tensor_copies import TENSORS
from nnadapter.engine.bound_steps import BoundStep, own_value
from nnadapter.engine.execution_pool import ExecutionPool
from nnadapter.engine.executor import CompiledPlan
from nnadapter.engine.plan_source import BranchTest, RunResult
from nnadapter.engine.plan_store import Lease, PlanCache
from nnadapter.engine.provenance import Provenance, of_one
from nnadapter.engine.shape_sets import ShapeTest
from nnadapter.errors import FAILURES
from nnadapter.onnx.signature import Signature

if TYPE_CHECKING:
    from nnadapter.drivers.onnxruntime.sessions import SessionExecution
    from nnadapter.engine.compiled import RunnablePlan


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


_Run = Callable[[Sequence[str], Mapping[str, Any]], list[Any]]

_ARRAYS = {np.ndarray}


class Repeat:
    """A plan, and the feeds that it takes as they are.

    Args:
        plans: where the plan is kept.
        lease: of the plan.
        compiled: the plan.
        signature: of the model.
        feed: of the run before, checked.
        sizes: what the plan was told of them; None for one that is told none.
        serves: says which other shapes the plan serves; None where it serves none, or that takes looking at the model.
        fits: says whether a feed like `feed` chooses the same branches; None where feeds choose none.
    """

    __slots__ = (
        "_alone", "_direct", "_expected", "_fits", "_outputs", "_plan", "_plans", "_run_plan", "_serves", "_watch",
        "is_broken", "lease",
    )  # fmt: skip

    def __init__(
        self,
        plans: PlanCache[Any],
        lease: Lease[Any],
        compiled: RunnablePlan,
        signature: Signature,
        feed: Mapping[str, Any],
        sizes: Sequence[Any] | None = None,
        serves: ShapeTest | None = None,
        fits: BranchTest | None = None,
    ) -> None:
        self.lease, self._plans, self._plan = lease, plans, compiled.plan
        self._serves = serves
        self._watch, self._fits = compiled.watch, fits
        self.is_broken = False
        """Runs have contradicted what was measured, see `Compiled.watch`."""
        self._outputs = signature.output_names
        alone = compiled.plan.alone(self._outputs)
        self._alone = alone if alone is not None and not alone[0].guarded else None
        self._run_plan: Callable[[Mapping[str, Any]], RunResult] = (
            SingleStep(compiled.plan, self._outputs, *alone).run
            if alone is not None and sizes is None
            else partial(compiled.plan.run, wanted=self._outputs, sizes=sizes)
        )
        dtypes = signature.dtypes
        expected = tuple(
            [
                (name, dtypes[name], value.shape)
                for name, value in feed.items()
                if type(value) is np.ndarray and name in dtypes
            ]
        )
        self._expected = expected if len(expected) == len(feed) else ()
        self._direct: tuple[BoundStep, _Run] | None = None
        """The one step, and ONNX Runtime's session as it stands behind that, where the names are the model's."""

    @property
    def is_of_choice(self) -> bool:
        """Whether it takes no feeds but those that choose the same branches."""
        return self._fits is not None

    def run(self, feed: Any) -> RunResult | None:
        """Run the plan for all outputs; None, and nothing done, if the feed is not like the one before.

        What is wrong with such a feed, if anything, is for others to say.
        """
        if type(feed) is not dict or len(feed) != len(self._expected):
            return None
        for name, dtype, shape in self._expected:
            array = feed.get(name)
            if type(array) is not np.ndarray or array.shape != shape:
                return None
            if array.dtype is not dtype and array.dtype != dtype:  # nearly always the same object
                return None
        if self._fits is not None and not self._fits(feed):
            return None
        return self.run_like(feed)

    def run_like(self, feed: Mapping[str, Any]) -> RunResult | None:
        """Run the plan by a feed that was looked at; None, and nothing done, if the plan is not kept any more."""
        direct = self._direct
        if direct is not None:
            return self._run_directly(direct[0], direct[1], feed)
        if self._alone is not None:
            return self._run_alone(*self._alone, feed)
        use = object()
        try:
            if not self._plans.take_again(use, self.lease):
                return None
            done = self._run_plan(feed)
            if self._watch is not None:
                self.is_broken = self._watch.is_broken_by(done[1].seconds, time.perf_counter())
            return done
        finally:
            self._plans.users.pop(use, None)
            self._plans.close_unused()
            TENSORS.free_orphans()

    def at_other_sizes(self, feed: Any, names: Sequence[str]) -> tuple[Repeat, tuple[tuple[int, ...], ...]] | None:
        """The same for a feed that differs from the last one in shapes; None if it needs another plan.

        Args:
            feed: as it came.
            names: of all inputs, in order.

        Returns:
            Also the shapes, in that order.
        """
        expected = self._expected
        if self._serves is None or type(feed) is not dict or not len(feed) == len(expected) == len(names):
            return None
        fed, dtypes, _ = zip(*expected, strict=True)
        arrays: list[Any] = list(map(feed.get, fed))
        if {*map(type, arrays)} != _ARRAYS or [array.dtype for array in arrays] != list(dtypes):
            return None
        by_name = dict(zip(fed, [array.shape for array in arrays], strict=True))
        is_served, sizes = self._serves(by_name)
        if not is_served or (self._fits is not None and not self._fits(feed)):
            return None
        other = Repeat.__new__(Repeat)
        other.lease, other._plans, other._plan = self.lease, self._plans, self._plan
        other._watch, other.is_broken, other._outputs = self._watch, False, self._outputs
        other._fits, other._serves = self._fits, self._serves
        other._expected = tuple(zip(fed, dtypes, by_name.values(), strict=True))
        other._alone = other._direct = None
        if sizes is None:  # nothing of it hangs on them
            other._alone, other._direct, other._run_plan = self._alone, self._direct, self._run_plan
        else:
            other._run_plan = partial(self._plan.run, wanted=self._outputs, sizes=sizes)
        return other, tuple(map(by_name.__getitem__, names))

    def _run_alone(
        self, bound: BoundStep, input_names: Sequence[str], order: Sequence[int], feed: Mapping[str, Any]
    ) -> RunResult | None:
        from nnadapter.drivers.onnxruntime.sessions import SessionExecution  # where the CPU runs all, it is there

        execution = bound.pool.shared
        if isinstance(execution, SessionExecution) and self._named_alike(execution, input_names, order):
            self._direct = (bound, execution.run)
            return self._run_directly(*self._direct, feed)
        return self._run_directly(bound, partial(_by_position, bound.pool, input_names, order), feed)

    def _run_directly(self, bound: BoundStep, run: _Run, feed: Mapping[str, Any]) -> RunResult | None:
        # ONNX Runtime's session lives as long as somebody holds it: to close the plan meanwhile takes nothing from it.
        lease = self.lease
        if lease.dropped:
            return None
        lease.again += 1
        started = time.perf_counter()
        results = run(self._outputs, feed)
        ended = time.perf_counter()
        seconds = bound.seconds = ended - started
        if self._watch is not None:
            self.is_broken = self._watch.is_broken_by(seconds, ended)
        return results, of_one(bound.step.segment, bound.step.device, seconds)

    def _named_alike(self, execution: SessionExecution, input_names: Sequence[str], order: Sequence[int]) -> bool:
        """Whether ONNX Runtime's session takes the feed and gives the outputs by their names in the model."""
        fed = {name for name, _, _ in self._expected}
        made = tuple(execution.output_names[index] for index in order)
        return execution.input_names == tuple(input_names) and fed == set(input_names) and made == tuple(self._outputs)


def _by_position(
    pool: ExecutionPool, input_names: Sequence[str], order: Sequence[int], names: Sequence[str], feed: Mapping[str, Any]
) -> list[Any]:
    results = pool.compute([feed[name] for name in input_names])
    return [results[index] for index in order]
