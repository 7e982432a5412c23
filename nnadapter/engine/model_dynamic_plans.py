"""Dynamic plans of one model: when to make one, at which shapes, and which shapes it serves.

A new plan is made for shapes that no plan serves, unless recent plans served only their first shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from nnadapter.engine.compiled import Compiled
from nnadapter.engine.dynamic_plans import DynamicPlan, DynamicPlans, FixedSizesError
from nnadapter.engine.plan_source import InputShapes, LeasedPlan
from nnadapter.engine.plan_store import PLAN_FOR_EACH, ExistingOnly, PlanCache
from nnadapter.engine.shape_sets import ProbedBounds, ShapeSet, ShapeTest
from nnadapter.onnx.preparation.default_sizes import agreeing, next_token_shapes
from nnadapter.onnx.preparation.prepare import Prepared
from nnadapter.onnx.signature import Shapes
from nnadapter.planning.bounds import Bounds, nearby
from nnadapter.planning.dynamic_shapes import DynamicPartitioning, growing_inputs, is_full, unread_inputs
from nnadapter.planning.setting import Setting
from nnadapter.process.resources import Cache, new_lock
from nnadapter.records import replace
from nnadapter.traces.trace import SESSION, WAIT

_MOST_CHECKED = 256
_MOST_REASONS = 3
_MOST_UNSHARED = 4
"""Number of consecutive plans that served only their first shapes. From this number on, new plans are rarely tried."""


class ModelDynamicPlan(DynamicPlan):
    """Dynamic plan of a model.

    Args:
        made_at: shapes at which it is made.
        is_cost_dependent: costs at these shapes decided the placement, so it serves only shapes near them.
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
        """Return `compiled` with the shapes that it serves. Bounds from probes before an eviction are reused."""
        dynamic = compiled.dynamic
        assert dynamic is not None, "the plan has dynamic shapes"
        if dynamic.is_looked_through and self.probed is None:
            model = compiled.partitioning.model
            prepared, nodes = model.prepared, model.specialized.positions
            self.probed = ProbedBounds(
                Bounds(self.made_at, self.made_at, unread_inputs(prepared)),
                lambda shapes: is_full(prepared, nodes, shapes),
                partial(agreeing, prepared),
            )

        def indices_hold(shapes: Shapes) -> bool:
            return self._checked.get_or_make(tuple(shapes.values()), lambda: dynamic.indices_hold(shapes))

        self.shapes = ShapeSet(dynamic.sizes, self.probed, self._vicinity, indices_hold if dynamic.unchecked else None)
        self.dynamic, self.is_template = dynamic, bool(dynamic.specializable)
        return replace(compiled, shapes=self.shapes)

    def why_not(self, shapes: Shapes) -> str:
        return "other nodes remain after folding" if self.shapes is None else self.shapes.why_not(shapes)


