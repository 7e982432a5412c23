"""Plan source that loads the plans of a compiled file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nnadapter.engine.compiled_file import CompiledFile
from nnadapter.engine.file_loading import FilePlan, Loader, Requests, open_devices
from nnadapter.engine.messages import read_array
from nnadapter.engine.plan_source import BranchTest, InputShapes, LeasedPlan, PlanSource
from nnadapter.engine.plan_store import PlanCache, PlanCounts
from nnadapter.errors import InvalidInputError, InvalidOptionError, NNAdapterError
from nnadapter.files.messages import Message
from nnadapter.onnx.signature import Shapes
from nnadapter.options import Options
from nnadapter.records import replace
from nnadapter.traces.trace import Trace

if TYPE_CHECKING:
    import onnxruntime

    from nnadapter.engine.branch_conditions import Fork
    from nnadapter.engine.executor import CpuFallback
    from nnadapter.engine.file_plans import FileDynamicPlans
    from nnadapter.engine.observed import KeptReport
    from nnadapter.engine.shape_sets import ShapeTest
    from nnadapter.onnx.preparation.branch_decisions import Truths

    _Key = tuple[Truths, InputShapes]


class FilePlanSource(PlanSource[FilePlan]):
    """Plans of a compiled file, loaded when needed. Thread-safe."""

    def __init__(
        self,
        file: CompiledFile,
        requests: Requests | None,
        options: Options,
        trace: Trace,
        session_options: onnxruntime.SessionOptions | None = None,
        fall_back: Callable[[NNAdapterError], CpuFallback] | None = None,
    ) -> None:
        _refuse_placing(options)
        if getattr(session_options, "overrides", None):
            raise InvalidOptionError(
                "initializers and free dimensions of a compiled file cannot be changed; pass the "
                "session options to nnadapter.compile"
            )
        message = file.message
        names = tuple(device.name for device in message.devices)
        super().__init__(
            file.signature,
            tuple(message.order),
            {row.name: read_array(row, file.container) for row in message.defaults},
            names,
            PlanCache(options.max_plans, options.max_plan_bytes, trace),
            trace,
        )
        self._file = file
        self._fork = _fork_of(file)
        self._records: dict[_Key, Message] = {
            (tuple(plan.truths), tuple(file.shapes(plan).values())): plan
            for plan in message.plans
            if not plan.HasField("open")
        }
        self._own_shapes = frozenset(shapes for _, shapes in self._records)
        file.container.check_ahead(step.program.part for step in message.plans[0].steps if step.HasField("program"))
        self._open_devices = open_devices(
            message.devices, requests, options.fallback, session_options, trace, options.isolated
        )
        make_room = self.plans.room_maker()
        self._loader = Loader(file, self._open_devices, options.fallback, trace, session_options, make_room, fall_back)
        self._open = self._dynamic_plans() if any(plan.HasField("open") for plan in message.plans) else None
        try:
            # with several selections or dynamic plans, the first run decides which one is loaded
            if self._fork is None and (self._open is None or self._open.count < 2):
                self.prepare(file.shapes(message.plans[0]))
        except BaseException:
            self._open_devices.close()
            raise

    @property
    def device_names(self) -> tuple[str, ...]:
        return (*self._open_devices.opened, "cpu")

    def prepare(self, shapes: Shapes) -> None:
        sizes = (tuple(shapes[name]) if name in shapes else self.declared_shape(name) for name in self.input_names)
        input_shapes, choices = tuple(sizes), {tuple(plan.truths) for plan in self._file.message.plans}
        ready = [self._is_ready(input_shapes, truths) for truths in sorted(choices - {()})]
        if not any(ready):
            self._is_ready(input_shapes, None)

    def _is_ready(self, shapes: InputShapes, truths: Truths | None) -> bool:
        """Load a plan; return False if the file has none."""
        with self.use() as use:
            return (self.take(use, shapes) if truths is None else self._lease(use, shapes, truths)) is not None

    def observed(self, last_shapes: InputShapes | None) -> KeptReport:
        from nnadapter.engine.observed import KeptReport

        newest, opened = self.plans.newest, self._open_devices.opened
        isolated = tuple(name for name, device in opened.items() if device.is_isolated)
        if newest is None:
            return KeptReport(self._file.report(self._file.message.plans[0]), plans=self.counts, isolated=isolated)
        return KeptReport(
            self._file.report(newest.record),
            seconds=newest.step_seconds,
            failures=newest.step_failures,
            notes=(*newest.notes, *self._loader.pause_texts),
            incidents=self._loader.incidents,
            plans=self.counts,
            transfers=newest.plan.transfers,
            isolated=isolated,
        )

    @property
    def counts(self) -> PlanCounts:
        return replace(
            self.plans.counts, served_shapes_text=f"the file is for {self._served()}" if self.input_names else ""
        )

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
        self.plans.close((self._open_devices, self._loader))

    def take(self, use: object, shapes: InputShapes, feed: Mapping[str, Any] | None = None) -> LeasedPlan[FilePlan]:
        truths = self._fork.select(feed) if self._fork is not None and feed is not None else ()
        leased = self._lease(use, shapes, truths)
        if leased is None and truths and self._may_be_any(truths, shapes):
            leased = self._lease(use, shapes, ())
        if leased is not None:
            return leased
        if self._file.original_model is None:
            raise self._unknown(shapes)
        original_model = self._file.original_model
        return (*self.plans.take(use, "whole", lambda: self._loader.load(original_model)), None)

    def _may_be_any(self, truths: Truths, shapes: InputShapes) -> bool:
        """Return True if the plan with all branches may serve a selection without a plan of its own."""
        return True

    def _lease(self, use: object, shapes: InputShapes, truths: Truths) -> LeasedPlan[FilePlan] | None:
        key = truths, shapes
        record = self._records.get(key)
        if record is not None:
            return (*self.plans.take(use, key, lambda: self._loader.load(record)), None)
        return (
            None
            if self._open is None or None in shapes
            else self._open.take_existing(use, self.known_shapes(shapes), tuple(truths))
        )

    def fits(self, feed: Mapping[str, Any]) -> BranchTest | None:
        if self._fork is None:
            return None
        fork, selected = self._fork, self._fork.select(feed)
        return lambda other: fork.select(other) == selected

    def serves(self, compiled: FilePlan, feed: Mapping[str, Any]) -> ShapeTest | None:
        return None if compiled.shapes is None else compiled.shapes.test(self.signature.declares)

    def may_serve(self, compiled: FilePlan, shapes: InputShapes) -> bool:
        return shapes not in self._own_shapes

    def _dynamic_plans(self) -> FileDynamicPlans:
        from nnadapter.engine.file_plans import FileDynamicPlans

        return FileDynamicPlans(self._file.message.plans, self._loader, self.plans)

    def _unknown(self, shapes: Sequence[tuple[int, ...] | None]) -> InvalidInputError:
        from nnadapter.engine.file_texts import command

        got = ", ".join(f"{name}={list(shape or ())}" for name, shape in zip(self.input_names, shapes, strict=True))
        shapes_by_name = self.known_shapes(tuple(shapes))
        reasons = [] if self._open is None else self._open.why_not(shapes_by_name)
        broken = " or ".join(f"({reason})" for reason in dict.fromkeys(reasons) if reason)
        return InvalidInputError(
            f"the compiled model is for input shapes {self._served()}, got {got}{broken and f' {broken}'}; compile it "
            f"for these as well ({command(self._file, shapes_by_name)}), or run the original model"
        )

    def _served(self) -> str:
        from nnadapter.engine.file_texts import served_shapes_text

        return served_shapes_text(self._file, [] if self._open is None else self._open.shape_sets)


def _fork_of(file: CompiledFile) -> Fork[Truths] | None:
    if not file.message.forks:
        return None
    from nnadapter.engine.branch_conditions import fork_of

    return fork_of(file)


def _refuse_placing(options: Options) -> None:
    """Raise InvalidOptionError for `background` and for options that matter only during compilation."""
    usual = Options()
    for name in ("policy", "precision", "rules", "plan"):
        if getattr(options, name) != getattr(usual, name):
            decision = "precision" if name == "precision" else "placement"
            raise InvalidOptionError(
                f"{name} decides the {decision} of nodes, which is fixed in a compiled model; pass it to "
                "nnadapter compile, or nnadapter.compile"
            )
    if options.background:
        raise InvalidOptionError(
            "background is for sessions that make plans of a model, but a compiled file contains them; leave it out"
        )
    if options.checks:
        raise InvalidOptionError(
            "verify and shadow check nodes of the model, which a compiled file does not contain; pass verify to "
            "nnadapter.compile, or run the model itself"
        )
