"""A model on several devices, run by compiled plans: see `model_plans`, and `choices` where inputs choose branches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nnadapter.engine.by_plans import InputShapes, OriginalModelShapes, PlansEngine, Taken
from nnadapter.engine.compilation import Compiler
from nnadapter.engine.compiled import Compiled
from nnadapter.engine.fallback import Incidents
from nnadapter.engine.model_plans import ModelPlans, SessionPlans
from nnadapter.engine.observed import Observed, observed_of
from nnadapter.engine.plan_store import ExistingOnly, Lease, NotMadeError, PlanCache, PlanCounts
from nnadapter.errors import InvalidInputError
from nnadapter.offering.part import Part
from nnadapter.offering.segments import original_model
from nnadapter.onnx.construction import OnnxIndex
from nnadapter.onnx.domains import plain_domain
from nnadapter.onnx.external_converters import external_versions
from nnadapter.onnx.graphs import captured_names, infos_of, opsets_of
from nnadapter.onnx.inlining import with_weights_outside
from nnadapter.onnx.model import OnnxNode, may_take_types, read_node
from nnadapter.onnx.preparation.default_sizes import check_shape, default_shapes
from nnadapter.onnx.preparation.prepare import Prepared
from nnadapter.onnx.schemas import since_version
from nnadapter.onnx.signature import Shapes, read_signature
from nnadapter.options import Options
from nnadapter.planning.bounds import Bounds
from nnadapter.planning.planner import prepare_for
from nnadapter.planning.setting import Setting
from partition.graph import Value
from partition.verdict import Unsupported

if TYPE_CHECKING:
    import onnx
    import onnxruntime

    from nnadapter.engine.background import BackgroundPlanner
    from nnadapter.engine.bound_steps import Kept
    from nnadapter.engine.branches import Choices, Chosen
    from nnadapter.engine.control import RunControl
    from nnadapter.engine.cpu_fallback import CpuFallback
    from nnadapter.engine.feed_counts import CountCheck
    from nnadapter.engine.measuring import Measurer
    from nnadapter.engine.repeated_runs import Done, Fits, Serves
    from nnadapter.onnx.preparation.branch_decisions import Truths
    from nnadapter.onnx.preparation.deciding_conditions import DecidingConditions


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
        model = with_weights_outside(model) if setting.accelerators else model
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
        self.count_checks = _count_checks(prepared)
        self._setting = setting
        self._taken_back: dict[str, dict[str, Unsupported]] = {}
        self._compiler = Compiler(setting, self._plans.room_maker())
        self._measurer = _measurer(self._compiler, session_options) if setting.constraints.policy.times else None
        self._session_plans = SessionPlans(
            plans=self._plans,
            setting=setting,
            compiler=self._compiler,
            measurer=self._measurer,
            withdrawn_nodes=self._taken_back,
            inputs=self.input_names,
            defaults=self.defaults,
            limit=options.max_plans,
            may_leave_open=may_leave_open,
        )
        self._own = ModelPlans(self._session_plans, prepared, refused)
        self._choices = self._choices_of(prepared) if setting.accelerators else None
        shapes = self._declared_shapes()
        self._meanwhile = _background_planner(self) if options.background and setting.accelerators else None
        if shapes is None:
            _refuse_invalid(model, prepared, setting, session_options)
            return
        if self._meanwhile is not None:
            self._own.partition_at(shapes)
            for chosen in self.ahead:
                self._meanwhile.begin(self._complete(shapes), chosen)
        elif self._measurer is None and self._choices is None:
            self.prepare(shapes)
        else:  # the first run has the person's own input; what contradicts itself is known now
            self._own.partition_at(shapes)

    def _contradicted(self, lease: Lease[Compiled]) -> None:
        """Forget what was measured: the next run measures again."""
        compiled = lease.plan
        if self._measurer is not None and compiled is not None and compiled.watch is not None:
            self._measurer.contradicted(compiled, compiled.watch)
            super()._contradicted(lease)

    @property
    def counts(self) -> PlanCounts:
        """How often plans were made and used again."""
        texts = [self._own.sizes_text, self._choices.text if self._choices is not None else ""]
        return replace(self._plans.counts, served_shapes_text="; ".join(filter(None, texts)))

    def prepare(self, shapes: Shapes) -> None:
        """See `Engine.prepare`: for each choice, while they are few."""
        for chosen in self.ahead:
            self.prepare_choice(shapes, chosen)

    def prepare_choice(self, shapes: Shapes, chosen: Chosen | None) -> None:
        """The same for one choice; None stands for the model as it was given."""
        self._compiled_for(self._complete(shapes), chosen)

    def observed(self) -> Observed:
        """See `Engine.observed`: of the plan used last, made for usual sizes if there is none yet.

        What a plan that leaves sizes open did last is told at the sizes that it had.
        """
        compiled = self._plans.newest or self._usual()
        if compiled.opening is not None and self._last is not None:
            compiled = self._plans_of(compiled).at_shapes(compiled, self._known(self._last))
        seen = observed_of(compiled, self.counts, self._compiler.incidents, self._compiler.resting)
        notes = [self.choice_note, *(self.checks.notes if self.checks else ())]
        if self._meanwhile is not None and self._meanwhile.runs:
            notes.append(f"runs that the CPU had while a plan was made: {self._meanwhile.runs}")
        notes = list(filter(None, notes))
        return replace(seen, notes=(*seen.notes, *notes)) if notes else seen

    def take_back(self, device: str, nodes: Mapping[str, Unsupported]) -> None:
        """Take nodes from a device, for the rest of the session; plans are made anew.

        Args:
            device: its name.
            nodes: why, by name; see `Planner.withdrawn_nodes`.
        """
        # Another mapping each time: a thread may be judging by the one before.
        self._taken_back[device] = {**self._taken_back.get(device, {}), **nodes}
        self.forget_plans()

    def forget_plans(self) -> None:
        """Drop every plan: who runs next makes another one."""
        self._latest = None
        self._plans.drop_all()
        for model in self._models:
            model.open.drop_all()

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
        fixed = ((plan, None) for plan in self._plans.kept if not plan.has_dynamic_shapes)
        return (*fixed, *(kept for model in self._models for kept in model.open.kept))

    @property
    def decisions(self) -> Mapping[Truths, DecidingConditions]:
        """What inputs decide of the model, behind what they decided before."""
        return {} if self._choices is None else self._choices.decisions

    @property
    def original_model_shapes(self) -> OriginalModelShapes:
        """See `Choices.original_model_shapes`."""
        return {} if self._choices is None else self._choices.original_model_shapes

    @property
    def choice_note(self) -> str:
        """What is said of choices that are too many; empty where they are not."""
        return "" if self._choices is None else self._choices.note

    def as_it_was(self) -> Part:
        """The model before preparation, whatever inputs choose."""
        return original_model(self.prepared.graph, OnnxIndex.of(self.prepared.model), self.signature.output_names)

    @property
    def widened(self) -> int:
        """How often the bounds of plans were widened."""
        return sum(model.open.widened for model in self._models)

    @property
    def prepared(self) -> Prepared:
        """What the model is."""
        return self._own.planner.prepared

    @property
    def is_fixed(self) -> bool:
        """Whether the model fixes the shapes of all inputs."""
        return self._declared_shapes() is not None

    @property
    def ahead(self) -> Sequence[Chosen | None]:
        """The choices that are planned before a run makes them; None stands for the model as it was given."""
        return (None,) if self._choices is None else self._choices.ahead

    def open_for(self, shapes: Shapes, chosen: Chosen | None) -> bool:
        """Whether a plan of a choice that leaves sizes open serves these shapes of all inputs, made now if need be.

        Raises:
            InvalidInputError: a shape does not fit, or is of no input.
        """
        for name, shape in shapes.items():
            check_shape(name, shape, self.signature.by_name)
        wanted, use = tuple(shapes.get(name) for name in self.input_names), object()
        try:
            if self._choices is None or chosen is None:
                taken = self._own.take_open(use, wanted)
            else:
                taken = self._choices.take_open(use, wanted, chosen)
            return taken is not None and not (taken[1].opening is not None and taken[1].opening.unchecked)
        finally:
            self._plans.users.pop(use, None)
            self._plans.close_unused()

    def close(self) -> None:
        """Free every plan, and then every context; what is in use is freed when it is not any more."""
        self._end()
        if self._meanwhile is not None:
            self._meanwhile.close()
        for model in self._models:
            model.close()
        self._plans.close((*self._setting.devices, self._compiler.arenas))

    @property
    def _models(self) -> tuple[ModelPlans, ...]:
        """The plans of the model as it was given, and of what inputs chose of it."""
        return (self._own, *(self._choices.made if self._choices is not None else ()))

    def _choices_of(self, prepared: Prepared) -> Choices | None:
        """What inputs choose of a model, if they do."""
        if not any(node.op_type == "If" for node in prepared.nodes):
            return None
        from nnadapter.engine.branches import Choices  # few models have it
        from nnadapter.onnx.preparation.deciding_conditions import decision_of

        decision = decision_of(prepared)
        return None if decision is None else Choices(decision, self._own, self._session_plans)

    def _plans_of(self, compiled: Compiled) -> ModelPlans:
        return (
            self._own
            if self._choices is None
            else self._choices.of(compiled.partitioning.model.prepared.branch_decisions)
        )

    def _usual(self) -> Compiled:
        """The plan at usual shapes, of what is chosen where every condition holds."""
        chosen = None if self._choices is None else self._choices.chosen(None)
        if chosen is not None:
            with suppress(InvalidInputError):  # no usual sizes fit the branches
                return self._compiled_for(self._complete(default_shapes(chosen.prepared)), chosen)
        return self._compiled_for(self._complete(default_shapes(self.prepared)))

    def _complete(self, shapes: Shapes) -> InputShapes:
        """The shapes of all inputs.

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
        return tuple(complete.values())

    def _compiled_for(self, shapes: InputShapes, chosen: Chosen | None = None) -> Compiled:
        """The plan for these input shapes, made now if it is not kept."""
        use = object()
        try:
            if self._choices is None:
                return self._own.take(use, shapes)[1]
            return self._choices.take(use, shapes, None, chosen)[1]
        finally:
            self._plans.users.pop(use, None)
            self._plans.close_unused()

    def _take(self, use: object, shapes: InputShapes, feed: Mapping[str, Any] | None = None) -> Taken[Compiled]:
        """See `PlansEngine._take`."""
        return (self._own if self._choices is None else self._choices).take(use, shapes, feed)

    def make_ahead(self, shapes: InputShapes, chosen: Chosen | None) -> None:
        """Make the plan for these shapes that a run takes, of what inputs choose where they choose anything."""
        use, feed = object(), dict[str, Any]()  # of which nothing is asked any more
        try:
            if self._choices is None:
                self._own.take(use, shapes, feed)
            else:
                self._choices.take(use, shapes, feed, chosen)
        finally:
            self._plans.users.pop(use, None)
            self._plans.close_unused()

    def on_host(self) -> CpuFallback:
        """The model as it was, for the CPU."""
        return self._compiler.on_host(self.as_it_was(), tuple(self.signature.output_names))

    def _is_made(self, shapes: InputShapes, feed: Mapping[str, Any]) -> bool:
        """Whether a run finds its plan made."""
        use = ExistingOnly()
        try:
            self._take(use, shapes, feed)
        except NotMadeError:
            return False
        finally:
            self._plans.users.pop(use, None)
            self._plans.close_unused()
        return True

    def _run_fallback_while_planning(
        self,
        shapes: InputShapes,
        values: Mapping[str, Any],
        wanted: Sequence[str],
        options: Any,
        control: RunControl | None,
        kept: Kept | None,
    ) -> Done | None:
        """See `PlansEngine._run_fallback_while_planning`."""
        meanwhile = self._meanwhile
        if meanwhile is None or self._is_made(shapes, values):
            return None
        if not meanwhile.begin(shapes, None if self._choices is None else self._choices.chosen(values)):
            return None
        with self._controlled(control, options):
            return meanwhile.run(values, wanted, control, kept)

    def _fits(self, feed: Mapping[str, Any]) -> Fits | None:
        """See `PlansEngine._fits`."""
        if self._choices is None:
            return None
        choices, chosen = self._choices, self._choices.chosen(feed)
        return lambda other: choices.chosen(other) is chosen

    def _serves(self, compiled: Compiled, feed: Mapping[str, Any]) -> Serves | None:
        """See `PlansEngine._serves`."""
        plans = self._plans_of(compiled)
        if self._choices is not None and not self._choices.chosen(feed).keeps_to(plans):
            return None
        return plans.serves(compiled, self.signature.declares)

    def _may_serve(self, compiled: Compiled, shapes: InputShapes) -> bool:
        """See `PlansEngine._may_serve`."""
        return self._plans_of(compiled).may_serve(shapes)

    def _has_served(self, compiled: Compiled) -> None:
        """See `PlansEngine._has_served`."""
        self._plans_of(compiled).open.served()

    def _declared_shapes(self) -> Shapes | None:
        """The shapes of all inputs if the model fixes them."""
        shapes = {name: self._known_shape(name) for name in self.input_names}
        fixed = {name: shape for name, shape in shapes.items() if shape is not None}
        return fixed if len(fixed) == len(shapes) else None


