"""Plans of one model, made when input shapes are first seen.

The first shapes get a static plan, since most models never run at others. Other shapes share dynamic plans if the
devices support them. A dynamic plan replaces a static plan that ran only once, since two plans hold weights twice. A
model with a growing cache gets a dynamic plan at once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import proxy

from nnadapter.candidates.conversions import feed_for
from nnadapter.drivers.onnxruntime.program import not_counting, pools_held
from nnadapter.drivers.tensor_copies import on_host
from nnadapter.engine.compilation import Compiler
from nnadapter.engine.compiled import Compiled
from nnadapter.engine.dynamic_plans import DynamicPlan, DynamicPlans, FixedSizesError
from nnadapter.engine.fallback import refuse_fallback
from nnadapter.engine.plan_source import InputShapes, LeasedPlan
from nnadapter.engine.plan_store import PLAN_FOR_EACH, ExistingOnly, PlanCache
from nnadapter.engine.shape_sets import ProbedBounds, ShapeSet, ShapeTest
from nnadapter.errors import CompilationError, InvalidModelError
from nnadapter.ir.operand import Array
from nnadapter.onnx.preparation.default_sizes import agreeing, next_token_shapes
from nnadapter.onnx.preparation.prepare import Prepared
from nnadapter.onnx.signature import Shapes
from nnadapter.planning.bounds import Bounds, nearby
from nnadapter.planning.dynamic_shapes import (
    DynamicPartitioning,
    ShapeDependentRefusal,
    growing_inputs,
    is_full,
    is_worth_it,
    partition_dynamic,
    unread_inputs,
    with_dynamic_verdicts,
)
from nnadapter.planning.judgment import Judgment
from nnadapter.planning.planner import Planner
from nnadapter.planning.setting import Setting
from nnadapter.planning.settling import Partitioning
from nnadapter.process.resources import Cache, new_lock
from nnadapter.records import dataclass, replace
from nnadapter.traces.trace import PLAN, SESSION, WAIT
from partition.graph import Unsupported

if TYPE_CHECKING:
    from nnadapter.engine.measuring import Measurer


_Planned = TypeVar("_Planned")


_MOST_CHECKED = 256
_MOST_UNSERVED = 256
_MOST_REASONS = 3
_MOST_IN_VAIN = 4
"""Number of consecutive plans that served no other shapes, after which new ones are tried only rarely."""


class ModelDynamicPlan(DynamicPlan):
    """Dynamic plan of a model.

    Args:
        made_at: shapes at which it is made.
        is_cost_dependent: costs at those shapes decided the placement, so it serves only shapes near them.
    """

    key: tuple[str, int]

    def __init__(self, key: tuple[str, int], made_at: Shapes, *, is_cost_dependent: bool = False) -> None:
        super().__init__(key, None, is_template=False)
        self.made_at = made_at
        self.dynamic: DynamicPartitioning | None = None
        self.probed: ProbedBounds | None = None
        self._vicinity = nearby(made_at) if is_cost_dependent else None
        self._checked: Cache[object, bool] = Cache("shapes whose indices were checked", _MOST_CHECKED)

    def complete(self, compiled: Compiled) -> Compiled:
        """Return a plan with the shapes that it serves; bounds probed for an evicted predecessor are reused."""
        opening = compiled.dynamic
        assert opening is not None, "the plan has dynamic shapes"
        if opening.is_looked_through and self.probed is None:
            model = compiled.partitioning.model
            prepared, nodes = model.prepared, model.specialized.positions
            self.probed = ProbedBounds(
                Bounds(self.made_at, self.made_at, unread_inputs(prepared)),
                lambda shapes: is_full(prepared, nodes, shapes),
                partial(agreeing, prepared),
            )

        def indices_hold(shapes: Shapes) -> bool:
            return self._checked.get_or_make(tuple(shapes.values()), lambda: opening.indices_hold(shapes))

        self.shapes = ShapeSet(opening.sizes, self.probed, self._vicinity, indices_hold if opening.unchecked else None)
        self.dynamic, self.is_template = opening, bool(opening.fillable)
        return replace(compiled, shapes=self.shapes)

    def why_not(self, shapes: Shapes) -> str:
        return "other nodes remain after folding" if self.shapes is None else self.shapes.why_not(shapes)


class ModelDynamicPlans(DynamicPlans[Compiled]):
    """Dynamic plans of a model. Thread-safe.

    `planned_at` returns shapes with static plans; `make` reuses their verdicts. The least recently used plan is dropped
    first.
    """

    _entries: tuple[ModelDynamicPlan, ...]

    def __init__(
        self,
        plans: PlanCache[Compiled],
        setting: Setting,
        inputs: Sequence[str],
        prepared: Callable[[], Prepared],
        make: Callable[[Shapes], Compiled],
        planned_at: Callable[[], Iterable[Shapes]],
        limit: int,
        number: int = 0,
    ) -> None:
        super().__init__(plans, limit, "shapes that are not filled")
        self._limit, self._count, self._planned_at = limit, 0, planned_at
        self._key_name = f"open {number}" if number else "open"
        self._inputs, self._prepared, self._make_at = inputs, prepared, make
        self._trace, self._weighs = setting.trace, setting.constraints.policy.weighs
        takes_ir = {device.takes_ir for device in setting.devices if device.accelerates}
        self.needs_elements = False in takes_ir
        """True if a device takes ONNX. Empty tensors then need plans of their own, except an empty key/value cache."""
        self._is_made_with_elements = takes_ir == {False}
        """True if all devices take ONNX. Plans are then made without empty tensors, which only IR guards cover."""
        self._reasons: list[str] = []
        self._in_vain = 0
        self._wanted = 0
        self._refusal = ""
        self._is_impossible = False
        self._making, self._ordering = new_lock(), new_lock()
        self._growing: Mapping[str, int] | None = None

    @property
    def widened(self) -> int:
        return sum(entry.probed.widened for entry in self._entries if entry.probed is not None)

    def describe(self, exempt: str) -> str:
        """Return a report text on the shapes that the plans serve, or on why there is no plan."""
        if self._refusal:
            return f"{PLAN_FOR_EACH}: {self._refusal}"
        if not self._entries:
            return ""
        static_reason = next((entry.dynamic.why_fixed for entry in self._entries if entry.dynamic is not None), "")
        noun, plural = ("class", "classes") if static_reason else ("plan", "plans")
        count = f"one {noun}" if self._count == 1 else f"{self._count} {plural}"
        shown = [*self._reasons[:_MOST_REASONS], *(["others"] if len(self._reasons) > _MOST_REASONS else [])]
        reasons = f"; one more when {', then when '.join(shown)}" if shown else ""
        exceptions = "; others have plans of their own" if self._in_vain >= _MOST_IN_VAIN else ""
        per_set = f", with a plan for every set of them: {static_reason}" if static_reason else ""
        return f"{count} for all input shapes{exempt}{per_set}{reasons}{exceptions}"

    def take(self, use: object, shapes: InputShapes) -> LeasedPlan[Compiled] | None:
        """Return the plan for some shapes, made if needed; None if they have a plan of their own."""
        if self._is_impossible:
            return None
        if None in shapes:
            self._refusal, self._is_impossible = "an input is not a tensor, or its shape is unknown", True
            return None
        shapes_by_name = {name: shape for name, shape in zip(self._inputs, shapes, strict=True) if shape is not None}
        if not self._may_serve(shapes_by_name):
            return None
        leased = self.take_existing(use, shapes_by_name)
        if leased is not None or type(use) is ExistingOnly or self._has_own_plan(shapes_by_name):
            return leased
        return self._take_new(use, shapes_by_name)

    def test_of(self, compiled: Compiled, declares: Callable[[Shapes], bool]) -> ShapeTest | None:
        """Return the test of the shapes that a plan serves; None for static plans.

        Bounds cover empty tensors; without bounds, `_may_serve` decides about them.
        """
        shapes, is_known = compiled.shapes, any(entry.dynamic is compiled.dynamic for entry in self._entries)
        if shapes is None or compiled.is_template or not is_known or (self.needs_elements and shapes.limits is None):
            return None
        return None if shapes.guards is None and shapes.limits is None else shapes.test(declares)

    def note_served(self) -> None:
        self._in_vain = 0

    @property
    def cached(self) -> tuple[Compiled, ...]:
        """Plans and templates that a file can hold, in order of creation."""
        cached = [*self._plans.cached, *self._templates.cached]
        # a file has no model to check indices that are computed from shapes
        savable = [plan for plan in cached if plan.shapes is not None and plan.shapes.holds_indices is None]
        entries = sorted(self._entries, key=lambda entry: entry.key[1])
        return tuple(plan for entry in entries for plan in savable if plan.dynamic is entry.dynamic)

    def retry(self) -> None:
        """Forget why no plan was possible: the first shapes may have been empty."""
        self._refusal, self._is_impossible, self._in_vain = "", False, 0

    def make(self, entry: DynamicPlan) -> Compiled:
        assert isinstance(entry, ModelDynamicPlan), "a plan of a model"
        return entry.complete(self._make_at(entry.made_at))

    def take_entry(
        self, use: object, entry: DynamicPlan, shape_set: ShapeSet, shapes: Shapes, sizes: Sequence[Any] | None
    ) -> LeasedPlan[Compiled] | None:
        """Take a plan; forget it if it cannot be made again."""
        try:
            leased = super().take_entry(use, entry, shape_set, shapes, sizes)
        except FixedSizesError:
            self.end_use(use)
            with self._ordering:
                self._entries = tuple(other for other in self._entries if other is not entry)
            return None
        if leased is not None:
            self._in_vain = 0
        return leased

    def move_to_front(self, entry: DynamicPlan) -> None:
        with self._ordering:
            super().move_to_front(entry)
            self._entries = self._entries[: self._limit]

    def drop_all(self) -> None:
        self._templates.drop_all()
        self._templates.close_unused()

    def _has_own_plan(self, shapes: Shapes) -> bool:
        sizes = tuple(shapes.values())
        refused = self._refused
        return bool(refused.get(sizes) or any(refused.get((entry.key, sizes)) for entry in self._entries))

    def _take_new(self, use: object, shapes: Shapes) -> LeasedPlan[Compiled] | None:
        wait_start = self._trace.timestamp()
        with self._making:
            leased = self.take_existing(use, shapes)
            if leased is not None:
                self._trace.add(SESSION, WAIT, "wait for a plan that another thread makes", wait_start, {})
            if leased is not None or self._is_impossible or self._has_own_plan(shapes):
                return leased
            self._wanted += 1
            if self._is_paused:
                return None
            try:
                entry, new_plan = self._make_for(shapes)
            except FixedSizesError as refusal:
                self._in_vain += 1
                self._refused.put(tuple(shapes.values()), True)
                if not self._entries:
                    self._refusal = str(refusal)
                    self._is_impossible = refusal.is_for_all
                return None
            if self._entries:
                self._reasons = [*self._reasons, self._entries[0].why_not(shapes)][: _MOST_REASONS + 1]
            self._refusal = ""
            plans = self._templates if new_plan.is_template else self._plans
            lease, compiled = plans.take(use, entry.key, lambda: new_plan)
            self._in_vain += 1
            self._count += 1
            self.move_to_front(entry)
            shape_set = self.shapes_of(entry)
            holds, sizes = shape_set.match(shapes)
            if holds and not new_plan.is_template:
                return lease, compiled, sizes
            self.end_use(use)
            return self.take_entry(use, entry, shape_set, shapes, sizes) if holds else None

    @property
    def _is_paused(self) -> bool:
        """True if no plan is tried for these shapes, since recent plans served no others.

        Earlier shapes may have been unusual, so the 8th, the 16th and so on are tried again.
        """
        return self._in_vain >= _MOST_IN_VAIN and bool(self._wanted & (self._wanted - 1))

    def _make_for(self, shapes: Shapes) -> tuple[ModelDynamicPlan, Compiled]:
        """Make the next plan. The first one reuses the verdicts of a static plan if it serves these shapes too."""
        key = (self._key_name, self._count)
        for made_at in [] if self._entries else self._planned_at():
            if not _are_similar(made_at, shapes):
                continue
            entry = ModelDynamicPlan(key, made_at, is_cost_dependent=self._weighs)
            try:
                new_plan = self.make(entry)
            except FixedSizesError:
                continue
            if self.shapes_of(entry).match(shapes)[0]:
                return entry, new_plan
            new_plan.close()
        entry = ModelDynamicPlan(key, self._with_elements(shapes), is_cost_dependent=self._weighs)
        return entry, self.make(entry)

    @property
    def growing(self) -> Mapping[str, int]:
        """Inputs that grow from run to run, with their axis. Such a model is sure to run at other shapes."""
        if self._growing is None:
            self._growing = growing_inputs(self._prepared())
        return self._growing

    @cached_property
    def _unread(self) -> frozenset[str]:
        return unread_inputs(self._prepared())

    def _may_serve(self, shapes: Shapes) -> bool:
        """Return True if devices take these tensors; for ONNX devices, only a cache may be empty."""
        return (
            not self.needs_elements
            or all(0 not in shape for shape in shapes.values())
            or all(
                size or axis == self.growing.get(name)
                for name, shape in shapes.items()
                if name not in self._unread
                for axis, size in enumerate(shape)
            )
        )

    def _with_elements(self, shapes: Shapes) -> Shapes:
        """Return the shapes at which a plan is made; for ONNX devices, a cache of one token replaces an empty one."""
        if not self._is_made_with_elements or all(0 not in shape for shape in shapes.values()):
            return shapes
        return next_token_shapes(self._prepared(), shapes)


def _are_similar(some: Shapes, other: Shapes) -> bool:
    """Return True if a plan for some shapes probably serves others: all sizes of 0 and 1 agree."""
    return all(
        [min(size, 2) for size in shape] == [min(size, 2) for size in other[name]] for name, shape in some.items()
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class SessionPlans:
    """State that the plans of a session share."""

    plans: PlanCache[Compiled]
    setting: Setting
    compiler: Compiler
    measurer: Measurer | None
    withdrawn_nodes: Mapping[str, Mapping[str, Unsupported]]
    inputs: tuple[str, ...]
    defaults: Mapping[str, Array]
    limit: int
    may_leave_open: bool


class ModelPlans:
    """Static and dynamic plans of one model. Thread-safe.

    Args:
        number: distinguishes its plans from those of the session's other models.
        admits: raises if a plan must not be used; called before and after compilation.
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
        """Shapes that keep a static plan although a dynamic plan exists; empty if there are none."""
        self._first_is_prepared = False
        """The static plan was prepared explicitly, so it is not dropped."""
        reference: ModelPlans = proxy(self)  # a reference cycle would keep the weights until garbage collection
        self.open = ModelDynamicPlans(
            self._plans,
            session.setting,
            session.inputs,
            lambda: reference.planner.prepared,
            lambda shapes: reference._make_open(shapes),
            lambda: [partitioning.model.shapes for partitioning in reference._partitionings()],
            session.limit,
            number,
        )

    @property
    def sizes_text(self) -> str:
        return self.open.describe(" but the first" if self._first else "")

    def take(self, use: object, shapes: InputShapes, feed: Mapping[str, Any] | None = None) -> LeasedPlan[Compiled]:
        """Return the plan for these input shapes: a static one for the first shapes, then a dynamic one if possible."""
        if self._first is None:
            self._first, self._first_is_prepared = () if self.open.growing else shapes, feed is None
        has_own = shapes == self._first or not self._session.may_leave_open
        leased = None if has_own else self.open.take(use, shapes)
        return leased or (*self._plans.take(use, self._key(shapes), lambda: self._make(shapes, feed)), None)

    def take_open(self, use: object, shapes: InputShapes) -> LeasedPlan[Compiled] | None:
        self.open.retry()
        return self.open.take(use, shapes)

    def may_serve(self, shapes: InputShapes) -> bool:
        return shapes != self._first

    def serves(self, compiled: Compiled, declares: Callable[[Shapes], bool]) -> ShapeTest | None:
        return self.open.test_of(compiled, declares)

    def partition_at(self, shapes: Shapes) -> Partitioning:
        return self._planned(lambda planner: planner.settle(planner.judge(shapes)))

    def at_shapes(self, compiled: Compiled, shapes: Shapes) -> Compiled:
        """Return a dynamic plan as partitioned at these shapes, if the same nodes run on the same devices."""
        at_last = self.planner.settle(self.planner.judge(shapes))
        if _nodes_of(at_last) != _nodes_of(compiled.partitioning):
            return compiled
        return replace(compiled, partitioning=at_last)

    def close(self) -> None:
        self.open.close()
        self.planner.clear()

    def _key(self, shapes: InputShapes) -> Hashable:
        return (self._number, shapes) if self._number else shapes

    def _make_open(self, shapes: Shapes) -> Compiled:
        compiled = self._planned(lambda planner: self._compiled_open(planner, shapes))
        if compiled.is_template:
            # Each set of shapes has a specialized plan of its own, so the static plan for the first shapes may stay.
            return compiled
        first = self._first
        stays = self._first_is_prepared or not (first and self._plans.drop_unless_used_again(self._key(first)))
        if not (stays and self._session.limit > 1):
            self._first = ()
        return compiled

    def _compiled_open(self, planner: Planner, shapes: Shapes) -> Compiled:
        if self._session.measurer is not None:
            return self._measured_open(planner, shapes, self._session.measurer)
        partitionings = (
            cached_partitioning
            for cached_partitioning in self._partitionings()
            if cached_partitioning.model.shapes == shapes
        )
        partitioning = next(partitionings, None) or planner.settle(planner.judge(shapes))
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
            return self._session.compiler.compile_dynamic(partitioning, plan)
        except CompilationError as error:
            raise FixedSizesError(str(error)) from error

    def _measured_open(self, planner: Planner, shapes: Shapes, measurer: Measurer) -> Compiled:
        """Make a dynamic plan of the fastest measured placement; raise FixedSizesError if that costs the gain."""
        static_plan = next(
            (cached_plan for cached_plan in self._kept_plans() if cached_plan.partitioning.model.shapes == shapes), None
        )
        arrays, other_pools = self._made_up(planner, shapes), pools_held()
        fastest = static_plan or measurer.choose(planner, planner.judge(shapes), arrays, made_up=True)
        try:
            self._admit(fastest.partitioning)
            plan = partition_dynamic(fastest.partitioning)
            if isinstance(plan, Unsupported):
                raise FixedSizesError(plan.detail, is_for_all=not isinstance(plan, ShapeDependentRefusal))
            with not_counting(pools_held() - other_pools if static_plan is None else 0):
                compiled = self._session.compiler.compile_dynamic(fastest.partitioning, plan)
        except CompilationError as error:
            raise FixedSizesError(str(error)) from error
        finally:
            if static_plan is None:
                fastest.close()
        return measurer.open_as(compiled, fastest, shapes, arrays)

    def _kept_plans(self) -> list[Compiled]:
        prepared = self.planner.prepared
        plans = (plan for plan in self._plans.cached if not plan.has_dynamic_shapes)
        return [plan for plan in plans if plan.partitioning.model.prepared is prepared]

    def _partitionings(self) -> list[Partitioning]:
        return [plan.partitioning for plan in self._kept_plans()]

    def _made_up(self, planner: Planner, shapes: Shapes) -> Mapping[str, Array]:
        return {**self._session.defaults, **feed_for(planner.prepared, shapes)}

    def _make(self, shapes: InputShapes, feed: Mapping[str, Any] | None = None) -> Compiled:
        complete = {name: shape for name, shape in zip(self._session.inputs, shapes, strict=True) if shape is not None}
        return self._planned(lambda planner: self._compiled(planner, planner.judge(complete), feed))

    def _planned(self, work: Callable[[Planner], _Planned]) -> _Planned:
        """Call `work` with the planner; on failure, call it again for the model with its branches.

        ONNX Runtime loads an `If` with contradictory branches, but not the selected branch by itself.
        """
        planner = self.planner
        try:
            return work(planner)
        except (CompilationError, InvalidModelError):
            if planner.prepared.original is None:
                raise
            return work(self._with_branches(planner))

    def _with_branches(self, failed: Planner) -> Planner:
        """Return the planner of the model with its branches; threads that fail together get the same one."""
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
    nodes = partitioning.plan.graph.nodes
    return [(step.device, [nodes[node].name for node in step.nodes]) for step in partitioning.plan.steps]
