"""Plan source that plans a model on a session's devices, and the choice of the engine for a model.

A `ModelPlanSource` has a `ModelPlans` for its model, and one per selection of branches.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, cast

from nnadapter.candidates.part import Part
from nnadapter.candidates.segments import original_model
from nnadapter.engine.compilation import Compiler
from nnadapter.engine.compiled import Compiled
from nnadapter.engine.engine import Engine, PlanEngine
from nnadapter.engine.fallback import Incidents
from nnadapter.engine.model_plans import ModelPlans, SessionPlans
from nnadapter.engine.observed import Observed, observed_of
from nnadapter.engine.plan_source import (
    BackgroundRun,
    BranchTest,
    InputShapes,
    LeasedPlan,
    OriginalModelShapes,
    PlanSource,
)
from nnadapter.engine.plan_store import Lease, PlanCache, PlanCounts
from nnadapter.engine.shape_sets import ShapeTest
from nnadapter.errors import InvalidInputError, InvalidModelError, ModelFileError
from nnadapter.onnx.construction import OnnxIndex
from nnadapter.onnx.domains import plain_domain
from nnadapter.onnx.files import load_model
from nnadapter.onnx.graphs import captured_names, infos_of, opsets_of
from nnadapter.onnx.inlining import with_weights_outside
from nnadapter.onnx.model import OnnxNode, may_take_types, read_node
from nnadapter.onnx.preparation.default_sizes import check_shape, default_shapes
from nnadapter.onnx.preparation.prepare import Prepared
from nnadapter.onnx.schemas import external_versions, since_version
from nnadapter.onnx.signature import Shapes, read_signature
from nnadapter.options import Options
from nnadapter.planning.planner import prepare_for
from nnadapter.planning.setting import Setting, left_to_last_resort
from nnadapter.records import replace
from nnadapter.traces.trace import PLAN, SESSION
from partition.graph import Unsupported, Value

if TYPE_CHECKING:
    import onnx
    import onnxruntime

    from nnadapter.engine.background import BackgroundPlanner
    from nnadapter.engine.branches import BranchSelection, BranchSelections
    from nnadapter.engine.executor import CpuFallback
    from nnadapter.engine.feed_counts import CountCheck
    from nnadapter.engine.measuring import Measurer
    from nnadapter.onnx.files import BegunModel
    from nnadapter.onnx.preparation.branch_decisions import Truths
    from nnadapter.onnx.preparation.deciding_conditions import DecidingConditions
    from nnadapter.traces.recorder import Recorder


class CacheWriter(Protocol):
    """Writer of a session's new plans to the cache."""

    note: str

    def begin(self, source: ModelPlanSource) -> None:
        pass

    def write_new(self, source: ModelPlanSource) -> None:
        """Write the plans that the source has made since the last call."""


