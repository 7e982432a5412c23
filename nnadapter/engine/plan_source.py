"""Source of the compiled plans of one model."""

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
    from nnadapter.engine.bound_steps import OutDevices
    from nnadapter.engine.compiled import Checks, RunnablePlan
    from nnadapter.engine.control import RunControl
    from nnadapter.engine.feed_counts import CountCheck
    from nnadapter.engine.observed import KeptReport, Observed
    from nnadapter.engine.shape_sets import ShapeTest

InputShapes = tuple[tuple[int, ...] | None, ...]
"""Shape of each input; None for a value without a shape."""
OriginalModelShapes = Mapping[tuple[bool, ...], frozenset[InputShapes] | None]
"""Selection of branches, as condition values -> input shapes that the original model serves; None for all shapes."""
RunResult = tuple[list[Any], Provenance]
BranchTest = Callable[[Mapping[str, Any]], bool]
BackgroundRun = Callable[[Mapping[str, Any], Sequence[str], "RunControl | None", "OutDevices | None"], RunResult | None]
"""Runs the entire model on the CPU, for a feed and output names; None if that is impossible."""
PlanT = TypeVar("PlanT", bound="RunnablePlan")
LeasedPlan = tuple[Lease[PlanT], PlanT, Sequence[Any] | None]
"""Cache entry of a plan, the plan, and the symbolic sizes passed to its programs."""


class PlanSource(ABC, Generic[PlanT]):
    """Source of the compiled plans of one model. Thread-safe.

    Args:
        input_names: all inputs and optional inputs, in order.
        defaults: contents of optional inputs.
        devices: devices to which outputs can be bound.
    """

    recoverable: tuple[type[Exception], ...] = ()
    """Errors of a run after which the engine continues with `successor`."""

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
        self.count_checks: tuple[CountCheck, ...] = ()

    @abstractmethod
    def take(self, use: object, shapes: InputShapes, feed: Mapping[str, Any] | None = None) -> LeasedPlan[PlanT]:
        """Return the plan for input shapes, made or loaded if needed; implement it with `self.plans.take`.

        `use` is a new object, see `PlanCache`. `feed` are checked inputs, which select branches; None without a run.
        """

    @abstractmethod
    def prepare(self, shapes: Shapes) -> None:
        """Make or load the plan for input shapes."""

    @abstractmethod
    def observed(self, last_shapes: InputShapes | None) -> Observed | KeptReport:
        """Return the facts for a report on the plan for `last_shapes`, the shapes of the last run, if any."""

    @abstractmethod
    def close(self) -> None:
        """Free all plans, then all devices, each after its last use."""

    def fits(self, feed: Mapping[str, Any]) -> BranchTest | None:
        """Return a test that a feed selects the same branches; None if inputs select none."""
        return None

    def serves(self, compiled: PlanT, feed: Mapping[str, Any]) -> ShapeTest | None:
        """Return a test of the shapes that a plan serves, for feeds like this one; None if only `take` can decide."""
        return None

    def may_serve(self, compiled: PlanT, shapes: InputShapes) -> bool:
        """Return True if a dynamic plan may serve these shapes; False if they have their own plan."""
        return True

    def note_served(self, compiled: PlanT) -> None:
        """Note that a dynamic plan served shapes other than its first ones."""

    def note_contradiction(self, lease: Lease[PlanT]) -> None:
        self.plans.drop(lease)

    def background_run(self, shapes: InputShapes, feed: Mapping[str, Any]) -> BackgroundRun | None:
        """Return a function that runs the model on the CPU while a thread makes the plan; None if no thread does."""
        return None

    def write_new_plans(self) -> None:
        pass

    def successor(self, error: Exception) -> PlanSource[Any]:
        """Return the source that replaces this one after a recoverable error, or raise the error."""
        raise error

    @contextmanager
    def use(self, use: object | None = None) -> Iterator[object]:
        """Yield a key for a use of plans, which ends with the block."""
        use = object() if use is None else use
        try:
            yield use
        finally:
            self.plans.users.pop(use, None)
            self.plans.close_unused()

    def is_made(self, shapes: InputShapes, feed: Mapping[str, Any]) -> bool:
        """Return True if a run at these shapes need not wait for its plan."""
        with self.use(ExistingOnly()) as use:
            try:
                self.take(use, shapes, feed)
            except NotMadeError:
                return False
            return True

    def known_shapes(self, shapes: InputShapes) -> Shapes:
        return {name: shape for name, shape in zip(self.input_names, shapes, strict=True) if shape is not None}

    def declared_shape(self, name: str) -> tuple[int, ...] | None:
        if name in self.defaults:
            return self.defaults[name].shape
        return self.signature.by_name[name].static_shape