def _refuse_invalid(
    model: onnx.ModelProto,
    prepared: Prepared,
    setting: Setting,
    session_options: onnxruntime.SessionOptions | None,
) -> None:
    """Refuse at opening what ONNX Runtime would: no node of a model with dynamic shapes is compiled before a run.

    Raises:
        InvalidModelError: a node contradicts the definition of its operator, or has none, and no device accepts it.
    """
    if prepared.original is None and all(node.origins == (node.name,) for node in prepared.graph.nodes):
        model, nodes = prepared.model, prepared.nodes  # in order
    else:  # others took the place of some
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

    others = [device.context for device in setting.devices if not device.takes_ir and not device.is_host]
    refuse_invalid_nodes(model, suspects, infos, is_external, others, session_options)


def _version_of(node: onnx.NodeProto, model: onnx.ModelProto) -> int:
    domain = plain_domain(node.domain)
    return since_version(domain, node.op_type, opsets_of(model.opset_import).get(domain, 1)) or 0


def _is_suspect(node: OnnxNode, values: Mapping[str, Value]) -> bool:
    """Return whether ONNX Runtime may find a node invalid: by its schema, or where no schema tells."""
    dtypes = tuple([values[name].dtype if name in values else None for name in node.inputs])
    return bool(
        node.contradiction
        or node.bodies
        or not node.since_version
        or not may_take_types(node.op_type, node.since_version, node.domain, dtypes)
        or any(name and (name not in values or values[name].dtype is None) for name in node.outputs)
    )


def _background_planner(engine: PlannedEngine) -> BackgroundPlanner:
    from nnadapter.engine.background import BackgroundPlanner  # for one option alone

    return BackgroundPlanner(engine)


def _measurer(compiler: Compiler, session_options: onnxruntime.SessionOptions | None) -> Measurer:
    from nnadapter.engine.measuring import Measurer  # for one policy alone

    return Measurer(compiler, session_options)


def _count_checks(prepared: Prepared) -> tuple[CountCheck, ...]:
    """Return the checks of counts in feeds: of inputs that are numbers or vectors, which few models have."""
    graph = prepared.graph
    inputs = [name for name in graph.inputs if len(graph.value(name).shape or ()) < 2]
    if not inputs:
        return ()
    from nnadapter.engine.feed_counts import count_checks

    producers = {name: node for node in prepared.nodes for name in node.outputs}
    return count_checks(prepared.nodes, producers, prepared.constants.get, frozenset(inputs))