class ModelPlanSource(PlanSource[Compiled]):
    """Plan source that plans and compiles a model for new shapes. Thread-safe."""

    def __init__(
        self,
        model: onnx.ModelProto,
        setting: Setting,
        options: Options,
        session_options: onnxruntime.SessionOptions | None = None,
        refused_by_host: Mapping[int, Unsupported] | None = None,
        *,
        allows_dynamic: bool = True,
        cache_writer: CacheWriter | None = None,
    ) -> None:
        model = with_weights_outside(model) if setting.accelerators else model
        prepared = prepare_for(model, setting)
        # the positions are those of the unprepared model; if preparation changed it, ONNX Runtime refuses again
        refused_positions = (refused_by_host or {}) if prepared.model is model else {}
        refused = {prepared.graph.nodes[position].name: reason for position, reason in refused_positions.items()}
        super().__init__(
            read_signature(model, prepared.graph.inputs, frozenset(prepared.defaults)),
            prepared.graph.inputs,
            prepared.defaults,
            [device.name for device in setting.devices if not device.is_spare],
            PlanCache(options.max_plans, options.max_plan_bytes, setting.trace),
            setting.trace,
        )
        self.count_checks = _count_checks(prepared)
        self._setting = setting
        self._withdrawn: dict[str, dict[str, Unsupported]] = {}
        self._compiler = Compiler(setting, self.plans.room_maker())
        self._measurer: Measurer | None = None
        if setting.constraints.policy.times:
            from nnadapter.engine.measuring import Measurer

            self._measurer = Measurer(self._compiler, session_options)
        self._session_plans = SessionPlans(
            plans=self.plans,
            setting=setting,
            compiler=self._compiler,
            measurer=self._measurer,
            withdrawn_nodes=self._withdrawn,
            inputs=self.input_names,
            defaults=self.defaults,
            limit=options.max_plans,
            allows_dynamic=allows_dynamic,
        )
        self._own = ModelPlans(self._session_plans, prepared, refused)
        self._selections = self._selections_of(prepared) if setting.accelerators else None
        self._background: BackgroundPlanner | None = None
        if options.background and setting.accelerators:
            from nnadapter.engine.background import BackgroundPlanner

            self._background = BackgroundPlanner(self)
        shapes = self._declared_shapes()
        if shapes is None:
            _refuse_invalid(model, prepared, setting, session_options)
        else:
            self._plan_ahead(shapes)
        self._cache_writer = cache_writer
        if cache_writer is not None:
            cache_writer.begin(self)

    def _plan_ahead(self, shapes: Shapes) -> None:
        if self._background is not None:
            self._own.partition_at(shapes)
            for selection in self.planned_ahead:
                self._background.begin(self._complete(shapes), selection)
        elif self._measurer is None and self._selections is None:
            self.prepare(shapes)
        else:  # the first run measures with the caller's input
            self._own.partition_at(shapes)

    def note_contradiction(self, lease: Lease[Compiled]) -> None:
        """Drop a plan whose runs contradict its measured times, and delete these times for a new measurement."""
        compiled = lease.plan
        if self._measurer is not None and compiled is not None and compiled.watch is not None:
            self._measurer.contradicted(compiled, compiled.watch)
            super().note_contradiction(lease)

    @property
    def counts(self) -> PlanCounts:
        texts = [self._own.served_shapes_text, self._selections.text if self._selections is not None else ""]
        return replace(self.plans.counts, served_shapes_text="; ".join(filter(None, texts)))

    def prepare(self, shapes: Shapes) -> None:
        for selection in self.planned_ahead:
            self.prepare_selection(shapes, selection)

    def prepare_selection(self, shapes: Shapes, selection: BranchSelection | None) -> None:
        self._compiled_for(self._complete(shapes), selection)

    def observed(self, last_shapes: InputShapes | None) -> Observed:
        compiled = self.plans.newest or self._usual()
        if compiled.dynamic is not None and last_shapes is not None:
            compiled = self._plans_of(compiled).at_shapes(compiled, self.known_shapes(last_shapes))
        observed = observed_of(compiled, self.counts, self._compiler.incidents, self._compiler.pause_texts)
        notes = [self.selection_note, *(self.checks.notes if self.checks else ())]
        if self._background is not None and self._background.runs:
            notes.append(f"runs on the CPU while a plan was made: {self._background.runs}")
        if self._cache_writer is not None:
            notes.append(self._cache_writer.note)
        notes = list(filter(None, notes))
        return replace(observed, notes=(*observed.notes, *notes)) if notes else observed

    def withdraw_nodes(self, device: str, nodes: Mapping[str, Unsupported]) -> None:
        """Withdraw nodes, mapped to reasons, from a device for the rest of the session; drop all plans."""
        # a new mapping each time: another thread may be judging by the previous one
        self._withdrawn[device] = {**self._withdrawn.get(device, {}), **nodes}
        self.forget_plans()

    def forget_plans(self) -> None:
        self.plans.drop_all()
        for model in self._models:
            model.dynamic.drop_templates()

    @property
    def setting(self) -> Setting:
        return self._setting

    @property
    def incidents(self) -> Incidents:
        return self._compiler.incidents

    @property
    def plans_kept(self) -> tuple[Compiled, ...]:
        static_plans = (plan for plan in self.plans.cached if not plan.has_dynamic_shapes)
        return (*static_plans, *(plan for model in self._models for plan in model.dynamic.cached))

    @property
    def decisions(self) -> Mapping[Truths, DecidingConditions]:
        return {} if self._selections is None else self._selections.decisions

    @property
    def original_model_shapes(self) -> OriginalModelShapes:
        return {} if self._selections is None else self._selections.original_model_shapes

    @property
    def selection_note(self) -> str:
        return "" if self._selections is None else self._selections.note

    def original_part(self) -> Part:
        return original_model(self.prepared.graph, OnnxIndex.of(self.prepared.model), self.signature.output_names)

    @property
    def widened(self) -> int:
        return sum(model.dynamic.widened_count for model in self._models)

    @property
    def prepared(self) -> Prepared:
        return self._own.planner.prepared

    @property
    def is_fixed(self) -> bool:
        return self._declared_shapes() is not None

    @property
    def planned_ahead(self) -> Sequence[BranchSelection | None]:
        """Branch selections to plan ahead of runs; None is the model with all branches."""
        return (None,) if self._selections is None else self._selections.planned_ahead

    def make_dynamic(self, shapes: Shapes, selection: BranchSelection | None) -> bool:
        """Return True if a dynamic plan, made if needed, serves these shapes.

        `selection` is one of `planned_ahead`.
        """
        for name, shape in shapes.items():
            check_shape(name, shape, self.signature.by_name)
        input_shapes = tuple(shapes.get(name) for name in self.input_names)
        with self.use() as use:
            if self._selections is None or selection is None:
                leased = self._own.take_dynamic(use, input_shapes)
            else:
                leased = self._selections.take_dynamic(use, input_shapes, selection)
            return leased is not None and not (leased[1].dynamic is not None and leased[1].dynamic.unchecked)

    def close(self) -> None:
        if self._background is not None:
            self._background.close()
        for model in self._models:
            model.close()
        self.plans.close((*self._setting.devices, self._compiler.arenas))

    @property
    def _models(self) -> tuple[ModelPlans, ...]:
        return (self._own, *(self._selections.model_plans if self._selections is not None else ()))

    def _selections_of(self, prepared: Prepared) -> BranchSelections | None:
        if not any(node.op_type == "If" for node in prepared.nodes):
            return None
        from nnadapter.engine.branches import BranchSelections
        from nnadapter.onnx.preparation.deciding_conditions import decision_of

        decision = decision_of(prepared)
        return None if decision is None else BranchSelections(decision, self._own, self._session_plans)

    def _plans_of(self, compiled: Compiled) -> ModelPlans:
        return (
            self._own
            if self._selections is None
            else self._selections.of(compiled.partitioning.model.prepared.branch_decisions)
        )

    def _usual(self) -> Compiled:
        selection = None if self._selections is None else self._selections.select(None)
        if selection is not None:
            with suppress(InvalidInputError):
                return self._compiled_for(self._complete(default_shapes(selection.prepared)), selection)
        return self._compiled_for(self._complete(default_shapes(self.prepared)))

    def _complete(self, shapes: Shapes) -> InputShapes:
        """Return the shapes of all inputs, completed by declared shapes; raise InvalidInputError for unfit shapes."""
        for name, shape in shapes.items():
            check_shape(name, shape, self.signature.by_name)
        complete = {
            name: tuple(shapes[name]) if name in shapes else self.declared_shape(name) for name in self.input_names
        }
        for name, complete_shape in complete.items():
            if complete_shape is None and self.signature.by_name[name].shape is not None:
                raise InvalidInputError(f"the model does not fix the shape of input {name!r}; pass it", name=name)
        return tuple(complete.values())

    def _compiled_for(self, shapes: InputShapes, selection: BranchSelection | None = None) -> Compiled:
        with self.use() as use:
            if self._selections is None:
                return self._own.take(use, shapes)[1]
            return self._selections.take(use, shapes, None, selection)[1]

    def take(self, use: object, shapes: InputShapes, feed: Mapping[str, Any] | None = None) -> LeasedPlan[Compiled]:
        return (self._own if self._selections is None else self._selections).take(use, shapes, feed)

    def make_ahead(self, shapes: InputShapes, selection: BranchSelection | None) -> None:
        """Make the plan that a run would take, in the background thread."""
        feed = dict[str, Any]()
        with self.use() as use:
            if self._selections is None:
                self._own.take(use, shapes, feed)
            else:
                self._selections.take(use, shapes, feed, selection)

    def make_cpu_fallback(self) -> CpuFallback:
        return self._compiler.cpu_fallback(self.original_part(), tuple(self.signature.output_names))

    def write_new_plans(self) -> None:
        if self._cache_writer is not None:
            self._cache_writer.write_new(self)

    def background_run(self, shapes: InputShapes, feed: Mapping[str, Any]) -> BackgroundRun | None:
        background = self._background
        if background is None or self.is_made(shapes, feed):
            return None
        selection = None if self._selections is None else self._selections.select(feed)
        return background.run if background.begin(shapes, selection) else None

    def fits(self, feed: Mapping[str, Any]) -> BranchTest | None:
        if self._selections is None:
            return None
        selections, selection = self._selections, self._selections.select(feed)
        return lambda other: selections.select(other) is selection

    def serves(self, compiled: Compiled, feed: Mapping[str, Any]) -> ShapeTest | None:
        plans = self._plans_of(compiled)
        if self._selections is not None and not self._selections.select(feed).runs_by(plans):
            return None
        return plans.dynamic.shape_test(compiled, self.signature.declares)

    def may_serve(self, compiled: Compiled, shapes: InputShapes) -> bool:
        return self._plans_of(compiled).may_serve(shapes)

    def note_served(self, compiled: Compiled) -> None:
        self._plans_of(compiled).dynamic.note_served()

    def _declared_shapes(self) -> Shapes | None:
        shapes = {name: self.declared_shape(name) for name in self.input_names}
        static_shapes = {name: shape for name, shape in shapes.items() if shape is not None}
        return static_shapes if len(static_shapes) == len(shapes) else None


