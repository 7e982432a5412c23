"""A model on several devices: compiled plans, made when shapes of inputs are first seen.

The first shapes get a plan of their own, which knows every size. Most models are never run at others. Where one is, a
plan is made that leaves sizes open, if its devices can (`planning.opening`), and serves further shapes. It serves the
first too, if they were run only once: two plans hold weights twice. A model with a cache that grows gets such a plan at
once. Where devices cannot, every set of shapes has a plan of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from nnadapter.drivers.copies import on_host
from nnadapter.drivers.kept_memory import TENSORS
from nnadapter.drivers.onnxruntime.sessions import new_session_options, run_options
from nnadapter.errors import CompilationError, InvalidInputError, InvalidModelError
from nnadapter.offering.feeds import feed_for
from nnadapter.onnx.preparation.sizes import check_shape, default_shapes
from nnadapter.onnx.signature import ModelMetadata, NodeArg, Shapes, Signature, node_arg, read_signature
from nnadapter.options import Options
from nnadapter.planning.judgment import Judgment
from nnadapter.planning.opening import opened
from nnadapter.planning.planner import Planner, prepare_for
from nnadapter.planning.setting import Setting
from nnadapter.planning.settling import Partitioning
from nnadapter.running.bindings import Binding, PlannedBinding
from nnadapter.running.compilation import Compiler
from nnadapter.running.compiled import Compiled
from nnadapter.running.control import RunControl
from nnadapter.running.deadlines import Deadlines
from nnadapter.running.fallback import refuse_fallback
from nnadapter.running.measuring import Measurer
from nnadapter.running.observed import Observed, observed_of
from nnadapter.running.open_plans import FixedSizesError, InputShapes, OpenPlans, Taken
from nnadapter.running.outputs import Kept
from nnadapter.running.plans import Lease, PlanCache, PlanCounts
from nnadapter.running.promise import Watch
from nnadapter.running.provenance import Provenance
from nnadapter.running.repeating import Done, Repeat
from nnadapter.traces.event import PLAN, SESSION
from partition.verdict import Reason, Unsupported

if TYPE_CHECKING:
    import onnx
    import onnxruntime


_Made = TypeVar("_Made")


class PlannedEngine:
    """Runs a model by plans. Usable from many threads at once."""

    def __init__(
        self,
        model: onnx.ModelProto,
        setting: Setting,
        options: Options,
        session_options: onnxruntime.SessionOptions | None = None,
        refused_by_host: Mapping[int, Unsupported] | None = None,
    ) -> None:
        prepared = prepare_for(model, setting)
        # Positions are those of the model that was given; where preparation changed it, they are found again.
        known = (refused_by_host or {}) if prepared.model is model else {}
        refused = {prepared.graph.nodes[position].name: why for position, why in known.items()}
        self._setting, self._session_options = setting, session_options
        self._planner = Planner(prepared, setting, refused)
        self._switching = Lock()
        self._compiler = Compiler(setting)
        self._plans: PlanCache[Compiled] = PlanCache(options.max_plans, options.max_plan_bytes, setting.trace)
        self._defaults = prepared.defaults
        self._inputs = prepared.graph.inputs
        self.signature: Signature = read_signature(model, self._inputs, frozenset(self._defaults))
        self._all_outputs = list(self.signature.output_names)
        self._latest: Repeat | None = None
        self._first: InputShapes | None = None
        """The shapes that have a plan of their own though others need none; empty where nobody came back to them."""
        self._has_room = options.max_plans > 1
        self._deadlines = Deadlines(options.deadline_s) if options.deadline_s is not None else None
        self._first_is_prepared = False
        """Somebody asked for their plan before a run: it stays."""
        self._open = OpenPlans(
            self._plans,
            setting,
            self._inputs,
            lambda: self._planner.prepared,
            lambda shapes: self._make_open(shapes),
            options.max_plans,
        )
        self._last: InputShapes | None = None
        """The shapes of the last run of a plan that leaves sizes open."""
        self._measurer = Measurer(self._compiler, session_options) if setting.constraints.policy.times else None
        shapes = self._declared_shapes()
        if shapes is None:
            return
        if self._measurer is None:
            self.prepare(shapes)
        else:  # the first run has the person's own input; what contradicts itself is known now
            self._planned(lambda planner: planner.settle(planner.judge(shapes)))

    def run(
        self,
        names: Sequence[str] | None,
        feed: Mapping[str, Any],
        options: Any = None,
        control: RunControl | None = None,
        kept: Kept | None = None,
    ) -> tuple[list[Any], Provenance]:
        """See `Engine.run`; for `kept`, `CompiledPlan.run`."""
        latest = self._latest
        if control is None and (options is not None or self._deadlines is not None):
            control = RunControl()
        if (
            latest is not None
            and control is None
            and kept is None
            and (names is None or (type(names) is list and names == self._all_outputs))
        ):
            done = latest.run(feed)
            if done is not None:
                return done if latest.watch is None else self._held_to(latest.lease, latest.watch, done)
        wanted = self.signature.check_outputs(names)
        values = self.signature.check_feed(feed)
        if self._defaults:
            values = {**self._defaults, **values}
        shapes = tuple([getattr(values[name], "shape", None) for name in self._inputs])
        use = object()
        try:
            lease, compiled, sizes = self._take(use, shapes, values)
            is_open = compiled.opening is not None
            if is_open:
                self._last = shapes
            if not self._defaults and (latest is None or latest.lease is not lease or is_open):
                self._latest = Repeat(self._plans, lease, compiled, self.signature, values, sizes)
            if control is None:
                done = compiled.plan.run(values, wanted, None, kept, sizes)
                return done if compiled.watch is None else self._held_to(lease, compiled.watch, done)
            before = run_options.get()
            try:
                run_options.set(control.begin(options, self._deadlines))
                return compiled.plan.run(values, wanted, control, kept, sizes)
            finally:
                control.end()
                run_options.set(before)
        finally:
            self._plans.users.pop(use, None)
            self._plans.close_unused()
            TENSORS.free_gone()

    def binding(self) -> Binding:
        """See `Engine.binding`."""
        devices = [device.name for device in self._setting.devices if not device.is_spare]
        return PlannedBinding(self, self._all_outputs, devices)

    def _held_to(self, lease: Lease[Compiled], watch: Watch, done: Done) -> Done:
        """What a run gave; where it breaks what was measured, the next run measures again."""
        steps = done[1].steps
        seconds = steps[0].seconds if len(steps) == 1 else sum([step.seconds for step in steps])
        if watch.is_broken_by(seconds, time.perf_counter()) and self._measurer is not None and lease.plan is not None:
            self._measurer.contradicted(lease.plan, watch)
            self._plans.drop(lease)
        return done

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
        return observed_of(compiled, self.counts)

    def inputs(self) -> list[NodeArg]:
        """See `Engine.inputs`."""
        return list(map(node_arg, self.signature.inputs))

    def outputs(self) -> list[NodeArg]:
        """See `Engine.outputs`."""
        return list(map(node_arg, self.signature.outputs))

    def overridable(self) -> list[NodeArg]:
        """See `Engine.overridable`."""
        return list(map(node_arg, self.signature.overridable))

    def metadata(self) -> ModelMetadata:
        """See `Engine.metadata`."""
        return self.signature.metadata

    def session_options(self) -> onnxruntime.SessionOptions:
        """See `Engine.session_options`: those that were given, or new ones."""
        if self._session_options is None:
            self._session_options = new_session_options()
        return self._session_options

    def end_profiling(self) -> str:
        """See `Engine.end_profiling`."""
        return ""

    def profiling_started(self) -> int:
        """See `Engine.profiling_started`."""
        return 0

    def _compiled_for(self, shapes: Shapes) -> Compiled:
        """The plan for these input shapes, made now if it is not kept.

        Raises:
            InvalidInputError: a shape is missing, does not fit, or is of no input.
        """
        for name, shape in shapes.items():
            check_shape(name, shape, self.signature.by_name)
        complete = {name: tuple(shapes[name]) if name in shapes else self._known_shape(name) for name in self._inputs}
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
        self._latest = None
        if self._deadlines is not None:
            self._deadlines.close()
        TENSORS.free_gone()
        self._plans.close((*self._setting.devices, self._compiler.arenas))
        self._planner.clear()

    def _take(self, use: object, shapes: InputShapes, feed: Mapping[str, Any] | None = None) -> Taken:
        """The plan for these shapes of the inputs: of its own for the first, then one for many, where there is one.

        A model with a cache comes again with other shapes, so it gets one for many at once.
        """
        if self._first is None:
            self._first, self._first_is_prepared = () if self._open.growing else shapes, feed is None
        taken = None if shapes == self._first else self._open.take(use, shapes)
        return taken or (*self._plans.take(use, shapes, lambda: self._make(shapes, feed)), None)

    def _make_open(self, shapes: Shapes) -> Compiled:
        """The plan at these shapes with its sizes left open.

        Raises:
            FixedSizesError: there is none.
        """
        if self._measurer is not None:
            raise FixedSizesError("placements are timed for each")
        compiled = self._planned(lambda planner: self._compiled_open(planner, shapes))
        stays = self._first_is_prepared or not self._plans.drop_unless_used_again(self._first)
        if not (stays and self._has_room):
            self._first = ()
        return compiled

    def _compiled_open(self, planner: Planner, shapes: Shapes) -> Compiled:
        partitioning = planner.settle(planner.judge(shapes))
        with self._setting.trace.span(SESSION, PLAN, "leave sizes open"):
            plan = opened(partitioning)
        if isinstance(plan, Unsupported):
            raise FixedSizesError(plan.detail, always=plan.reason is not Reason.SEGMENT_LIMIT)
        refuse_fallback(partitioning)
        try:
            return self._compiler.compile_open(partitioning, plan)
        except CompilationError as error:
            raise FixedSizesError(str(error)) from error

    def _known(self, shapes: InputShapes) -> Shapes:
        return {name: shape for name, shape in zip(self._inputs, shapes, strict=True) if shape is not None}

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
                self._planner = Planner(failed.prepared.original, self._setting)
            return self._planner

    def _compiled(self, planner: Planner, judgment: Judgment, feed: Mapping[str, Any] | None) -> Compiled:
        if self._measurer is None:
            return self._compiler.compile(planner, judgment)
        if feed is not None:
            arrays = {name: on_host(value) for name, value in feed.items()}
            return self._measurer.choose(planner, judgment, arrays, made_up=False)
        made_up = {**self._defaults, **feed_for(planner.prepared, judgment.model.shapes)}
        return self._measurer.choose(planner, judgment, made_up, made_up=True)

    def _declared_shapes(self) -> Shapes | None:
        """The shapes of all inputs if the model fixes them."""
        shapes = {name: self._known_shape(name) for name in self._inputs}
        fixed = {name: shape for name, shape in shapes.items() if shape is not None}
        return fixed if len(fixed) == len(shapes) else None

    def _known_shape(self, name: str) -> tuple[int, ...] | None:
        if name in self._defaults:
            return self._defaults[name].shape
        return self.signature.by_name[name].static_shape


def _nodes_of(partitioning: Partitioning) -> list[tuple[str, list[str]]]:
    """What runs where."""
    nodes = partitioning.plan.graph.nodes
    return [(step.device, [nodes[node].name for node in step.nodes]) for step in partitioning.plan.steps]
