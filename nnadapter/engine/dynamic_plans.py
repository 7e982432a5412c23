"""Dynamic plans of a model or a compiled file, found by the input shapes that they serve."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any, Generic

from nnadapter.engine.plan_source import LeasedPlan, PlanT
from nnadapter.engine.plan_store import Lease, PlanCache
from nnadapter.engine.shape_sets import ShapeSet
from nnadapter.engine.specialization import SpecializationRefusedError
from nnadapter.errors import NNAdapterError
from nnadapter.onnx.signature import Shapes
from nnadapter.process.resources import Cache

_MOST_REFUSED = 256


class FixedSizesError(NNAdapterError):
    """No dynamic plan can be made. Internal to the engine.

    `is_for_all` is False if other shapes may allow one.
    """

    def __init__(self, detail: str, *, is_for_all: bool = True) -> None:
        super().__init__(detail)
        self.is_for_all = is_for_all


class DynamicPlan:
    """Dynamic plan that may be evicted from its cache and made again.

    The new plan may have other `shapes`, since drivers may guard other sizes. Segments of a template are compiled for
    each set of sizes. `branch` has the condition values that select branches.
    """

    def __init__(self, key: Hashable, shapes: ShapeSet | None, *, is_template: bool, branch: tuple[bool, ...] = ()):
        self.key, self.shapes, self.is_template, self.branch = key, shapes, is_template, branch


class DynamicPlans(ABC, Generic[PlanT]):
    """Dynamic plans of one model or file, most recently used first. Thread-safe."""

    def __init__(self, plans: PlanCache[PlanT], limit: int, cache_name: str) -> None:
        self._plans = plans
        self._templates: PlanCache[PlanT] = PlanCache(limit, sys.maxsize)
        """Templates, without a limit in bytes, since specialized plans count the bytes of shared programs."""
        self._entries: tuple[DynamicPlan, ...] = ()
        self._refused: Cache[object, bool] = Cache(cache_name, _MOST_REFUSED)

    @abstractmethod
    def make(self, entry: DynamicPlan) -> PlanT:
        pass

    def shapes_of(self, entry: DynamicPlan) -> ShapeSet:
        assert entry.shapes is not None, "the plan was made"
        return entry.shapes

    def take_existing(self, use: object, shapes: Shapes, branch: tuple[bool, ...] = ()) -> LeasedPlan[PlanT] | None:
        """Return the first plan that serves these shapes, if any, made again after an eviction."""
        for entry in self._entries:
            if entry.branch != branch:
                continue
            shape_set = self.shapes_of(entry)
            holds, sizes = shape_set.match(shapes)
            leased = self.take_entry(use, entry, shape_set, shapes, sizes) if holds else None
            if leased is not None:
                if self._entries[:1] != (entry,):
                    self.move_to_front(entry)
                return leased
        return None

    def take_entry(
        self, use: object, entry: DynamicPlan, shape_set: ShapeSet, shapes: Shapes, sizes: Sequence[Any] | None
    ) -> LeasedPlan[PlanT] | None:
        """Take the plan of an entry, specialized for `sizes` if it is a template.

        Returns None if it was made again and no longer serves these shapes.
        """
        take = self._take_specialized if entry.is_template else self._take_made
        leased = take(use, entry, shape_set, shapes, sizes)
        if leased is None:
            self.end_use(use)
        return leased

    def move_to_front(self, entry: DynamicPlan) -> None:
        self._entries = (entry, *(other for other in self._entries if other is not entry))

    def end_use(self, use: object) -> None:
        """End a use that got no plan; see `PlanCache`."""
        for plans in (self._plans, self._templates):
            plans.users.pop(use, None)
            plans.close_unused()

    def close(self) -> None:
        self._templates.close()

    def _take_made(
        self, use: object, entry: DynamicPlan, shape_set: ShapeSet, shapes: Shapes, sizes: Sequence[Any] | None
    ) -> LeasedPlan[PlanT] | None:
        plans = self._templates if entry.is_template else self._plans
        lease, plan = plans.take(use, entry.key, lambda: self.make(entry))
        if plan.shapes is not shape_set:
            assert plan.shapes is not None, "the plan has dynamic shapes"
            entry.shapes = plan.shapes
            holds, sizes = plan.shapes.match(shapes)
            if not holds:
                return None
        return lease, plan, sizes

    def _take_specialized(
        self, use: object, entry: DynamicPlan, shape_set: ShapeSet, shapes: Shapes, sizes: Sequence[Any] | None
    ) -> LeasedPlan[PlanT] | None:
        key = entry.key, tuple(shapes.values())
        if self._refused.get(key):
            return None
        leased: tuple[Lease[PlanT], PlanT]
        try:
            leased = self._plans.take(use, key, lambda: self._specialize(entry, shape_set, shapes, sizes))
        except SpecializationRefusedError:
            self._refused.put(key, True)
            return None
        lease, plan = leased
        assert plan.programs is not None, "the plan is specialized"
        return lease, plan, plan.programs.run_sizes(shape_set.guards, sizes, shapes)

    def _specialize(
        self, entry: DynamicPlan, shape_set: ShapeSet, shapes: Shapes, sizes: Sequence[Any] | None
    ) -> PlanT:
        use = object()
        try:
            leased = self._take_made(use, entry, shape_set, shapes, sizes)
            if leased is None:
                raise SpecializationRefusedError("the plan was made again, and the new one does not serve these shapes")
            _, template, sizes = leased
            assert template.programs is not None and sizes is not None, "it is a template"
            specialized: PlanT = template.programs.at(sizes, self._plans.make_room)
            return specialized
        finally:
            self.end_use(use)