def _refuse_invalid(
    model: onnx.ModelProto,
    prepared: Prepared,
    setting: Setting,
    session_options: onnxruntime.SessionOptions | None,
) -> None:
    """Raise InvalidModelError for nodes that ONNX Runtime finds invalid.

    Nodes are exempt if they may be external or another ONNX device supports them.
    """
    if prepared.original is None and all(node.origins == (node.name,) for node in prepared.graph.nodes):
        model, nodes = prepared.model, prepared.nodes
    else:
        nodes = tuple(read_node(node, node.name, _version_of(node, model)) for node in model.graph.node)
    suspects = [position for position, node in enumerate(nodes) if _is_suspect(node, prepared.values)]
    if not suspects:
        return
    from nnadapter.drivers.onnxruntime.driver import refuse_invalid_nodes

    protos = [model.graph.node[position] for position in suspects]
    names = {name for node in protos for name in (*node.input, *node.output, *captured_names(node))}
    infos = infos_of(prepared.values[name] for name in names & prepared.values.keys())
    has_kernels = any(device.kernels.kernels for device in setting.devices)

    def is_external(position: int) -> bool:
        node = model.graph.node[position]
        is_offered = plain_domain(node.domain) in setting.domains
        return has_kernels or is_offered or bool(external_versions(node.domain, node.op_type))

    other_contexts = [device.context for device in setting.devices if not device.takes_ir and not device.is_host]
    refuse_invalid_nodes(model, suspects, infos, is_external, other_contexts, session_options)


