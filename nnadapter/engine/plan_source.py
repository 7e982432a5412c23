"""Plan source: makes or loads the compiled plans of one model for the shapes, and the choices, of its inputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from nnadapter.engine.plan_store import ExistingOnly, Lease, NotMadeError, PlanCache
from nnadapter.engine.provenance import Provenance
from nnadapter.ir.operand import Array
from nnadapter.onnx.signature import Shapes, Signature
from nnadapter.traces.trace import Trace

if TYPE_CHECKING:
    from nnadapter.engine.bound_steps import Kept
    from nnadapter.engine.compiled import Checks, RunnablePlan
    from nnadapter.engine.control import RunControl
    from nnadapter.engine.feed_counts import CountCheck
    from nnadapter.engine.observed import KeptReport, Observed
    from nnadapter.engine.shape_sets import ShapeTest

InputShapes = tuple[tuple[int, ...] | None, ...]
"""Shape of each input; None for a value without one."""
OriginalModelShapes = Mapping[tuple[bool, ...], frozenset[InputShapes] | None]
"""Shapes at which the model runs with its branches, by the values of the conditions; None for all shapes."""
RunResult = tuple[list[Any], Provenance]
BranchTest = Callable[[Mapping[str, Any]], bool]
"""Returns whether a feed selects the same branches."""
BackgroundRun = Callable[[Mapping[str, Any], Sequence[str], "RunControl | None", "Kept | None"], RunResult | None]
"""Runs the entire model on the CPU, by its feed and output names; None if the CPU does not load it."""
PlanT = TypeVar("PlanT", bound="RunnablePlan")
LeasedPlan = tuple[Lease[PlanT], PlanT, Sequence[Any] | None]
"""A plan with its lease, and the symbolic sizes that its programs get."""


class PlanSource(ABC, Generic[PlanT]):
    """The plans of one model. Usable from many threads at once.

    Args:
        signature: of the model.
        input_names: everything that can be fed, in order.
        defaults: contents of optional inputs.
        devices: names of devices that outputs can be bound to.
        plans: stores the plans.
        trace: of the session.
    """

    recoverable: tuple[type[Exception], ...] = ()
    """Errors of a run after which `successor` runs the model."""

    def __init__(
        self,
        signature: Signature,
        input_names: Sequence[str],
        defaults: Mapping[str, Array],
        devices: Sequence[str],
        plans: PlanCache[PlanT],
        trace: Trace,
    ) -> None:
        self.signature, self.input_names, self.defaults = signature, tuple(input_names), defaults
        self.devices, self.plans, self.trace = tuple(devices), plans, trace
        self.checks: Checks | None = None
        """Accuracy checks of runs."""
        self.count_checks: tuple[CountCheck, ...] = ()
        """Checks of counts in feeds."""

    @abstractmethod
    def take(self, use: object, shapes: InputShapes, feed: Mapping[str, Any] | None = None) -> LeasedPlan[PlanT]:
        """Return the plan for shapes of the inputs, made or loaded if needed; see `PlanCache.take`.

        Args:
            use: of the plan.
            shapes: of the inputs.
            feed: the checked inputs, by which branches are selected; None to prepare a plan without inputs.
        """

    @abstractmethod
    def prepare(self, shapes: Shapes) -> None:
        """Make or load the plans that a run at these shapes needs."""

    @abstractmethod
    def observed(self, last_shapes: InputShapes | None) -> Observed | KeptReport:
        """Return what is known of the plan used last.

        Args:
            last_shapes: of the last run of a plan with dynamic shapes, if there was one.
        """

    @abstractmethod
    def close(self) -> None:
        """Free all plans, and then all devices; those in use are freed when the use ends."""

    def fits(self, feed: Mapping[str, Any]) -> BranchTest | None:
        """Return a test whether another feed selects the same branches; None if inputs select none."""
        return None

    def serves(self, compiled: PlanT, feed: Mapping[str, Any]) -> ShapeTest | None:
        """Return a test of shapes at which a plan is known to hold; None if each set of shapes needs a look."""
        return None

    def may_serve(self, compiled: PlanT, shapes: InputShapes) -> bool:
        """Return whether a plan with dynamic shapes can serve these; shapes with a plan of their own are excluded."""
        return True

    def note_served(self, compiled: PlanT) -> None:
        """Note that a plan with dynamic shapes served shapes at which it was not made."""

    def note_contradiction(self, lease: Lease[PlanT]) -> None:
        """Drop a plan whose runs contradict its measured time."""
        self.plans.drop(lease)

    def background_run(self, shapes: InputShapes, feed: Mapping[str, Any]) -> BackgroundRun | None:
        """Return the run of the entire model on the CPU while a plan is made in the background, if one is."""
        return None

    def write_new_plans(self) -> None:
        """Write new plans to the cache of the session, if it has one."""

    def successor(self, error: Exception) -> PlanSource[Any]:
        """Return the source that serves the model after a recoverable error.

        Raises:
            NNAdapterError: there is none.
        """
        raise error

    @contextmanager
    def use(self, use: object | None = None) -> Iterator[object]:
        """Return a use of a plan, which ends with the block."""
        use = object() if use is None else use
        try:
            yield use
        finally:
            self.plans.users.pop(use, None)
            self.plans.close_unused()

    def is_made(self, shapes: InputShapes, feed: Mapping[str, Any]) -> bool:
        """Return whether a run at these shapes finds its plan."""
        with self.use(ExistingOnly()) as use:
            try:
                self.take(use, shapes, feed)
            except NotMadeError:
                return False
            return True

    def known_shapes(self, shapes: InputShapes) -> Shapes:
        """Return shapes by the names of inputs, without values that have none."""
        return {name: shape for name, shape in zip(self.input_names, shapes, strict=True) if shape is not None}

    def declared_shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of an input if the model fixes it."""
        if name in self.defaults:
            return self.defaults[name].shape
        return self.signature.by_name[name].static_shape
