"""A model on several devices: compiled plans, made when shapes of inputs are first seen.

The first shapes get a plan of their own, which knows every size. Most models are never run at others. Where one is, a
plan is made that leaves sizes open, if its devices can (`planning.opening`), and serves further shapes. It serves the
first too, if they were run only once: two plans hold weights twice. A model with a cache that grows gets such a plan at
once. Where devices cannot, every set of shapes has a plan of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from nnadapter.drivers.copies import on_host
from nnadapter.errors import CompilationError, InvalidInputError, InvalidModelError
from nnadapter.offering.feeds import feed_for
from nnadapter.onnx.preparation.prepare import Prepared
from nnadapter.onnx.preparation.sizes import check_shape, default_shapes
from nnadapter.onnx.signature import Shapes, read_signature
from nnadapter.options import Options
from nnadapter.planning.bounds import Bounds
from nnadapter.planning.judgment import Judgment
from nnadapter.planning.opening import RefusedHere, opened
from nnadapter.planning.planner import Planner, prepare_for
from nnadapter.planning.setting import Setting
from nnadapter.planning.settling import Partitioning
from nnadapter.process.forking import new_lock
from nnadapter.running.by_plans import InputShapes, PlansEngine, Taken
from nnadapter.running.compilation import Compiler
from nnadapter.running.compiled import Compiled
from nnadapter.running.fallback import refuse_fallback
from nnadapter.running.filled import FilledClass
from nnadapter.running.incidents import Incidents
from nnadapter.running.observed import Observed, observed_of
from nnadapter.running.open_plans import FixedSizesError, OpenPlans
from nnadapter.running.plans import Lease, PlanCache, PlanCounts
from nnadapter.traces.event import PLAN, SESSION
from partition.verdict import Unsupported

if TYPE_CHECKING:
    import onnx
    import onnxruntime

    from nnadapter.ir.size_class import SizeClass
    from nnadapter.running.measuring import Measurer


_Made = TypeVar("_Made")


class PlannedEngine(PlansEngine[Compiled]):
    """Runs a model by plans. Usable from many threads at once."""

    def __init__(
        self,
        model: onnx.ModelProto,
        setting: Setting,
        options: Options,
        session_options: onnxruntime.SessionOptions | None = None,
        refused_by_host: Mapping[int, Unsupported] | None = None,
        *,
        may_leave_open: bool = True,
    ) -> None:
        prepared = prepare_for(model, setting)
        # Positions are those of the model that was given; where preparation changed it, they are found again.
        known = (refused_by_host or {}) if prepared.model is model else {}
        refused = {prepared.graph.nodes[position].name: why for position, why in known.items()}
        super().__init__(
            read_signature(model, prepared.graph.inputs, frozenset(prepared.defaults)),
            prepared.graph.inputs,
            prepared.defaults,
            [device.name for device in setting.devices if not device.is_spare],
            PlanCache(options.max_plans, options.max_plan_bytes, setting.trace),
            options.deadline_s,
            session_options,
        )
        self._setting = setting
        self._taken_back: dict[str, dict[str, Unsupported]] = {}
        self._planner = Planner(prepared, setting, refused, self._taken_back)
        self._switching = new_lock()
        self._compiler = Compiler(setting)
        self._may_leave_open = may_leave_open
        self._first: InputShapes | None = None
        """The shapes that have a plan of their own though others need none; empty where nobody came back to them."""
        self._has_room = options.max_plans > 1
        self._first_is_prepared = False
        """Somebody asked for their plan before a run: it stays."""
        self._open = OpenPlans(
            self._plans,
            setting,
            self.input_names,
            lambda: self._planner.prepared,
            lambda shapes: self._make_open(shapes),
            lambda: [partitioning.model.shapes for partitioning in self._partitionings()],
            options.max_plans,
        )
        self._measurer = _measurer(self._compiler, session_options) if setting.constraints.policy.times else None
        shapes = self._declared_shapes()
        if shapes is None:
            return
        if self._measurer is None:
            self.prepare(shapes)
        else:  # the first run has the person's own input; what contradicts itself is known now
            self._planned(lambda planner: planner.settle(planner.judge(shapes)))

    def _contradicted(self, lease: Lease[Compiled]) -> None:
        """Forget what was measured: the next run measures again."""
        compiled = lease.plan
        if self._measurer is not None and compiled is not None and compiled.watch is not None:
            self._measurer.contradicted(compiled, compiled.watch)
            super()._contradicted(lease)

    @property
    def counts(self) -> PlanCounts:
        """How often plans were made and used again."""
        return replace(self._plans.counts, sizes=self._open.text(" but the first" if self._first else ""))

    def prepare(self, shapes: Shapes) -> None:
        """See `Engine.prepare`."""
        self._compiled_for(shapes)

    def observed(self) -> Observed:
        """See `Engine.observed`: of the plan used last, made for usual sizes if there is none yet.

        What a plan that leaves sizes open did last is told at the sizes that it had.
        """
        compiled = self._plans.newest or self._compiled_for(default_shapes(self._planner.prepared))
        if compiled.opening is not None and self._last is not None:
            planner, shapes = self._planner, self._known(self._last)
            at_last = planner.settle(planner.judge(shapes))
            if _nodes_of(at_last) == _nodes_of(compiled.partitioning):  # as it is, but perhaps where something is empty
                compiled = replace(compiled, partitioning=at_last)
        seen = observed_of(compiled, self.counts, self._compiler.incidents, self._compiler.resting)
        return seen if self.checks is None else replace(seen, notes=(*seen.notes, *self.checks.notes))

    def take_back(self, device: str, nodes: Mapping[str, Unsupported]) -> None:
        """Take nodes from a device, for the rest of the session; plans are made anew.

        Args:
            device: its name.
            nodes: why, by name; see `Planner.taken_back`.
        """
        # Another mapping each time: a thread may be judging by the one before.
        self._taken_back[device] = {**self._taken_back.get(device, {}), **nodes}
        self.forget_plans()

    def forget_plans(self) -> None:
        """Drop every plan: who runs next makes another one."""
        self._latest = None
        self._plans.drop_all()
        self._open.drop_all()

    @property
    def setting(self) -> Setting:
        """The devices."""
        return self._setting

    @property
    def incidents(self) -> Incidents:
        """What went wrong in the session."""
        return self._compiler.incidents

    @property
    def plans_kept(self) -> tuple[tuple[Compiled, Bounds | None], ...]:
        """The plans that are kept, those for one set of shapes first, and where those hold that are looked through."""
        return (*((plan, None) for plan in self._plans.kept if not plan.is_open), *self._open.kept)

    @property
    def prepared(self) -> Prepared:
        """What the model is."""
        return self._planner.prepared

    @property
    def is_fixed(self) -> bool:
        """Whether the model fixes the shapes of all inputs."""
        return self._declared_shapes() is not None

    def open_for(self, shapes: Shapes) -> bool:
        """Whether a plan that leaves sizes open serves these shapes of all inputs; made now if there is none.

        Raises:
            InvalidInputError: a shape does not fit, or is of no input.
        """
        for name, shape in shapes.items():
            check_shape(name, shape, self.signature.by_name)
        use = object()
        try:
            self._open.try_again()
            return self._open.take(use, tuple(shapes.get(name) for name in self.input_names)) is not None
        finally:
            self._plans.users.pop(use, None)
            self._plans.close_unused()

    def _compiled_for(self, shapes: Shapes) -> Compiled:
        """The plan for these input shapes, made now if it is not kept.

        Raises:
            InvalidInputError: a shape is missing, does not fit, or is of no input.
        """
        for name, shape in shapes.items():
            check_shape(name, shape, self.signature.by_name)
        complete = {
            name: tuple(shapes[name]) if name in shapes else self._known_shape(name) for name in self.input_names
        }
        for name, known in complete.items():
            if known is None and self.signature.by_name[name].shape is not None:
                raise InvalidInputError(f"the model leaves the shape of input {name!r} open; give it", name=name)
        shape_key, use = tuple(complete.values()), object()
        try:
            return self._take(use, shape_key)[1]
        finally:
            self._plans.users.pop(use, None)
            self._plans.close_unused()

    def close(self) -> None:
        """Free every plan, and then every context; what is in use is freed when it is not any more."""
        self._end()
        self._open.close()
        self._plans.close((*self._setting.devices, self._compiler.arenas))
        self._planner.clear()

    def _take(self, use: object, shapes: InputShapes, feed: Mapping[str, Any] | None = None) -> Taken[Compiled]:
        """The plan for these shapes of the inputs: of its own for the first, then one for many, where there is one.

        A model with a cache comes again with other shapes, so it gets one for many at once.
        """
        if self._first is None:
            self._first, self._first_is_prepared = () if self._open.growing else shapes, feed is None
        has_own = shapes == self._first or not self._may_leave_open
        taken = None if has_own else self._open.take(use, shapes)
        return taken or (*self._plans.take(use, shapes, lambda: self._make(shapes, feed)), None)

    def _class_of(self, compiled: Compiled) -> SizeClass | None:
        """See `PlansEngine._class_of`."""
        opening = compiled.opening
        if opening is None or opening.fillable or opening.is_looked_through or self._open.needs_elements:
            return None
        return opening.sizes

    def _may_serve(self, shapes: InputShapes) -> bool:
        """See `PlansEngine._may_serve`."""
        return shapes != self._first

    def _has_served(self) -> None:
        """See `PlansEngine._has_served`."""
        self._open.served()

    def _make_open(self, shapes: Shapes) -> Compiled:
        """The plan at these shapes with its sizes left open.

        Raises:
            FixedSizesError: there is none.
        """
        if self._measurer is not None:
            raise FixedSizesError("placements are timed for each")
        compiled = self._planned(lambda planner: self._compiled_open(planner, shapes))
        if isinstance(compiled, FilledClass):
            return compiled  # each set of shapes has a plan of its own, so the first may stay
        stays = self._first_is_prepared or not self._plans.drop_unless_used_again(self._first)
        if not (stays and self._has_room):
            self._first = ()
        return compiled

    def _compiled_open(self, planner: Planner, shapes: Shapes) -> Compiled:
        known = (each for each in self._partitionings() if each.model.shapes == shapes)
        partitioning = next(known, None) or planner.settle(planner.judge(shapes))
        with self._setting.trace.span(SESSION, PLAN, "leave sizes open"):
            plan = opened(partitioning)
        if isinstance(plan, Unsupported):
            raise FixedSizesError(plan.detail, is_for_all=not isinstance(plan, RefusedHere))
        refuse_fallback(partitioning)
        try:
            return self._compiler.compile_open(partitioning, plan)
        except CompilationError as error:
            raise FixedSizesError(str(error)) from error

    def _partitionings(self) -> list[Partitioning]:
        """Of the plans for one set of shapes, as they were compiled."""
        prepared = self._planner.prepared
        kept = [plan.partitioning for plan in self._plans.kept if not plan.is_open]
        return [each for each in kept if each.model.prepared is prepared]

    def _make(self, shapes: InputShapes, feed: Mapping[str, Any] | None = None) -> Compiled:
        """The plan for these shapes of the inputs; with a feed of that shape, if there is one."""
        known = self._known(shapes)
        return self._planned(lambda planner: self._compiled(planner, planner.judge(known), feed))

    def _planned(self, work: Callable[[Planner], _Made]) -> _Made:
        """Do what takes a planner; once more over the model with its branches, where that may help.

        ONNX Runtime loads what contradicts itself inside of an `If`, as long as it stays there.
        """
        planner = self._planner
        try:
            return work(planner)
        except (CompilationError, InvalidModelError):
            if planner.prepared.original is None:
                raise
            return work(self._with_branches(planner))

    def _with_branches(self, failed: Planner) -> Planner:
        """The planner of the model with its branches; threads that fail with one planner get the same next one."""
        with self._switching:
            if self._planner is failed:
                assert failed.prepared.original is not None, "there is a model with its branches"
                self._planner = Planner(failed.prepared.original, self._setting, {}, self._taken_back)
            return self._planner

    def _compiled(self, planner: Planner, judgment: Judgment, feed: Mapping[str, Any] | None) -> Compiled:
        if self._measurer is None:
            return self._compiler.compile(planner, judgment)
        if feed is not None:
            arrays = {name: on_host(value) for name, value in feed.items()}
            return self._measurer.choose(planner, judgment, arrays, made_up=False)
        made_up = {**self.defaults, **feed_for(planner.prepared, judgment.model.shapes)}
        return self._measurer.choose(planner, judgment, made_up, made_up=True)

    def _declared_shapes(self) -> Shapes | None:
        """The shapes of all inputs if the model fixes them."""
        shapes = {name: self._known_shape(name) for name in self.input_names}
        fixed = {name: shape for name, shape in shapes.items() if shape is not None}
        return fixed if len(fixed) == len(shapes) else None


def _nodes_of(partitioning: Partitioning) -> list[tuple[str, list[str]]]:
    """What runs where."""
    nodes = partitioning.plan.graph.nodes
    return [(step.device, [nodes[node].name for node in step.nodes]) for step in partitioning.plan.steps]


def _measurer(compiler: Compiler, session_options: onnxruntime.SessionOptions | None) -> Measurer:
    from nnadapter.running.measuring import Measurer  # for one policy alone

    return Measurer(compiler, session_options)