def _version_of(node: onnx.NodeProto, model: onnx.ModelProto) -> int:
    domain = plain_domain(node.domain)
    return since_version(domain, node.op_type, opsets_of(model.opset_import).get(domain, 1)) or 0


def _is_suspect(node: OnnxNode, values: Mapping[str, Value]) -> bool:
    """Return True if a node contradicts or lacks its schema or types, and so may be invalid for ONNX Runtime."""
    dtypes = tuple([values[name].dtype if name in values else None for name in node.inputs])
    return bool(
        node.contradiction
        or node.bodies
        or not node.since_version
        or not may_take_types(node.op_type, node.since_version, node.domain, dtypes)
        or any(name and (name not in values or values[name].dtype is None) for name in node.outputs)
    )


def _count_checks(prepared: Prepared) -> tuple[CountCheck, ...]:
    graph = prepared.graph
    inputs = [name for name in graph.inputs if len(graph.value(name).shape or ()) < 2]
    if not inputs:
        return ()
    from nnadapter.engine.feed_counts import count_checks

    producers = {name: node for node in prepared.nodes for name in node.outputs}
    return count_checks(prepared.nodes, producers, prepared.constants.get, frozenset(inputs))


def make_engine(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto,
    setting: Setting,
    options: Options,
    session_options: onnxruntime.SessionOptions | None,
    providers: tuple[Sequence[Any] | None, Sequence[Mapping[str, Any]] | None],
    arguments: Mapping[str, Any],
    make: Callable[..., ModelPlanSource] | None = None,
    begun: BegunModel | None = None,
) -> Engine:
    """Return the engine for a model on the devices of `setting`, which is closed on failure.

    If the CPU comes first, ONNX Runtime runs the unmodified model. If ONNX Runtime cannot load it, the CPU and the
    reference evaluator share the nodes, since single nodes may be too new or lack a kernel.

    Raises:
        InvalidModelError, ModelFileError: the model cannot be read, or no device takes one of its nodes.
        NotDelegatedError, CompilationError: fallback is needed but forbidden.
    """
    failed = None
    try:
        if setting.devices[0].is_host:
            try:
                return _host_engine(source, setting, options, session_options, providers, arguments)
            except ModelFileError:
                raise
            except InvalidModelError as error:
                failed = error
        plans = open_source(source, setting, options, session_options, make, begun, failed)
        return PlanEngine(plans, options.deadline_s, session_options)
    except BaseException:
        setting.close()
        raise
    finally:
        failed = None  # its traceback references this frame, and so the model


