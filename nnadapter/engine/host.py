"""Engine that runs an unmodified model on ONNX Runtime alone, with bit-equal results.

Optimizers that break a model are disabled.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from nnadapter.drivers.failures import print_crashes
from nnadapter.drivers.onnxruntime import failures, values
from nnadapter.engine.provenance import Provenance, of_one
from nnadapter.errors import CancelledError, ClosedError, InvalidModelError, ModelFileError
from nnadapter.onnx.onnxruntime_limits import CPU_PROVIDER, loadable
from nnadapter.onnx.wire_format import check_size, mentions
from nnadapter.process.real_onnxruntime import onnxruntime
from nnadapter.traces.trace import RUN, SESSION

if TYPE_CHECKING:
    import onnx

    from nnadapter.engine.bindings import Binding
    from nnadapter.engine.control import RunControl
    from nnadapter.engine.feed_counts import CountCheck
    from nnadapter.engine.observed import Observed
    from nnadapter.engine.tracing import HostTracing
    from nnadapter.onnx.signature import ModelMetadata, NodeArg, Shapes, Signature
    from nnadapter.planning.setting import Setting
    from nnadapter.traces.recorder import Recorder


_Result = TypeVar("_Result")
CPU = "cpu"
_OF_COUNTS = ("tensor(int64)", "tensor(int32)", "tensor(int16)", "tensor(float)", "tensor(double)")
_ADVICE = "check the model with onnx.checker, or update onnxruntime"


class HostEngine:
    """Engine that runs the unmodified model by one ONNX Runtime session."""

    def __init__(
        self,
        source: str | os.PathLike[str] | bytes | onnx.ModelProto,
        setting: Callable[[], Setting],
        session_options: onnxruntime.SessionOptions | None,
        provider_options: Mapping[str, Any],
        arguments: Mapping[str, Any],
        deadline_s: float | None = None,
        tracing: HostTracing | None = None,
    ) -> None:
        """Load the model; `setting` opens the CPU as a device, which only reports need.

        Raises:
            InvalidModelError, ModelFileError: ONNX Runtime cannot load it, or an Einsum equation is invalid.
        """
        self._source, self._setting = source, setting
        self._deadlines = None
        if deadline_s is not None:
            from nnadapter.engine.control import Deadlines

            self._deadlines = Deadlines(deadline_s)
        provider = (CPU_PROVIDER, dict(provider_options)) if provider_options else CPU_PROVIDER
        self._recorder: Recorder | None = None
        self._tracing, self._run_numbers = tracing, count(1)
        if tracing is not None:
            session_options, self._recorder = tracing.session_options, tracing.recorder
        self._loader = _Loader(source, session_options, provider, arguments)
        self._unoptimized_runs = failures.UnoptimizedRuns()
        with nullcontext() if tracing is None else tracing.loading():
            self.session = self._loader.load()
            self._counts = self._loader.count_checks(self.session)
        self._names = [value.name for value in self.session.get_outputs()]
        self._texts = [value.name for value in self.session.get_inputs() if value.type == "tensor(string)"]
        self._checks_feeds = bool(self._counts or self._texts)
        self._set_runs()
        if tracing is not None:
            tracing.begin(self.session)
            weakref.finalize(self, tracing.recorder.finish)

    def _set_runs(self) -> None:
        by_memory = values.gives_foreign_memory(self.session)
        self._run: Callable[..., Any] = (
            values.run_by_memory(self.session) if by_memory else values.inner_run(self.session)
        )
        self._run_binding = self.session.run_with_iobinding
        if self._tracing is not None:
            self._run, self._run_binding = map(self._tracing.traced, (self._run, self._run_binding))

    def run(
        self,
        names: Sequence[str] | None,
        feed: Mapping[str, Any],
        options: Any = None,
        control: RunControl | None = None,
    ) -> tuple[list[Any], Provenance]:
        if self._recorder is not None:
            return self._recorded(self._recorder, names, feed, options, control)
        return self._run_untraced(names, feed, options, control)

    def _recorded(
        self,
        recorder: Recorder,
        names: Sequence[str] | None,
        feed: Mapping[str, Any],
        options: Any,
        control: RunControl | None,
    ) -> tuple[list[Any], Provenance]:
        if control is not None:
            control.trace = recorder
        with recorder.span(SESSION, RUN, "run", run=next(self._run_numbers)) as facts:
            results, provenance = self._run_untraced(names, feed, options, control)
            facts["fell_back"] = provenance.fell_back
        return results, provenance

    def _run_untraced(
        self, names: Sequence[str] | None, feed: Mapping[str, Any], options: Any, control: RunControl | None
    ) -> tuple[list[Any], Provenance]:
        if control is None and not self._has_deadline(options):
            return self._run_with(names, feed, options)
        complete = feed if options is None else self._with_adapters(feed, options)
        return self._controlled(lambda own_options: self._run_with(names, complete, own_options), options, control)

    def _with_adapters(self, feed: Mapping[str, Any], options: Any) -> Mapping[str, Any]:
        """Add the parameters of active LoRA adapters to the feed, since copied run options lack these adapters."""
        from nnadapter.drivers.onnxruntime.adapters import adapter_parameters, has_adapters

        return (
            {**feed, **adapter_parameters(options, (*self.inputs(), *self.overridable()))}
            if has_adapters(options)
            else feed
        )

    def _has_deadline(self, options: Any) -> bool:
        if self._deadlines is not None or options is None:
            return self._deadlines is not None
        from nnadapter.engine.control import deadline_of

        return deadline_of(options) is not None

    def _controlled(self, run: Callable[[Any], _Result], options: Any, control: RunControl | None) -> _Result:
        from nnadapter.engine.control import RunControl

        control = control or RunControl()
        try:
            return run(control.begin(options, self._deadlines))
        except CancelledError as error:
            raise control.error("the run of the model ended early", device=CPU) from error
        finally:
            control.end()

    def _run_with(
        self, names: Sequence[str] | None, feed: Mapping[str, Any], options: Any
    ) -> tuple[list[Any], Provenance]:
        if self._checks_feeds:
            feed = self._checked(feed)
        started = time.perf_counter()
        try:
            results = self._run(names or self._names, feed, options)
        except ClosedError:
            raise
        except Exception as error:  # noqa: BLE001  raised again unless the workaround helps
            results = self._by_memory(names, feed, options, error)
        return results, of_one(0, CPU, time.perf_counter() - started)

    def binding(self) -> Binding:
        from nnadapter.engine.bindings import HostBinding

        return HostBinding(self.session, self._run_bound, self._counts)

    def prepare(self, shapes: Shapes) -> None:
        pass

    def observed(self) -> Observed:
        """Load and plan the model again, for the CPU, and return the facts for a report."""
        from nnadapter.engine.observed import Observed
        from nnadapter.onnx.files import load_model
        from nnadapter.onnx.preparation.default_sizes import default_shapes
        from nnadapter.planning.planner import Planner, prepare_for

        model, setting = load_model(self._source, folder=self._folder()), self._setting()
        prepared = prepare_for(model, setting)
        planner = Planner(prepared, setting)
        settled = planner.settle(planner.judge(default_shapes(prepared)))
        return Observed(partitioning=settled, model=model.graph.name, notes=tuple(self._loader.notes))

    def inputs(self) -> list[NodeArg]:
        return list(self.session.get_inputs())

    def outputs(self) -> list[NodeArg]:
        return list(self.session.get_outputs())

    def overridable(self) -> list[NodeArg]:
        return list(self.session.get_overridable_initializers())

    def metadata(self) -> ModelMetadata:
        model_metadata: ModelMetadata = self.session.get_modelmeta()
        return model_metadata

    def session_options(self) -> onnxruntime.SessionOptions:
        return self.session.get_session_options()

    def end_profiling(self) -> str:
        return str(self.session.end_profiling()) if self._recorder is None else self._recorder.finish()

    def profiling_started(self) -> int:
        if self._recorder is not None:
            return self._recorder.started
        return int(self.session.get_profiling_start_time_ns())

    def close(self) -> None:
        self._run = _closed
        if self._deadlines is not None:
            self._deadlines.close()
        if self._recorder is not None:
            self._recorder.finish()

    def _run_bound(self, binding: Any, options: Any) -> Provenance:
        if self._run is _closed:
            _closed()
        if self._recorder is None:
            return self._run_bound_untraced(binding, options)
        with self._recorder.span(SESSION, RUN, "run", run=next(self._run_numbers)) as facts:
            provenance = self._run_bound_untraced(binding, options)
            facts["fell_back"] = provenance.fell_back
        return provenance

    def _run_bound_untraced(self, binding: Any, options: Any) -> Provenance:
        if not self._has_deadline(options):
            return self._run_bound_with(binding, options)
        if options is not None:
            from nnadapter.drivers.onnxruntime.adapters import warn_of_adapters

            warn_of_adapters(options)
        return self._controlled(lambda own_options: self._run_bound_with(binding, own_options), options, None)

    def _run_bound_with(self, binding: Any, options: Any) -> Provenance:
        started = time.perf_counter()
        with failures.translated("ONNX Runtime failed to run the model", "check what is bound"):
            self._run_binding(binding, options)
        return of_one(0, CPU, time.perf_counter() - started)

    def _checked(self, feed: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._texts and isinstance(feed, Mapping):
            feed = self._with_texts(feed)
        for count_check in self._counts:
            count_check.check(feed)
        return feed

    def _with_texts(self, feed: Mapping[str, Any]) -> Mapping[str, Any]:
        """Convert arrays of bytes to strings, since ONNX Runtime would read beyond their elements."""
        arrays = {name: feed[name] for name in self._texts if name in feed}
        kinds = {name: getattr(getattr(array, "dtype", None), "kind", "") for name, array in arrays.items()}
        if not {"S", "V"} & set(kinds.values()):
            return feed
        from nnadapter.onnx.signature import texts_of

        return {**feed, **{name: texts_of(name, arrays[name]) for name, kind in kinds.items() if kind in ("S", "V")}}

    def _by_memory(self, names: Sequence[str] | None, feed: Mapping[str, Any], options: Any, error: Exception) -> Any:
        """Repeat a failed run with values passed by address, if ONNX Runtime's Python interface lacks a dtype."""
        foreign = isinstance(feed, Mapping) and (
            any(map(values.is_foreign, feed.values())) or values.goes_by_memory(self.session)
        )
        if not foreign:
            return self._unoptimized(names, feed, options, error)
        try:
            return values.run_by_memory(self.session)(names or self._names, feed, options)
        except Exception as second:  # noqa: BLE001  raised if the run fails again
            return self._unoptimized(names, feed, options, second)

    def _unoptimized(self, names: Sequence[str] | None, feed: Mapping[str, Any], options: Any, error: Exception) -> Any:
        """Repeat a failed run with fewer optimizations.

        Raises InvalidInputError for an invalid feed, and `error` if the repetition fails.
        """
        with failures.translated("ONNX Runtime failed to run the model", "check the inputs"):
            signature = self._signature()
            signature.check_outputs(names)
            signature.check_feed(feed)
            if not self._unoptimized_runs.allows(error):
                raise error
            run: Callable[..., Any] = values.run_by_memory if values.goes_by_memory(self.session) else values.inner_run
            session, results = self._loader.load_lower(
                lambda session: run(session)(names or self._names, feed, options), error
            )
        self.session = session
        self._set_runs()
        return results

    def _folder(self) -> str | None:
        from nnadapter.drivers.onnxruntime.sessions import external_folder

        return external_folder(self.session.get_session_options())

    def _signature(self) -> Signature:
        from nnadapter.onnx.files import load_model
        from nnadapter.onnx.signature import read_signature

        model = load_model(self._source, folder=self._folder())
        inputs = [value.name for value in self.session.get_inputs()]
        overridable = [value.name for value in self.session.get_overridable_initializers()]
        return read_signature(model, [*inputs, *overridable], frozenset(overridable))


