"""Plans of one model, made when input shapes are first seen.

The first shapes get a static plan, since most models never run at others. Other shapes share dynamic plans if devices
support them. A dynamic plan replaces a static plan that ran only once, to avoid two copies of the weights. A model with
a growing cache gets a dynamic plan at once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import proxy

from nnadapter.candidates.random_feeds import feed_for
from nnadapter.drivers.onnxruntime.program import not_counting, pools_held
from nnadapter.drivers.tensor_copies import on_host
from nnadapter.engine.compilation import Compiler
from nnadapter.engine.compiled import Compiled
from nnadapter.engine.dynamic_plans import FixedSizesError
from nnadapter.engine.fallback import refuse_fallback
from nnadapter.engine.model_dynamic_plans import ModelDynamicPlans
from nnadapter.engine.plan_source import InputShapes, LeasedPlan
from nnadapter.engine.plan_store import PlanCache
from nnadapter.errors import CompilationError, InvalidModelError
from nnadapter.ir.operand import Array
from nnadapter.onnx.preparation.prepare import Prepared
from nnadapter.onnx.signature import Shapes
from nnadapter.planning import dynamic_shapes
from nnadapter.planning.judgment import Judgment
from nnadapter.planning.planner import Planner
from nnadapter.planning.setting import Setting
from nnadapter.planning.settling import Partitioning
from nnadapter.process.resources import new_lock
from nnadapter.records import dataclass, replace
from nnadapter.traces.trace import PLAN, SESSION
from partition.graph import Unsupported

if TYPE_CHECKING:
    from nnadapter.engine.measuring import Measurer


_Planned = TypeVar("_Planned")


@dataclass(frozen=True, eq=False, kw_only=True)
class SessionPlans:
    """State that the plans of a session share."""

    plans: PlanCache[Compiled]
    setting: Setting
    compiler: Compiler
    measurer: Measurer | None
    """Chooses placements by measurement; None for other policies."""
    withdrawn_nodes: Mapping[str, Mapping[str, Unsupported]]
    """Nodes that a device does not get in this session, with reasons."""
    inputs: tuple[str, ...]
    defaults: Mapping[str, Array]
    limit: int
    allows_dynamic: bool
    """False if every set of shapes gets a static plan."""


class ModelPlans:
    """Static and dynamic plans of one model. Thread-safe.

    Args:
        number: distinguishes its plans from other models' plans.
        check_partitioning: raises if a plan must not be used; called before and after compilation.
    """

    def __init__(
        self,
        session: SessionPlans,
        prepared: Prepared,
        refused: dict[str, Unsupported],
        number: int = 0,
        check_partitioning: Callable[[Partitioning], None] | None = None,
    ) -> None:
        self._session, self._setting, self._plans = session, session.setting, session.plans
        self.planner = Planner(prepared, session.setting, refused, session.withdrawn_nodes)
        self._number, self._check_partitioning = number, check_partitioning
        self._switching = new_lock()
        self._static_shapes: InputShapes | None = None
        """Shapes with a static plan besides dynamic plans: () if there are none, None before the first request."""
        self._is_static_prepared = False
        """True if the static plan was prepared explicitly, and so is not dropped."""
        reference: ModelPlans = proxy(self)  # a reference cycle would keep the weights until garbage collection
        self.dynamic = ModelDynamicPlans(
            self._plans,
            session.setting,
            session.inputs,
            lambda: reference.planner.prepared,
            lambda shapes: reference._make_dynamic(shapes),
            lambda: [compiled.partitioning.model.shapes for compiled in reference._static_plans()],
            session.limit,
            number,
        )

    @property
    def served_shapes_text(self) -> str:
        return self.dynamic.describe(" but the first" if self._static_shapes else "")

    def take(self, use: object, shapes: InputShapes, feed: Mapping[str, Any] | None = None) -> LeasedPlan[Compiled]:
        """Return the plan for these input shapes: a static one for the first shapes, then a dynamic one if possible.

        `feed` are the inputs of the run, for measurements.
        """
        if self._static_shapes is None:
            self._static_shapes = () if self.dynamic.growing else shapes
            self._is_static_prepared = feed is None
        is_static = shapes == self._static_shapes or not self._session.allows_dynamic
        leased = None if is_static else self.dynamic.take(use, shapes)
        return leased or (*self._plans.take(use, self._key(shapes), lambda: self._make_static(shapes, feed)), None)

    def take_dynamic(self, use: object, shapes: InputShapes) -> LeasedPlan[Compiled] | None:
        """Return the dynamic plan for these input shapes, even if earlier shapes allowed none."""
        self.dynamic.retry()
        return self.dynamic.take(use, shapes)

    def may_serve(self, shapes: InputShapes) -> bool:
        return shapes != self._static_shapes

    def partition_at(self, shapes: Shapes) -> Partitioning:
        return self._with_planner(lambda planner: planner.settle(planner.judge(shapes)))

    def at_shapes(self, compiled: Compiled, shapes: Shapes) -> Compiled:
        """Return a dynamic plan with the partitioning at these shapes, or unchanged if its steps differ there."""
        partitioning = self.planner.settle(self.planner.judge(shapes))
        if _nodes_by_step(partitioning) != _nodes_by_step(compiled.partitioning):
            return compiled
        return replace(compiled, partitioning=partitioning)

    def close(self) -> None:
        self.dynamic.close()
        self.planner.clear()

    def _key(self, shapes: InputShapes) -> Hashable:
        return (self._number, shapes) if self._number else shapes

    def _make_static(self, shapes: InputShapes, feed: Mapping[str, Any] | None) -> Compiled:
        known = {name: shape for name, shape in zip(self._session.inputs, shapes, strict=True) if shape is not None}
        return self._with_planner(lambda planner: self._compile_static(planner, planner.judge(known), feed))

    def _compile_static(self, planner: Planner, judgment: Judgment, feed: Mapping[str, Any] | None) -> Compiled:
        measurer, compiler = self._session.measurer, self._session.compiler
        if measurer is None:
            if self._check_partitioning is not None:
                self._check_partitioning(planner.settle(judgment))
            return compiler.compile(planner, judgment)
        if feed is None:
            arrays = self._random_feed(planner, judgment.model.shapes)
        else:
            arrays = {name: on_host(value) for name, value in feed.items()}
        compiled = measurer.choose(planner, judgment, arrays, made_up=feed is None)
        try:
            self._check(compiled.partitioning)
        except BaseException:
            compiled.close()
            raise
        return compiled

    def _make_dynamic(self, shapes: Shapes) -> Compiled:
        compiled = self._with_planner(lambda planner: self._compile_dynamic(planner, shapes))
        if compiled.is_template:
            # Each set of shapes has a specialized plan of its own, so the static plan for the first shapes may stay.
            return compiled
        first = self._static_shapes
        stays = self._is_static_prepared or not (first and self._plans.drop_unless_used_again(self._key(first)))
        if not (stays and self._session.limit > 1):
            self._static_shapes = ()
        return compiled

    def _compile_dynamic(self, planner: Planner, shapes: Shapes) -> Compiled:
        static_plan = next((plan for plan in self._static_plans() if plan.partitioning.model.shapes == shapes), None)
        if self._session.measurer is not None:
            return self._compile_measured(planner, shapes, static_plan, self._session.measurer)
        partitioning = static_plan.partitioning if static_plan else planner.settle(planner.judge(shapes))
        self._check(partitioning)
        with self._setting.trace.span(SESSION, PLAN, "partition with dynamic shapes"):
            dynamic = dynamic_shapes.partition_dynamic(partitioning)
            judgment = dynamic_shapes.with_dynamic_verdicts(partitioning) if isinstance(dynamic, Unsupported) else None
            elsewhere = None if judgment is None else planner.settle(judgment)
            if elsewhere is not None and dynamic_shapes.is_worth_it(elsewhere, partitioning):
                partitioning = elsewhere
                self._check(partitioning)
                dynamic = dynamic_shapes.partition_dynamic(partitioning)
        dynamic = _possible(dynamic)
        refuse_fallback(partitioning)
        try:
            return self._session.compiler.compile_dynamic(partitioning, dynamic)
        except CompilationError as error:
            raise FixedSizesError(str(error)) from error

    def _compile_measured(
        self, planner: Planner, shapes: Shapes, static_plan: Compiled | None, measurer: Measurer
    ) -> Compiled:
        """Compile a dynamic plan of the fastest placement; raise FixedSizesError if it is impossible or too slow."""
        feed, other_pools = self._random_feed(planner, shapes), pools_held()
        fastest = static_plan or measurer.choose(planner, planner.judge(shapes), feed, made_up=True)
        try:
            self._check(fastest.partitioning)
            dynamic = _possible(dynamic_shapes.partition_dynamic(fastest.partitioning))
            with not_counting(pools_held() - other_pools if static_plan is None else 0):
                compiled = self._session.compiler.compile_dynamic(fastest.partitioning, dynamic)
        except CompilationError as error:
            raise FixedSizesError(str(error)) from error
        finally:
            if static_plan is None:
                fastest.close()
        return measurer.check_dynamic(compiled, fastest, shapes, feed)

    def _static_plans(self) -> list[Compiled]:
        prepared = self.planner.prepared
        plans = (plan for plan in self._plans.cached if not plan.has_dynamic_shapes)
        return [plan for plan in plans if plan.partitioning.model.prepared is prepared]

    def _random_feed(self, planner: Planner, shapes: Shapes) -> Mapping[str, Array]:
        return {**self._session.defaults, **feed_for(planner.prepared, shapes)}

    def _with_planner(self, work: Callable[[Planner], _Planned]) -> _Planned:
        """Call `work` with the planner. If that fails, call it again with the planner of the model with all branches.

        ONNX Runtime loads an `If` with contradictory branches, but not the selected branch alone.
        """
        planner = self.planner
        try:
            return work(planner)
        except (CompilationError, InvalidModelError):
            if planner.prepared.original is None:
                raise
            return work(self._planner_with_branches(planner))

    def _planner_with_branches(self, failed: Planner) -> Planner:
        """Return the planner of the model with all branches; concurrent failures share it."""
        with self._switching:
            if self.planner is failed:
                assert failed.prepared.original is not None, "there is a model with its branches"
                self.planner = Planner(failed.prepared.original, self._setting, {}, self._session.withdrawn_nodes)
            return self.planner

    def _check(self, partitioning: Partitioning) -> None:
        if self._check_partitioning is not None:
            self._check_partitioning(partitioning)


def _possible(
    dynamic: dynamic_shapes.DynamicPartitioning | Unsupported,
) -> dynamic_shapes.DynamicPartitioning:
    if isinstance(dynamic, Unsupported):
        is_for_all = not isinstance(dynamic, dynamic_shapes.ShapeDependentRefusal)
        raise FixedSizesError(dynamic.detail, is_for_all=is_for_all)
    return dynamic


def _nodes_by_step(partitioning: Partitioning) -> Sequence[tuple[str, Sequence[str]]]:
    nodes = partitioning.plan.graph.nodes
    return [(step.device, [nodes[node].name for node in step.nodes]) for step in partitioning.plan.steps]