def open_source(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto,
    setting: Setting,
    options: Options,
    session_options: onnxruntime.SessionOptions | None = None,
    make: Callable[..., ModelPlanSource] | None = None,
    begun: BegunModel | None = None,
    failed: InvalidModelError | None = None,
) -> ModelPlanSource:
    """Load a model and return its plan source; raise as `make_engine` does, but do not close `setting`.

    `make` makes the source. `begun` is a model that a thread is loading. `failed` is ONNX Runtime's error for the
    model.
    """
    try:
        with setting.trace.span(SESSION, PLAN, "load the model"):
            model, weights = begun.finish() if begun else (loaded(source, session_options), [])
        refused = left_to_last_resort(failed, model, setting, session_options) if failed else None
        if isinstance(refused, InvalidModelError):
            raise refused
        setting.trace.check()
        plans = (make or ModelPlanSource)(model, setting, options, session_options, refused)
        del weights  # preparation references the weights from here on
        return plans
    finally:
        refused = None  # the traceback of an error references this frame, and so the model


def loaded(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto, session_options: onnxruntime.SessionOptions | None
) -> onnx.ModelProto:
    """Load a model, with the initializers and dimensions that session options override."""
    if session_options is None:
        return load_model(source)
    from nnadapter.drivers.onnxruntime.sessions import external_folder

    overrides = getattr(session_options, "overrides", None)
    return load_model(source, folder=external_folder(session_options), overrides=overrides)


def _host_engine(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto,
    setting: Setting,
    options: Options,
    session_options: onnxruntime.SessionOptions | None,
    providers: tuple[Sequence[Any] | None, Sequence[Mapping[str, Any]] | None],
    arguments: Mapping[str, Any],
) -> Engine:
    from nnadapter.drivers.providers import options_of_cpu
    from nnadapter.engine.host import HostEngine

    trace, tracing = setting.trace, None
    if trace.is_recording and not cast("Recorder", trace).of_session_options:  # otherwise ONNX Runtime writes the trace
        from nnadapter.engine.tracing import HostTracing

        tracing = HostTracing(cast("Recorder", trace), source, session_options)
    of_cpu = options_of_cpu(*providers)
    return HostEngine(source, lambda: setting, session_options, of_cpu, arguments, options.deadline_s, tracing)
