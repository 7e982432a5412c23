"""The plans of one model, made when shapes of inputs are first seen.

The first shapes get a plan of their own, which knows every size. Most models are never run at others. Where one is, a
plan is made that leaves sizes open, if its devices can (`planning.opening`), and serves further shapes. It serves the
first too, if they were run only once: two plans hold weights twice. A model with a cache that grows gets such a plan at
once. Where devices cannot, every set of shapes has a plan of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import proxy

from nnadapter.drivers.onnxruntime.program import not_counting, pools_held
from nnadapter.drivers.tensor_copies import on_host
from nnadapter.engine.compilation import Compiler
from nnadapter.engine.compiled import Compiled
from nnadapter.engine.dynamic_plans import FixedSizesError, OpenPlans
from nnadapter.engine.fallback import refuse_fallback
from nnadapter.engine.plan_source import InputShapes, LeasedPlan, ShapeTest
from nnadapter.engine.plan_store import PlanCache
from nnadapter.engine.specialization import SpecializedPlans
from nnadapter.errors import CompilationError, InvalidModelError
from nnadapter.ir.operand import Array
from nnadapter.offering.feeds import feed_for
from nnadapter.onnx.preparation.prepare import Prepared
from nnadapter.onnx.signature import Shapes
from nnadapter.planning.judgment import Judgment
from nnadapter.planning.opening import ShapeDependentRefusal, is_worth_it, partition_dynamic, with_dynamic_verdicts
from nnadapter.planning.planner import Planner
from nnadapter.planning.setting import Setting
from nnadapter.planning.settling import Partitioning
from nnadapter.process.forking import new_lock
from nnadapter.traces.trace import PLAN, SESSION
from partition.verdict import Unsupported

if TYPE_CHECKING:
    from nnadapter.engine.measuring import Measurer


_Made = TypeVar("_Made")


@dataclass(frozen=True, eq=False, kw_only=True)
class SessionPlans:
    """What the plans of a session share."""

    plans: PlanCache[Compiled]
    setting: Setting
    compiler: Compiler
    measurer: Measurer | None
    """None where nothing is timed."""
    withdrawn_nodes: Mapping[str, Mapping[str, Unsupported]]
    """See `Planner.withdrawn_nodes`."""
    inputs: tuple[str, ...]
    """Names of everything that may be fed."""
    defaults: Mapping[str, Array]
    limit: int
    """How many plans are kept."""
    may_leave_open: bool


class ModelPlans:
    """The plans of one model; usable from many threads at once.

    Args:
        session: what they share with others of the session.
        prepared: the model.
        refused: see `Planner.refused_by_host`.
        number: tells its plans from those of the session's other models; 0 for the first.
        admits: raises what keeps a plan from being used, before it is compiled, and afterwards.
    """

    def __init__(
        self,
        session: SessionPlans,
        prepared: Prepared,
        refused: dict[str, Unsupported],
        number: int = 0,
        admits: Callable[[Partitioning], None] | None = None,
    ) -> None:
        self._session, self._setting, self._plans = session, session.setting, session.plans
        self.planner = Planner(prepared, session.setting, refused, session.withdrawn_nodes)
        self._number, self._admits = number, admits
        self._switching = new_lock()
        self._first: InputShapes | None = None
        """The shapes that have a plan of their own though others need none; empty where nobody came back to them."""
        self._first_is_prepared = False
        """Somebody asked for their plan before a run: it stays."""
        own: ModelPlans = proxy(self)  # in a cycle its weights would stay until Python looks for cycles
        self.open = OpenPlans(
            self._plans,
            session.setting,
            session.inputs,
            lambda: own.planner.prepared,
            lambda shapes: own._make_open(shapes),
            lambda: [partitioning.model.shapes for partitioning in own._partitionings()],
            session.limit,
            number,
        )

    @property
    def sizes_text(self) -> str:
        """Which shapes a plan serves, in words; empty as long as only one set of them was seen."""
        return self.open.text(" but the first" if self._first else "")

    def take(self, use: object, shapes: InputShapes, feed: Mapping[str, Any] | None = None) -> LeasedPlan[Compiled]:
        """The plan for these shapes of the inputs: of its own for the first, then one for many, where there is one.

        A model with a cache comes again with other shapes, so it gets one for many at once.
        """
        if self._first is None:
            self._first, self._first_is_prepared = () if self.open.growing else shapes, feed is None
        has_own = shapes == self._first or not self._session.may_leave_open
        taken = None if has_own else self.open.take(use, shapes)
        return taken or (*self._plans.take(use, self._key(shapes), lambda: self._make(shapes, feed)), None)

    def take_open(self, use: object, shapes: InputShapes) -> LeasedPlan[Compiled] | None:
        """The plan for many shapes that serves these, made now if there is none; None where none may be."""
        self.open.try_again()
        return self.open.take(use, shapes)

    def may_serve(self, shapes: InputShapes) -> bool:
        """See `PlanSource.may_serve`."""
        return shapes != self._first

    def serves(self, compiled: Compiled, declares: Callable[[Shapes], bool]) -> ShapeTest | None:
        """See `PlanSource.serves`, and `OpenPlan.serves`."""
        return self.open.serves(compiled.opening, declares)

    def partition_at(self, shapes: Shapes) -> Partitioning:
        """What would be compiled at these shapes."""
        return self._planned(lambda planner: planner.settle(planner.judge(shapes)))

    def at_shapes(self, compiled: Compiled, shapes: Shapes) -> Compiled:
        """A plan that leaves sizes open, told at these shapes, if the same runs where."""
        at_last = self.planner.settle(self.planner.judge(shapes))
        if _nodes_of(at_last) != _nodes_of(compiled.partitioning):  # not so perhaps where something is empty
            return compiled
        return replace(compiled, partitioning=at_last)

    def close(self) -> None:
        """Drop the classes of shapes, and what other shapes would share; plans are dropped with the session's."""
        self.open.close()
        self.planner.clear()

    def _key(self, shapes: InputShapes) -> Hashable:
        """What a plan for these shapes alone is kept under."""
        return (self._number, shapes) if self._number else shapes

    def _make_open(self, shapes: Shapes) -> Compiled:
        """The plan at these shapes with its sizes left open.

        Raises:
            FixedSizesError: there is none.
        """
        compiled = self._planned(lambda planner: self._compiled_open(planner, shapes))
        if isinstance(compiled, SpecializedPlans):
            return compiled  # each set of shapes has a plan of its own, so the first may stay
        first = self._first
        stays = self._first_is_prepared or not (first and self._plans.drop_unless_used_again(self._key(first)))
        if not (stays and self._session.limit > 1):
            self._first = ()
        return compiled

    def _compiled_open(self, planner: Planner, shapes: Shapes) -> Compiled:
        if self._session.measurer is not None:
            return self._measured_open(planner, shapes, self._session.measurer)
        known = (
            cached_partitioning
            for cached_partitioning in self._partitionings()
            if cached_partitioning.model.shapes == shapes
        )
        partitioning = next(known, None) or planner.settle(planner.judge(shapes))
        self._admit(partitioning)
        with self._setting.trace.span(SESSION, PLAN, "leave sizes open"):
            plan = partition_dynamic(partitioning)
            judgment = with_dynamic_verdicts(partitioning) if isinstance(plan, Unsupported) else None
            elsewhere = None if judgment is None else planner.settle(judgment)
            if elsewhere is not None and is_worth_it(elsewhere, partitioning):
                partitioning = elsewhere
                self._admit(partitioning)
                plan = partition_dynamic(partitioning)
        if isinstance(plan, Unsupported):
            raise FixedSizesError(plan.detail, is_for_all=not isinstance(plan, ShapeDependentRefusal))
        refuse_fallback(partitioning)
        try:
            return self._session.compiler.compile_open(partitioning, plan)
        except CompilationError as error:
            raise FixedSizesError(str(error)) from error

    def _measured_open(self, planner: Planner, shapes: Shapes, measurer: Measurer) -> Compiled:
        """What is fastest at these shapes, with its sizes left open; for shapes like these (`OpenPlan`).

        Raises:
            FixedSizesError: it cannot be, or that takes the gain away.
        """
        known = next(
            (cached_plan for cached_plan in self._kept_plans() if cached_plan.partitioning.model.shapes == shapes), None
        )
        arrays, others = self._made_up(planner, shapes), pools_held()
        fastest = known or measurer.choose(planner, planner.judge(shapes), arrays, made_up=True)
        try:
            self._admit(fastest.partitioning)
            plan = partition_dynamic(fastest.partitioning)
            if isinstance(plan, Unsupported):
                raise FixedSizesError(plan.detail, is_for_all=not isinstance(plan, ShapeDependentRefusal))
            with not_counting(pools_held() - others if known is None else 0):
                compiled = self._session.compiler.compile_open(fastest.partitioning, plan)
        except CompilationError as error:
            raise FixedSizesError(str(error)) from error
        finally:
            if known is None:
                fastest.close()
        return measurer.open_as(compiled, fastest, shapes, arrays)

    def _kept_plans(self) -> list[Compiled]:
        """Those for one set of shapes."""
        prepared = self.planner.prepared
        plans = (plan for plan in self._plans.kept if not plan.has_dynamic_shapes)
        return [plan for plan in plans if plan.partitioning.model.prepared is prepared]

    def _partitionings(self) -> list[Partitioning]:
        """Of the plans for one set of shapes, as they were compiled."""
        return [plan.partitioning for plan in self._kept_plans()]

    def _made_up(self, planner: Planner, shapes: Shapes) -> Mapping[str, Array]:
        """Seeded input of these shapes."""
        return {**self._session.defaults, **feed_for(planner.prepared, shapes)}

    def _make(self, shapes: InputShapes, feed: Mapping[str, Any] | None = None) -> Compiled:
        """The plan for these shapes of the inputs; with a feed of that shape, if there is one."""
        known = {name: shape for name, shape in zip(self._session.inputs, shapes, strict=True) if shape is not None}
        return self._planned(lambda planner: self._compiled(planner, planner.judge(known), feed))

    def _planned(self, work: Callable[[Planner], _Made]) -> _Made:
        """Do what takes a planner; once more over the model with its branches, where that may help.

        ONNX Runtime loads what contradicts itself inside of an `If`, as long as it stays there.
        """
        planner = self.planner
        try:
            return work(planner)
        except (CompilationError, InvalidModelError):
            if planner.prepared.original is None:
                raise
            return work(self._with_branches(planner))

    def _with_branches(self, failed: Planner) -> Planner:
        """The planner of the model with its branches; threads that fail with one planner get the same next one."""
        with self._switching:
            if self.planner is failed:
                assert failed.prepared.original is not None, "there is a model with its branches"
                self.planner = Planner(failed.prepared.original, self._setting, {}, self._session.withdrawn_nodes)
            return self.planner

    def _compiled(self, planner: Planner, judgment: Judgment, feed: Mapping[str, Any] | None) -> Compiled:
        measurer, compiler = self._session.measurer, self._session.compiler
        if measurer is None:
            if self._admits is not None:
                self._admit(planner.settle(judgment))
            return compiler.compile(planner, judgment)
        made_up = feed is None
        if feed is None:
            arrays = self._made_up(planner, judgment.model.shapes)
        else:
            arrays = {name: on_host(value) for name, value in feed.items()}
        compiled = measurer.choose(planner, judgment, arrays, made_up=made_up)
        try:
            self._admit(compiled.partitioning)
        except BaseException:
            compiled.close()
            raise
        return compiled

    def _admit(self, partitioning: Partitioning) -> None:
        if self._admits is not None:
            self._admits(partitioning)


def _nodes_of(partitioning: Partitioning) -> Sequence[tuple[str, Sequence[str]]]:
    """What runs where."""
    nodes = partitioning.plan.graph.nodes
    return [(step.device, [nodes[node].name for node in step.nodes]) for step in partitioning.plan.steps]