class ModelDynamicPlans(DynamicPlans[Compiled]):
    """Dynamic plans of a model. Thread-safe. The least recently used plan is dropped first.

    Args:
        compile_at: compiles a dynamic plan at some shapes, or raises FixedSizesError.
        planned_at: returns shapes of static plans, whose verdicts dynamic plans reuse.
        number: distinguishes the plans from other models' plans.
    """

    _entries: tuple[ModelDynamicPlan, ...]

    def __init__(
        self,
        plans: PlanCache[Compiled],
        setting: Setting,
        inputs: Sequence[str],
        prepared: Callable[[], Prepared],
        compile_at: Callable[[Shapes], Compiled],
        planned_at: Callable[[], Iterable[Shapes]],
        limit: int,
        number: int,
    ) -> None:
        super().__init__(plans, limit, "shapes that are not filled")
        self._limit, self._planned_at = limit, planned_at
        self._key_name = f"dynamic {number}"
        self._inputs, self._prepared, self._compile_at = inputs, prepared, compile_at
        self._trace, self._is_cost_dependent = setting.trace, setting.constraints.policy.weighs
        takes_ir = {device.takes_ir for device in setting.devices if device.accelerates}
        self._needs_elements = False in takes_ir
        """True if a device takes ONNX. Then empty tensors need their own plans, except an empty key/value cache."""
        self._is_made_with_elements = takes_ir == {False}
        """True if all devices take ONNX. Plans are made without empty tensors: only adapter IR has guards for them."""
        self._made_count = self._requested_count = 0
        self._unshared_count = 0
        self._reasons: list[str] = []
        """Reasons why further plans were made: conditions that the shapes violated."""
        self._refusal = ""
        self._is_impossible = False
        self._making, self._ordering = new_lock(), new_lock()

    @property
    def widened_count(self) -> int:
        return sum(entry.probed.widened for entry in self._entries if entry.probed is not None)

    @property
    def cached(self) -> tuple[Compiled, ...]:
        """Plans and templates that a file can contain, in order of creation."""
        cached = [*self._plans.cached, *self._templates.cached]
        # a file has no model to check indices that are computed from shapes
        savable = [plan for plan in cached if plan.shapes is not None and plan.shapes.holds_indices is None]
        entries = sorted(self._entries, key=lambda entry: entry.key[1])
        return tuple(plan for entry in entries for plan in savable if plan.dynamic is entry.dynamic)

    @cached_property
    def growing(self) -> Mapping[str, int]:
        """Input that grows from run to run -> its axis. Such a model will run at other shapes."""
        return growing_inputs(self._prepared())

    def describe(self, exempt: str) -> str:
        """Return a report text on the plans, or on the reason why there are none.

        `exempt` names the shapes with static plans: ` but the first`.
        """
        if self._refusal:
            return f"{PLAN_FOR_EACH}: {self._refusal}"
        if not self._entries:
            return ""
        static_reason = next((entry.dynamic.why_fixed for entry in self._entries if entry.dynamic is not None), "")
        noun, plural = ("set of guarded shapes", "sets of guarded shapes") if static_reason else ("plan", "plans")
        count = f"one {noun}" if self._made_count == 1 else f"{self._made_count} {plural}"
        shown = [*self._reasons[:_MOST_REASONS], *(["others"] if len(self._reasons) > _MOST_REASONS else [])]
        reasons = f"; one more when {', then when '.join(shown)}" if shown else ""
        exceptions = "; others have plans of their own" if self._unshared_count >= _MOST_UNSHARED else ""
        per_set = f", with a plan for each input shape: {static_reason}" if static_reason else ""
        return f"{count} for all input shapes{exempt}{per_set}{reasons}{exceptions}"

    def take(self, use: object, shapes: InputShapes) -> LeasedPlan[Compiled] | None:
        """Return the dynamic plan for some shapes; None if they need a static plan."""
        if self._is_impossible:
            return None
        if None in shapes:
            self._refusal, self._is_impossible = "an input is not a tensor, or its shape is unknown", True
            return None
        shapes_by_name = {name: shape for name, shape in zip(self._inputs, shapes, strict=True) if shape is not None}
        if not self._may_serve(shapes_by_name):
            return None
        leased = self.take_existing(use, shapes_by_name)
        if leased is not None or type(use) is ExistingOnly or self._is_refused_at(shapes_by_name):
            return leased
        return self._take_new(use, shapes_by_name)

    def shape_test(self, compiled: Compiled, declares: Callable[[Shapes], bool]) -> ShapeTest | None:
        """Return a test of the shapes that a plan serves.

        None for a static plan, a dropped plan or a template, and if bounds that exclude empty tensors are missing.
        """
        shapes, is_known = compiled.shapes, any(entry.dynamic is compiled.dynamic for entry in self._entries)
        if shapes is None or compiled.is_template or not is_known or (self._needs_elements and shapes.limits is None):
            return None
        return None if shapes.guards is None and shapes.limits is None else shapes.test(declares)

    def note_served(self) -> None:
        self._unshared_count = 0

    def retry(self) -> None:
        """Allow another try after plans were impossible, since the first shapes may have been empty."""
        self._refusal, self._is_impossible, self._unshared_count = "", False, 0

    def drop_templates(self) -> None:
        self._templates.drop_all()
        self._templates.close_unused()

    def make(self, entry: DynamicPlan) -> Compiled:
        assert isinstance(entry, ModelDynamicPlan), "a plan of a model"
        return entry.complete(self._compile_at(entry.made_at))

    def take_entry(
        self, use: object, entry: DynamicPlan, shape_set: ShapeSet, shapes: Shapes, sizes: Sequence[Any] | None
    ) -> LeasedPlan[Compiled] | None:
        try:
            leased = super().take_entry(use, entry, shape_set, shapes, sizes)
        except FixedSizesError:
            self.end_use(use)
            with self._ordering:
                self._entries = tuple(other for other in self._entries if other is not entry)
            return None
        if leased is not None:
            self._unshared_count = 0
        return leased

    def move_to_front(self, entry: DynamicPlan) -> None:
        with self._ordering:
            super().move_to_front(entry)
            self._entries = self._entries[: self._limit]

    def _is_refused_at(self, shapes: Shapes) -> bool:
        sizes, refused = tuple(shapes.values()), self._refused
        return bool(refused.get(sizes) or any(refused.get((entry.key, sizes)) for entry in self._entries))

    def _take_new(self, use: object, shapes: Shapes) -> LeasedPlan[Compiled] | None:
        wait_start = self._trace.timestamp()
        with self._making:
            leased = self.take_existing(use, shapes)
            if leased is not None:
                self._trace.add(SESSION, WAIT, "wait for a plan that another thread makes", wait_start, {})
            if leased is not None or self._is_impossible or self._is_refused_at(shapes):
                return leased
            self._requested_count += 1
            if self._is_paused:
                return None
            try:
                entry, new_plan = self._make_for(shapes)
            except FixedSizesError as refusal:
                self._unshared_count += 1
                self._refused.put(tuple(shapes.values()), True)
                if not self._entries:
                    self._refusal, self._is_impossible = str(refusal), refusal.is_for_all
                return None
            if self._entries:
                self._reasons = [*self._reasons, self._entries[0].why_not(shapes)][: _MOST_REASONS + 1]
            self._refusal = ""
            plans = self._templates if new_plan.is_template else self._plans
            lease, compiled = plans.take(use, entry.key, lambda: new_plan)
            self._unshared_count += 1
            self._made_count += 1
            self.move_to_front(entry)
            shape_set = self.shapes_of(entry)
            holds, sizes = shape_set.match(shapes)
            if holds and not new_plan.is_template:
                return lease, compiled, sizes
            self.end_use(use)
            return self.take_entry(use, entry, shape_set, shapes, sizes) if holds else None

    @property
    def _is_paused(self) -> bool:
        """True if no plan is tried because recent plans served no other shapes.

        Since earlier shapes may have been unusual, requests number 8, 16, 32 and so on are tried.
        """
        return self._unshared_count >= _MOST_UNSHARED and bool(self._requested_count & (self._requested_count - 1))

    def _make_for(self, shapes: Shapes) -> tuple[ModelDynamicPlan, Compiled]:
        """Make the next plan. If possible, the first plan reuses verdicts of a static plan."""
        for made_at in [] if self._entries else self._planned_at():
            if not _are_similar(made_at, shapes):
                continue
            try:
                entry, new_plan = self._make_at(made_at)
            except FixedSizesError:
                continue
            if self.shapes_of(entry).match(shapes)[0]:
                return entry, new_plan
            new_plan.close()
        return self._make_at(self._with_elements(shapes))

    def _make_at(self, shapes: Shapes) -> tuple[ModelDynamicPlan, Compiled]:
        key = self._key_name, self._made_count
        entry = ModelDynamicPlan(key, shapes, is_cost_dependent=self._is_cost_dependent)
        return entry, self.make(entry)

    @cached_property
    def _unread(self) -> frozenset[str]:
        return unread_inputs(self._prepared())

    def _may_serve(self, shapes: Shapes) -> bool:
        """Return True if devices take these shapes. On devices that run ONNX, only growing caches may be empty."""
        return (
            not self._needs_elements
            or all(0 not in shape for shape in shapes.values())
            or all(
                size or axis == self.growing.get(name)
                for name, shape in shapes.items()
                if name not in self._unread
                for axis, size in enumerate(shape)
            )
        )

    def _with_elements(self, shapes: Shapes) -> Shapes:
        """Return the shapes for making a plan; for ONNX devices, one token replaces an empty cache."""
        if not self._is_made_with_elements or all(0 not in shape for shape in shapes.values()):
            return shapes
        return next_token_shapes(self._prepared(), shapes)


def _are_similar(some: Shapes, other: Shapes) -> bool:
    """Return True if a plan for the shapes `some` probably serves `other` too."""
    return all(
        [min(size, 2) for size in shape] == [min(size, 2) for size in other[name]] for name, shape in some.items()
    )