def host_alone(source: str | os.PathLike[str] | bytes, arguments: Mapping[str, Any]) -> HostEngine | None:
    """Return an engine for a session without accelerators, if ONNX Runtime can load the model."""
    print_crashes()
    try:
        return HostEngine(source, _setting, None, {}, arguments)
    except ModelFileError:
        raise
    except InvalidModelError:
        return None


def _setting() -> Setting:
    from nnadapter.options import Options
    from nnadapter.planning.setting import open_setting

    return open_setting(CPU, Options())


def _closed(*_: Any) -> Any:
    raise ClosedError("the session is closed; make another one")


class _Loader:
    def __init__(
        self,
        source: str | os.PathLike[str] | bytes | onnx.ModelProto,
        session_options: onnxruntime.SessionOptions | None,
        provider: object,
        arguments: Mapping[str, Any],
    ) -> None:
        self._source, self._session_options, self._provider = source, session_options, provider
        self._arguments = dict(arguments)
        self._others = self._arguments.pop("disabled_optimizers", None) or ()
        self._disabled: list[str] = []
        self.notes: list[str] = []

    def load(self) -> onnxruntime.InferenceSession:
        path_or_bytes = self._path_or_bytes()
        _check_size(path_or_bytes)
        if mentions(path_or_bytes, b"Einsum"):
            from nnadapter.onnx.parts import check_equations_in

            check_equations_in(path_or_bytes)
        use_for_whole_model = getattr(self._session_options, "use_for_whole_model", None)
        if use_for_whole_model is not None:
            use_for_whole_model()
        self._disabled = failures.disabled_optimizers(
            self._session_options, failures.wrong_fusions(path_or_bytes), self._others
        )
        try:
            return self._open_session(path_or_bytes, self._session_options)
        except Exception as error:  # noqa: BLE001  raised if the model does not load with fewer optimizations
            from nnadapter.drivers.onnxruntime.sessions import external_folder
            from nnadapter.onnx.files import contents_of, describe, load_model

            model = load_model(self._source, folder=external_folder(self._session_options))
            with failures.translated(
                f"ONNX Runtime does not load {describe(self._source)}", _ADVICE, InvalidModelError
            ):
                lowered = loadable(model)
                if lowered is model:
                    return self._lower(path_or_bytes, lambda session: session, "failed to load the model", error)
                return self._open_session(contents_of(lowered), self._session_options)

    def count_checks(self, session: onnxruntime.InferenceSession) -> tuple[CountCheck, ...]:
        """Return the model's count checks (`feed_counts`). Only inputs of rank 0 or 1 can have counts."""
        inputs = [value.name for value in session.get_inputs() if len(value.shape) < 2 and value.type in _OF_COUNTS]
        if not inputs:
            return ()
        from nnadapter.engine.feed_counts import wire_checks

        return wire_checks(self._path_or_bytes(), frozenset(inputs))

    def load_lower(
        self, run: Callable[[onnxruntime.InferenceSession], _Result], error: Exception
    ) -> tuple[onnxruntime.InferenceSession, _Result]:
        """Load the model with fewer optimizations; return its session and the result of `run`, or raise `error`."""
        failure = "failed to run the model"
        return self._lower(self._path_or_bytes(), lambda session: (session, run(session)), failure, error)

    def _path_or_bytes(self) -> str | os.PathLike[str] | bytes:
        source = self._source
        return source if isinstance(source, (str, bytes, os.PathLike)) else _written(source)

    def _open_session(
        self, path_or_bytes: str | os.PathLike[str] | bytes, options: onnxruntime.SessionOptions | None
    ) -> onnxruntime.InferenceSession:
        if not self._disabled:
            return onnxruntime.InferenceSession(path_or_bytes, options, providers=[self._provider], **self._arguments)
        options = options or onnxruntime.SessionOptions()
        with failures.without_extended(options, self._disabled):
            return onnxruntime.InferenceSession(
                path_or_bytes,
                options,
                providers=[self._provider],
                disabled_optimizers=self._disabled,
                **self._arguments,
            )

    def _lower(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        use: Callable[[onnxruntime.InferenceSession], _Result],
        failure: str,
        error: Exception,
    ) -> _Result:
        options = self._session_options or onnxruntime.SessionOptions()
        result, note = failures.with_fewer_optimizations(
            options, lambda: use(self._open_session(path_or_bytes, options)), f"ONNX Runtime {failure}", error
        )
        self.notes.append(note)
        return result


def _check_size(source: str | os.PathLike[str] | bytes) -> None:
    try:
        has_functions = check_size(source, "the model" if isinstance(source, bytes) else f"model {os.fspath(source)!r}")
    except IndexError:
        return
    if has_functions:
        from nnadapter.onnx.graphs import check_calls_in

        check_calls_in(source)


def _written(model: onnx.ModelProto) -> bytes:
    from nnadapter.onnx.files import contents_of, load_model

    return contents_of(load_model(model))
