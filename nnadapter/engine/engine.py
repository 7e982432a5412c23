"""Engine: the interface between a session and the ways to run a model, and its traced form."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

from nnadapter.engine.bindings import Binding, Target
from nnadapter.engine.control import RunControl
from nnadapter.engine.observed import KeptReport, Observed
from nnadapter.engine.provenance import Provenance
from nnadapter.onnx.signature import ModelMetadata, NodeArg, Shapes
from nnadapter.traces.recorder import Recorder
from nnadapter.traces.trace import PLAN, RUN, SESSION, Trace

if TYPE_CHECKING:
    import onnxruntime


class Engine(Protocol):
    """One model, ready to run. Usable from many threads at once.

    ONNX Runtime alone is one (`host`), plans over several devices another (`planned`).
    """

    def run(
        self,
        names: Sequence[str] | None,
        feed: Mapping[str, Any],
        options: Any = None,
        control: RunControl | None = None,
    ) -> tuple[list[Any], Provenance]:
        """Run the model. See `InferenceSession.run`; `control` is the run's where somebody has a hand on it."""

    def binding(self) -> Binding:
        """Return a new binding of inputs and outputs; its runs are runs of the engine."""

    def prepare(self, shapes: Shapes) -> None:
        """Do now what a first run of these input shapes would have to do."""

    def observed(self) -> Observed | KeptReport:
        """What runs where, and what was seen of it: for the shapes of the last run, or usual ones."""

    def inputs(self) -> list[NodeArg]:
        """The inputs that must be fed."""

    def outputs(self) -> list[NodeArg]:
        """The outputs."""

    def overridable(self) -> list[NodeArg]:
        """The inputs that may be fed and have contents of their own."""

    def metadata(self) -> ModelMetadata:
        """What the model says of itself."""

    def session_options(self) -> onnxruntime.SessionOptions:
        """ONNX Runtime's own options."""

    def end_profiling(self) -> str:
        """Stop profiling; the file's name, or an empty string where nothing was profiled."""

    def profiling_started(self) -> int:
        """When profiling began, in nanoseconds; 0 where nothing is profiled."""

    def close(self) -> None:
        """Free everything; what is in use is freed when it is not any more. May be called again."""


def with_trace(make: Callable[..., Engine], trace: Trace) -> Callable[..., Engine]:
    """Return what makes an engine whose runs are events; `make` itself where the trace keeps none."""
    return (lambda *arguments: TracedEngine(make(*arguments), trace)) if isinstance(trace, Recorder) else make


class TracedEngine:
    """An engine whose runs are events, and whose trace is written when it is closed, or not used any more."""

    def __init__(self, engine: Engine, recorder: Recorder) -> None:
        self._engine, self._recorder = engine, recorder
        self._runs = count(1)
        weakref.finalize(self, recorder.finish)

    def run(
        self,
        names: Sequence[str] | None,
        feed: Mapping[str, Any],
        options: Any = None,
        control: RunControl | None = None,
    ) -> tuple[list[Any], Provenance]:
        """See `Engine.run`."""
        if control is not None:
            control.trace = self._recorder
        with self._one() as facts:
            results, provenance = self._engine.run(names, feed, options, control)
            facts["fell_back"] = provenance.fell_back
        return results, provenance

    def binding(self) -> Binding:
        """See `Engine.binding`."""
        return _TracedBinding(self._engine.binding(), self._one)

    def _one(self) -> AbstractContextManager[dict[str, Any]]:
        return self._recorder.span(SESSION, RUN, "run", run=next(self._runs))

    def prepare(self, shapes: Shapes) -> None:
        """See `Engine.prepare`."""
        with self._recorder.span(SESSION, PLAN, "prepare shapes"):
            self._engine.prepare(shapes)

    def observed(self) -> Observed | KeptReport:
        """See `Engine.observed`."""
        return self._engine.observed()

    def inputs(self) -> list[NodeArg]:
        """See `Engine.inputs`."""
        return self._engine.inputs()

    def outputs(self) -> list[NodeArg]:
        """See `Engine.outputs`."""
        return self._engine.outputs()

    def overridable(self) -> list[NodeArg]:
        """See `Engine.overridable`."""
        return self._engine.overridable()

    def metadata(self) -> ModelMetadata:
        """See `Engine.metadata`."""
        return self._engine.metadata()

    def session_options(self) -> onnxruntime.SessionOptions:
        """See `Engine.session_options`."""
        return self._engine.session_options()

    def end_profiling(self) -> str:
        """See `Engine.end_profiling`: the trace is written."""
        return self._recorder.finish()

    def profiling_started(self) -> int:
        """See `Engine.profiling_started`."""
        return self._recorder.started

    def close(self) -> None:
        """See `Engine.close`; the trace is written, if that was not done."""
        try:
            self._engine.close()
        finally:
            self._recorder.finish()


class _TracedBinding:
    """A `Binding` whose runs are events."""

    def __init__(self, binding: Binding, one: Callable[[], AbstractContextManager[dict[str, Any]]]) -> None:
        self._binding, self._one = binding, one

    @property
    def results(self) -> list[Any]:
        """See `Binding.results`."""
        return self._binding.results

    def bind_input(self, name: str, value: Any) -> None:
        """See `Binding.bind_input`."""
        self._binding.bind_input(name, value)

    def bind_output(self, name: str, target: Target) -> None:
        """See `Binding.bind_output`."""
        self._binding.bind_output(name, target)

    def clear_inputs(self) -> None:
        """See `Binding.clear_inputs`."""
        self._binding.clear_inputs()

    def clear_outputs(self) -> None:
        """See `Binding.clear_outputs`."""
        self._binding.clear_outputs()

    def run(self, options: Any) -> Provenance:
        """See `Binding.run`."""
        with self._one() as facts:
            provenance = self._binding.run(options)
            facts["fell_back"] = provenance.fell_back
        return provenance

    def arrays(self) -> list[Any]:
        """See `Binding.arrays`."""
        return self._binding.arrays()
