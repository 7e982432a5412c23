"""A model that is run by plans, wherever they come from: what a run of it does, and what it tells of the model."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from nnadapter.drivers.tensor_copies import TENSORS
from nnadapter.engine.bound_steps import Kept
from nnadapter.engine.fallback import Incident
from nnadapter.engine.plan_store import Lease, PlanCache
from nnadapter.engine.provenance import Provenance, with_incidents
from nnadapter.engine.repeated_runs import Done, Fits, Repeat, Serves
from nnadapter.ir.operand import Array
from nnadapter.onnx.signature import ModelMetadata, NodeArg, Shapes, Signature, node_arg

if TYPE_CHECKING:
    import onnxruntime

    from nnadapter.engine.bindings import Binding
    from nnadapter.engine.compiled import Checks, RunnablePlan
    from nnadapter.engine.control import Deadlines, RunControl
    from nnadapter.engine.feed_counts import CountCheck


InputShapes = tuple[tuple[int, ...] | None, ...]
"""Per input its shape; None for what has none."""
OriginalModelShapes = Mapping[tuple[bool, ...], frozenset[InputShapes] | None]
"""Choices that the model as it was given serves, by which conditions hold, and at which shapes; None at any."""
Held = TypeVar("Held", bound="RunnablePlan")
Taken = tuple[Lease[Held], Held, Sequence[Any] | None]
"""A plan, and what its programs are told of sizes."""


class PlansEngine(ABC, Generic[Held]):
    """Runs a model by plans. Usable from many threads at once.

    Args:
        signature: of the model.
        inputs: names of everything that may be fed, in order.
        defaults: contents of inputs that need not be fed.
        devices: names of those that outputs may be bound to.
        plans: where plans are kept.
        deadline_s: see `Options.deadline_s`.
        session_options: ONNX Runtime's own.
    """

    def __init__(
        self,
        signature: Signature,
        inputs: Sequence[str],
        defaults: Mapping[str, Array],
        devices: Sequence[str],
        plans: PlanCache[Held],
        deadline_s: float | None,
        session_options: onnxruntime.SessionOptions | None,
    ) -> None:
        self.signature, self.input_names, self.defaults = signature, tuple(inputs), defaults
        self._devices, self._plans, self._session_options = tuple(devices), plans, session_options
        self._all_outputs = list(signature.output_names)
        self._deadlines = _deadlines(deadline_s)
        self.checks: Checks | None = None
        """What holds runs to the CPU; None where nobody does."""
        self._has_read_entries = False
        """The entries of ONNX Runtime's own run options were read, which is done once."""
        self.count_checks: tuple[CountCheck, ...] = ()
        """The checks of counts in feeds."""
        self._latest: Repeat | None = None
        self._last: InputShapes | None = None
        """The shapes of the last run of a plan that leaves sizes open."""

    @abstractmethod
    def _take(self, use: object, shapes: InputShapes, feed: Mapping[str, Any] | None = None) -> Taken[Held]:
        """Take the plan for these shapes of the inputs; see `PlanCache.take`."""

    def run(
        self,
        names: Sequence[str] | None,
        feed: Mapping[str, Any],
        options: Any = None,
        control: RunControl | None = None,
        kept: Kept | None = None,
    ) -> tuple[list[Any], Provenance]:
        """See `Engine.run`; for `kept`, `CompiledPlan.run`."""
        for count_check in self.count_checks:
            count_check.check(feed)
        checks = self.checks
        is_due = checks is not None and checks.is_due()
        latest = None if is_due else self._latest
        if control is None and (options is not None or self._deadlines is not None):
            from nnadapter.engine.control import RunControl  # most runs have none

            control = RunControl()
        if options is not None:
            feed = self._with_adapters(feed, options, control, is_bound=kept is not None)
            self._warn_of_unread_entries(options)
        if (
            latest is not None
            and control is None
            and kept is None
            and (names is None or (type(names) is list and names == self._all_outputs))
        ):
            done = latest.run(feed)
            if done is None:
                done = self._run_at_other_sizes(latest, feed)
            if done is not None:
                if latest.is_broken:  # of plans that serve a class nobody measured which is best
                    self._contradicted(latest.lease)
                return done
        wanted = self.signature.check_outputs(names)
        values = self.signature.check_feed(feed)
        if self.defaults:
            values = {**self.defaults, **values}
        shapes = tuple([_shape_of(values[name]) for name in self.input_names])
        done = self._run_fallback_while_planning(shapes, values, wanted, options, control, kept)
        if done is not None:
            return done
        use = object()
        try:
            lease, compiled, sizes = self._take(use, shapes, values)
            is_open = compiled.has_dynamic_shapes
            if is_open:
                self._last = shapes
            if checks is not None and (is_due or not checks.is_checked(compiled)):
                return self._run_checked(checks, use, shapes, (values, wanted, kept), options, control)
            is_other = latest is None or latest.lease is not lease or is_open or latest.is_of_choice
            if kept is None and is_other and not self.defaults:  # which repeats nothing that stays on devices
                serves, fits = self._serves(compiled, values), self._fits(values)
                self._latest = Repeat(self._plans, lease, compiled, self.signature, values, sizes, serves, fits)
            if control is None:
                done = compiled.plan.run(values, wanted, None, kept, sizes)
                if compiled.watch is not None and compiled.watch.is_broken_by(done[1].seconds, time.perf_counter()):
                    self._contradicted(lease)
                return done
            with self._controlled(control, options):
                return compiled.plan.run(values, wanted, control, kept, sizes)
        finally:
            self._plans.users.pop(use, None)
            self._plans.close_unused()
            TENSORS.free_orphans()

    def _with_adapters(
        self, feed: Mapping[str, Any], options: Any, control: RunControl | None, *, is_bound: bool
    ) -> Mapping[str, Any]:
        """Return the feed with the parameters of active adapters; CPU steps get options without adapters."""
        from nnadapter.drivers.onnxruntime.adapters import adapter_parameters, has_adapters, warn_of_adapters

        if not has_adapters(options):
            return feed
        if control is not None:
            control.copies_options = True
        if is_bound:
            warn_of_adapters(options)
            return feed
        return {**feed, **adapter_parameters(options, (*self.inputs(), *self.overridable()))}

    def _warn_of_unread_entries(self, options: Any) -> None:
        """Warn about entries of run options that no device of the session reads."""
        entries = getattr(options, "entries", None)
        if entries is None:
            if self._has_read_entries:
                return  # ONNX Runtime raises an exception for each entry that it lacks, which takes long
            from nnadapter.drivers.onnxruntime.sessions import entries_of

            self._has_read_entries, entries = True, entries_of(options)
        if entries:
            from nnadapter.drivers.providers import warn_of_unread_entries

            warn_of_unread_entries(entries, self._devices)

    def _run_fallback_while_planning(
        self,
        shapes: InputShapes,
        values: Mapping[str, Any],
        wanted: Sequence[str],
        options: Any,
        control: RunControl | None,
        kept: Kept | None,
    ) -> Done | None:
        """A run of the model as it was, while its plan is made; None where it has one, or is to wait for it."""
        return None

    def _fits(self, feed: Mapping[str, Any]) -> Fits | None:
        """What says whether another feed chooses what this one does; None where inputs choose nothing."""
        return None

    def _serves(self, compiled: Held, feed: Mapping[str, Any]) -> Serves | None:
        """What says at which shapes a plan is known to serve; None where that takes looking for a plan."""
        return None

    def _may_serve(self, compiled: Held, shapes: InputShapes) -> bool:
        """Whether a plan that serves a class may serve these shapes of it: not those with a plan of their own."""
        return True

    def _has_served(self, compiled: Held) -> None:
        """A plan that serves a class has served shapes at which it was not made."""

    def _run_at_other_sizes(self, latest: Repeat, feed: Any) -> Done | None:
        """A run like the one before but for shapes of one class; None, and nothing done, if it is none."""
        other = latest.at_other_sizes(feed, self.input_names)
        if other is None:
            return None
        repeat, shapes = other
        compiled = repeat.lease.plan
        if compiled is None or not self._may_serve(compiled, shapes):
            return None
        done = repeat.run_like(feed)
        if done is not None:
            self._latest, self._last = repeat, shapes
            self._has_served(compiled)
        return done

    @contextmanager
    def _controlled(self, control: RunControl | None, options: Any) -> Iterator[None]:
        """A run that somebody may stop."""
        if control is None:
            yield
            return
        from nnadapter.drivers.onnxruntime.sessions import run_options

        before = run_options.get()
        try:
            run_options.set(control.begin(options, self._deadlines))
            yield
        finally:
            control.end()
            run_options.set(before)

    def _run_checked(
        self,
        checks: Checks,
        use: object,
        shapes: InputShapes,
        work: tuple[Mapping[str, Any], Sequence[str], Kept | None],
        options: Any,
        control: RunControl | None,
    ) -> tuple[list[Any], Provenance]:
        """Run, and compare every step; again where something was wrong, by another plan.

        What is compared, made and repeated is no time of the run: nobody stops it, and a deadline does not count it.
        """
        (values, wanted, kept), found = work, tuple[Incident, ...]()
        while True:
            _, compiled, sizes = self._take(use, shapes, values)
            with nullcontext() if checks.is_checked(compiled) else checks.first:
                with self._controlled(control, options):
                    results, provenance, held = compiled.plan.run_held(values, wanted, control, kept, sizes)
                wrong = checks.check_run(compiled, provenance, held)
            found += wrong
            if not wrong:
                return results, with_incidents(provenance, found)
            control = None

    def binding(self) -> Binding:
        """See `Engine.binding`."""
        from nnadapter.engine.bindings import PlannedBinding  # most sessions bind nothing

        return PlannedBinding(self, self._all_outputs, self._devices)

    def _contradicted(self, lease: Lease[Held]) -> None:
        """Give up a plan whose runs contradict what was measured of it."""
        self._plans.drop(lease)

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
            from nnadapter.drivers.onnxruntime.sessions import new_session_options

            self._session_options = new_session_options()
        return self._session_options

    def end_profiling(self) -> str:
        """See `Engine.end_profiling`."""
        return ""

    def profiling_started(self) -> int:
        """See `Engine.profiling_started`."""
        return 0

    def _end(self) -> None:
        """Nothing is run any more: what stands beside the plans goes."""
        self._latest = None
        if self._deadlines is not None:
            self._deadlines.close()
        TENSORS.free_orphans()

    def _known(self, shapes: InputShapes) -> Shapes:
        return {name: shape for name, shape in zip(self.input_names, shapes, strict=True) if shape is not None}

    def _known_shape(self, name: str) -> tuple[int, ...] | None:
        if name in self.defaults:
            return self.defaults[name].shape
        return self.signature.by_name[name].static_shape


def _shape_of(value: Any) -> tuple[int, ...] | None:
    """The shape of a tensor; None for a sequence, a sparse tensor or an optional."""
    shape = getattr(value, "shape", None)
    return shape if type(shape) is tuple else None


def _deadlines(seconds: float | None) -> Deadlines | None:
    if seconds is None:
        return None
    from nnadapter.engine.control import Deadlines

    return Deadlines(seconds)
