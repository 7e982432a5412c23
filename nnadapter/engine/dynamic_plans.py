"""Plans with dynamic shapes: the shapes at which each holds, and when another one is made.

Plans that leave sizes open: which one serves which shapes of inputs, and when one more is made.

A plan for devices that take adapter IR says itself at which sizes it holds (`GuardedShapes`). One with a device that
takes ONNX is looked through instead (`planning.bounds`). Shapes for which no plan holds get one more, unless plans have
been made in vain.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from nnadapter.engine.compiled import Compiled
from nnadapter.engine.plan_source import InputShapes, LeasedPlan, ShapeTest
from nnadapter.engine.plan_store import PLAN_FOR_EACH, ExistingOnly, PlanCache
from nnadapter.engine.specialization import SpecializationRefusedError, SpecializedPlan, SpecializedPlans
from nnadapter.errors import NNAdapterError
from nnadapter.onnx.preparation.kv_cache_sizes import agreeing, next_token_shapes
from nnadapter.onnx.preparation.prepare import Prepared, Shapes
from nnadapter.planning.bounds import Bounds, nearby
from nnadapter.planning.opening import DynamicPartitioning, growing_inputs, is_full, unread_inputs
from nnadapter.planning.setting import Setting
from nnadapter.process.cache import Cache
from nnadapter.process.forking import new_lock
from nnadapter.traces.trace import SESSION, WAIT

_MOST_LOOKED_AT = 256


class FixedSizesError(NNAdapterError):
    """There is no plan that leaves sizes open. Nobody outside of this room sees it."""

    def __init__(self, detail: str, *, is_for_all: bool = True) -> None:
        """Take why, and whether that holds for whatever sizes come."""
        super().__init__(detail)
        self.is_for_all = is_for_all


@dataclass(eq=False)
class _Looked:
    """Where a plan is known to hold that is looked through."""

    prepared: Prepared
    nodes: Sequence[int]
    bounds: Bounds


class OpenPlan:
    """One plan that leaves sizes open, by the key that it is kept under.

    Args:
        key: it is kept under it.
        at: the shapes at which it is made.
        is_weighed: costs at those shapes say what runs where, so that it is for shapes like them.
    """

    def __init__(self, key: tuple[str, int], at: Shapes, *, is_weighed: bool = False) -> None:
        self.key, self.at = key, at
        self._near = nearby(at) if is_weighed else None
        self.opening: DynamicPartitioning | None = None
        self._looked: _Looked | None = None
        self.widened = 0
        """How often its bounds were widened."""
        self._widening = new_lock()
        self._checked: Cache[object, bool] = Cache("shapes whose indices were checked", _MOST_LOOKED_AT)
        self._beyond: Cache[object, bool] = Cache("shapes beyond bounds", _MOST_LOOKED_AT)

    def made(self, compiled: Compiled) -> None:
        """Take what was made; after it was dropped, it is made again at the same shapes."""
        self.opening = compiled.opening
        assert self.opening is not None, "the plan leaves sizes open"
        if self.opening.is_looked_through and self._looked is None:
            model = compiled.partitioning.model
            bounds = Bounds(self.at, self.at, unread_inputs(model.prepared))
            self._looked = _Looked(model.prepared, model.specialized.positions, bounds)

    def sizes(self, opening: DynamicPartitioning | None, shapes: Shapes) -> tuple[bool, Sequence[Any] | None]:
        """Whether it holds at these shapes, and what its programs are told, if they leave sizes open as `opening` says.

        Programs that are made again number what follows from sizes anew, so theirs is told from their own opening.
        """
        assert opening is not None, "the plan was made"
        sizes = None if opening.sizes is None else opening.sizes.sizes(shapes)
        of_class = opening.sizes is None or sizes is not None
        holds = of_class and self._is_near(shapes) and (self._looked is None or self._is_within(self._looked, shapes))
        holds = holds and (not opening.unchecked or self._indices_hold(opening, shapes))
        return holds, sizes

    def serves(self, opening: DynamicPartitioning, declares: Callable[[Shapes], bool]) -> ShapeTest | None:
        """What says whether it is known to hold at shapes, without a look at the model; None where nothing does.

        Args:
            opening: of its programs.
            declares: says whether the model takes shapes at all.
        """
        size_class, looked = opening.sizes, self._looked
        if looked is None and (size_class is None or self._near is None):
            return None if size_class is None else size_class.match

        def at(shapes: Shapes) -> tuple[bool, Sequence[Any] | None]:
            if not declares(shapes) or not self._is_near(shapes):
                return False, None
            sizes = None if size_class is None else size_class.sizes(shapes)
            is_within = looked is None or looked.bounds.hold(shapes)
            is_checked = not opening.unchecked or self._indices_hold(opening, shapes)
            return (size_class is None or sizes is not None) and is_within and is_checked, sizes

        return at

    def _indices_hold(self, opening: DynamicPartitioning, shapes: Shapes) -> bool:
        return self._checked.get_or_make(tuple(shapes.values()), lambda: opening.indices_hold(shapes))

    def _is_near(self, shapes: Shapes) -> bool:
        return self._near is None or self._near.hold(shapes)

    @property
    def bounds(self) -> Bounds | None:
        """Where it is known to hold; None where that is not looked through."""
        return None if self._looked is None else self._looked.bounds

    def broken(self, shapes: Shapes) -> str:
        """Why it does not hold at these shapes."""
        if not self._is_near(shapes):
            return "sizes are far from those at which costs were weighed"
        sizes = None if self.opening is None else self.opening.sizes
        return (sizes.failed_guard(shapes) if sizes is not None else "") or "other nodes are left to run"

    def _is_within(self, looked: _Looked, shapes: Shapes) -> bool:
        if looked.bounds.hold(shapes):
            return True
        holds = self._is_full(looked, shapes)
        if holds:
            self._widen(looked, shapes)
        return holds

    def _is_full(self, looked: _Looked, shapes: Shapes) -> bool:
        return self._beyond.get_or_make(tuple(shapes.values()), lambda: is_full(looked.prepared, looked.nodes, shapes))

    def _widen(self, looked: _Looked, shapes: Shapes) -> None:
        """Widen the bounds, if the plan holds at their new least and largest sizes too, with which nobody came.

        The least of all, cached and new, is not the least of each: a mask of 1 stands beside a cache of 0.
        """
        with self._widening:
            wider = looked.bounds.widened(shapes)
            known = (shapes, *looked.bounds.ends)
            ends = [end for end in wider.ends if end not in known]
            if all(self._is_full(looked, agreeing(looked.prepared, end)) for end in ends):
                looked.bounds = wider
                self.widened += 1


_MOST_UNFILLED = 256
_MOST_REASONS = 3
"""How many the report tells."""
_MOST_IN_VAIN = 4
"""Plans in a row that served no other shapes; after them, new ones are seldom tried until one has served again."""


class OpenPlans:
    """The plans of one session that leave sizes open; usable from many threads.

    Args:
        plans: where plans are kept.
        setting: of the session.
        inputs: names.
        prepared: gives the model.
        make: makes a plan at some shapes, or raises `FixedSizesError`.
        planned_at: the shapes that have plans of their own, of which `make` makes it sooner.
        limit: how many there are at most; the one used longest ago goes first.
        number: tells its plans from those of the session's other models.
    """

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
        self._limit, self._count, self._planned_at = limit, 0, planned_at
        self._kept_as = f"open {number}" if number else "open"
        self._plans, self._inputs, self._prepared, self._make = plans, inputs, prepared, make
        self._trace, self._weighs = setting.trace, setting.constraints.policy.weighs
        takes_ir = {device.takes_ir for device in setting.devices if device.accelerates}
        self.needs_elements = False in takes_ir
        """A device takes ONNX: tensors without elements have plans of their own, but for a cache at its start."""
        self._is_made_with_elements = takes_ir == {False}
        """Beside a device that takes IR, a plan says itself whether it holds where there are no elements."""
        self._made: tuple[OpenPlan, ...] = ()
        """The one used last first."""
        self._reasons: list[str] = []
        """Why each plan after the first was made."""
        self._in_vain = 0
        self._asked = 0
        """For how many shapes a new one was wanted."""
        self._refusal = ""
        """Why there was none, the last time that one was asked for."""
        self._gives_up = False
        """Nor will there be one."""
        self._making, self._ordering = new_lock(), new_lock()
        self._growing: Mapping[str, int] | None = None
        self._classes: PlanCache[Compiled] = PlanCache(limit, sys.maxsize)
        """Of devices that compile for fixed sizes: what their programs share counts for the plans that are filled."""
        self._unfilled: Cache[object, bool] = Cache("shapes that are not filled", _MOST_UNFILLED)
        """Those that have plans of their own."""

    @property
    def widened(self) -> int:
        """How often the bounds of plans were widened."""
        return sum(plan.widened for plan in self._made)

    def text(self, but_for: str) -> str:
        """Which shapes they serve, or why there is none, in words; empty as long as nobody asked.

        Args:
            but_for: which shapes have a plan of their own, in words.
        """
        if self._refusal:
            return f"{PLAN_FOR_EACH}: {self._refusal}"
        if not self._made:
            return ""
        fixed = next((plan.opening.why_fixed for plan in self._made if plan.opening is not None), "")
        what, plural = ("class", "classes") if fixed else ("plan", "plans")
        count = f"one {what}" if self._count == 1 else f"{self._count} {plural}"
        told = [*self._reasons[:_MOST_REASONS], *(["others"] if len(self._reasons) > _MOST_REASONS else [])]
        reasons = f"; one more when {', then when '.join(told)}" if told else ""
        alone = "; others have plans of their own" if self._in_vain >= _MOST_IN_VAIN else ""
        own = f", with a plan for every set of them: {fixed}" if fixed else ""
        return f"{count} for all input shapes{but_for}{own}{reasons}{alone}"

    def take(self, use: object, shapes: InputShapes) -> LeasedPlan[Compiled] | None:
        """Take the plan for these shapes, made now if there is none; None where they have a plan of their own.

        See `PlanCache.take`.
        """
        if self._gives_up:
            return None
        if None in shapes:
            self._refusal, self._gives_up = "an input is no tensor, or its shape is not known", True
            return None
        known = {name: shape for name, shape in zip(self._inputs, shapes, strict=True) if shape is not None}
        if not self._may_hold(known):
            return None
        taken = self._take_known(use, known)
        has_own = type(use) is ExistingOnly or self._unfilled.get(tuple(known.values()))
        return taken if taken is not None or has_own else self._take_new(use, known)

    def serves(self, opening: DynamicPartitioning | None, declares: Callable[[Shapes], bool]) -> ShapeTest | None:
        """What says at which shapes the plan is known to hold that leaves sizes open like this; None for others.

        See `OpenPlan.serves`.

        Where a plan is looked through, shapes that hold were asked about before, see `_may_hold`.
        """
        plan = next((plan for plan in self._made if plan.opening is opening), None)
        if opening is None or opening.fillable or plan is None or (self.needs_elements and plan.bounds is None):
            return None
        return plan.serves(opening, declares)

    def served(self) -> None:
        """Take note that the plan used last served other shapes."""
        self._in_vain = 0

    @property
    def kept(self) -> tuple[tuple[Compiled, Bounds | None], ...]:
        """The plans that are kept, the one made first before others, and where each holds that is looked through."""
        kept = [*self._plans.kept, *self._classes.kept]
        # A file has no model with which indices could be checked that follow from shapes.
        opened = [
            compiled_plan
            for compiled_plan in kept
            if compiled_plan.opening is not None and not compiled_plan.opening.unchecked
        ]
        classes = [compiled_plan for compiled_plan in opened if not isinstance(compiled_plan, SpecializedPlan)]
        return tuple(
            (compiled, plan.bounds)
            for plan in sorted(self._made, key=lambda open_plan: open_plan.key[1])
            for compiled in classes
            if compiled.opening is plan.opening
        )

    def try_again(self) -> None:
        """Forget that there was none, and why: sizes may be empty at the shapes that came first, and not at others."""
        self._refusal, self._gives_up, self._in_vain = "", False, 0

    def _take_known(self, use: object, known: Shapes) -> LeasedPlan[Compiled] | None:
        for plan in self._made:
            opening = plan.opening  # another thread may make it again meanwhile
            holds, sizes = plan.sizes(opening, known)
            if holds:
                return self._take_plan(use, plan, known, opening, sizes)
        return None

    def _take_plan(
        self,
        use: object,
        plan: OpenPlan,
        known: Shapes,
        opening: DynamicPartitioning | None,
        sizes: Sequence[Any] | None,
    ) -> LeasedPlan[Compiled] | None:
        """Take a plan that holds at these shapes, made again if it was dropped; None where that fails."""
        is_filled = opening is not None and bool(opening.fillable)
        try:
            taken = (self._take_filled if is_filled else self._take_open)(use, plan, known, opening, sizes)
        except FixedSizesError:
            self._leave(use)
            self._remember(without=plan)
            return None
        if taken is None:
            self._leave(use)
            return None
        self._in_vain = 0
        if self._made[:1] != (plan,):
            self._remember(first=plan)
        return taken

    def _take_open(
        self,
        use: object,
        plan: OpenPlan,
        known: Shapes,
        opening: DynamicPartitioning | None,
        sizes: Sequence[Any] | None,
    ) -> LeasedPlan[Compiled] | None:
        lease, compiled = self._kept_in(opening).take(use, plan.key, lambda: self._make(plan.at))
        if compiled.opening is not opening:
            plan.made(compiled)
            holds, sizes = plan.sizes(compiled.opening, known)
            if not holds:
                return None
        return lease, compiled, sizes

    def _take_filled(
        self,
        use: object,
        plan: OpenPlan,
        known: Shapes,
        opening: DynamicPartitioning | None,
        sizes: Sequence[Any] | None,
    ) -> LeasedPlan[Compiled] | None:
        """Take the plan at these shapes of a class whose devices compile for fixed sizes, filled now if need be."""
        shapes = tuple(known.values())
        if self._unfilled.get(shapes):
            return None
        try:
            lease, filled = self._plans.take(use, (plan.key, shapes), lambda: self._filled(plan, known, opening, sizes))
        except SpecializationRefusedError:
            self._unfilled.put(shapes, True)
            return None
        return lease, filled, filled.of.told(sizes) if isinstance(filled, SpecializedPlan) else sizes

    def _filled(
        self, plan: OpenPlan, known: Shapes, opening: DynamicPartitioning | None, sizes: Sequence[Any] | None
    ) -> Compiled:
        use = object()
        try:
            taken = self._take_open(use, plan, known, opening, sizes)
            if taken is None:
                raise SpecializationRefusedError("the class was made again, and does not hold at these shapes")
            _, whole_class, sizes = taken
            assert isinstance(whole_class, SpecializedPlans) and sizes is not None, (
                "its devices compile for fixed sizes"
            )
            return whole_class.filling.at(sizes, self._plans.make_room)
        finally:
            self._leave(use)

    def _remember(self, *, first: OpenPlan | None = None, without: OpenPlan | None = None) -> None:
        """Have one plan stand first, or forget one."""
        with self._ordering:
            others = [plan for plan in self._made if plan is not first and plan is not without]
            self._made = (*([first] if first is not None else []), *others)[: self._limit]

    def _leave(self, use: object) -> None:
        """End a use before its run; what was not made is forgotten."""
        for plans in (self._plans, self._classes):
            plans.users.pop(use, None)
            plans.close_unused()

    def _kept_in(self, opening: DynamicPartitioning | None) -> PlanCache[Compiled]:
        return self._classes if opening is not None and opening.fillable else self._plans

    def close(self) -> None:
        """Drop the classes; their plans are dropped with the others."""
        self._classes.close()

    def drop_all(self) -> None:
        """Drop the classes, to be made again; their plans are dropped with the others."""
        self._classes.drop_all()
        self._classes.close_unused()

    def _take_new(self, use: object, known: Shapes) -> LeasedPlan[Compiled] | None:
        asked = self._trace.timestamp()
        with self._making:
            taken = self._take_known(use, known)
            if taken is not None:
                self._trace.add(SESSION, WAIT, "wait for a plan that another thread makes", asked, {})
            if taken is not None or self._gives_up:
                return taken
            if self._unfilled.get(tuple(known.values())):
                return None
            self._asked += 1
            if self._rests:
                return None
            try:
                plan, made = self._made_for(known)
            except FixedSizesError as refusal:
                self._in_vain += 1
                self._unfilled.put(tuple(known.values()), True)
                if not self._made:  # those that there are hold for others
                    self._refusal = str(refusal)
                    self._gives_up = refusal.is_for_all
                return None
            if self._made:
                self._reasons = [*self._reasons, self._made[0].broken(known)][: _MOST_REASONS + 1]
            self._refusal = ""
            lease, compiled = self._kept_in(made.opening).take(use, plan.key, lambda: made)
            self._in_vain += 1
            self._count += 1
            self._remember(first=plan)
            holds, sizes = plan.sizes(compiled.opening, known)
            if holds and isinstance(compiled, SpecializedPlans):
                self._leave(use)
                return self._take_plan(use, plan, known, compiled.opening, sizes)
            if holds:
                return lease, compiled, sizes
            self._leave(use)
            return None

    @property
    def _rests(self) -> bool:
        """Whether no plan is tried for these shapes, as those before were in vain.

        What came before may have been shapes that the model is not for, so the 8th, the 16th and so on are tried again.
        """
        return self._in_vain >= _MOST_IN_VAIN and bool(self._asked & (self._asked - 1))

    def _made_for(self, known: Shapes) -> tuple[OpenPlan, Compiled]:
        """The next plan; the first one of a plan for other shapes, if it holds here too: nothing is judged anew."""
        key = (self._kept_as, self._count)
        for at in [] if self._made else self._planned_at():
            if not _are_alike(at, known):
                continue
            plan = OpenPlan(key, at, is_weighed=self._weighs)
            try:
                made = self._make(at)
            except FixedSizesError:  # perhaps there alone
                continue
            plan.made(made)
            if plan.sizes(made.opening, known)[0]:
                return plan, made
            made.close()
        plan = OpenPlan(key, self._with_elements(known), is_weighed=self._weighs)
        made = self._make(plan.at)
        plan.made(made)
        return plan, made

    @property
    def growing(self) -> Mapping[str, int]:
        """See `growing_inputs`: a model that has such is run at other shapes for sure."""
        if self._growing is None:
            self._growing = growing_inputs(self._prepared())
        return self._growing

    @cached_property
    def _unread(self) -> frozenset[str]:
        return unread_inputs(self._prepared())

    def _may_hold(self, shapes: Shapes) -> bool:
        """Whether devices take what has no elements here: a cache at its start, where a device takes ONNX."""
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
        """The shapes at which a plan is made: for devices that take ONNX, as if a cache at its start had grown."""
        if not self._is_made_with_elements or all(0 not in shape for shape in shapes.values()):
            return shapes
        return next_token_shapes(self._prepared(), shapes)


def _are_alike(some: Shapes, others: Shapes) -> bool:
    """Whether what holds at some shapes is likely to hold at others: sizes of 0 and 1 decide more than others."""
    return all(
        [min(size, 2) for size in shape] == [min(size, 2) for size in others[name]] for name, shape in some.items()
    )
