"""InferenceSession, with ONNX Runtime's methods, and the choice of the engine for its model. Imports are lazy."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Self, cast

from nnadapter.errors import CancelledError, ClosedError, InvalidOptionError, MissingInputError, NNAdapterError
from nnadapter.files.source_kind import SourceKind, kind_of
from nnadapter.optional_parts import optional_part
from nnadapter.options import Options, default_devices, of_session, options_from, refuse_misplaced
from nnadapter.process.resources import new_lock, paused_collection, register_after_fork
from nnadapter.records import replace

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    import onnx
    import onnxruntime

    from nnadapter.drivers.selection import DeviceRequest
    from nnadapter.engine.control import RunControl
    from nnadapter.engine.device_value import DeviceValue
    from nnadapter.engine.engine import Engine
    from nnadapter.engine.model_source import ModelPlanSource
    from nnadapter.engine.observed import Observed
    from nnadapter.engine.provenance import Provenance
    from nnadapter.onnx.signature import ModelMetadata, NodeArg
    from nnadapter.report.report import PartitionReport
    from nnadapter.session.binding import IOBinding
    from nnadapter.session.streams import RunFuture, Stream


if TYPE_CHECKING:
    ModelSource = str | os.PathLike[str] | bytes | onnx.ModelProto
    Requests = DeviceRequest | Sequence[DeviceRequest]
    Opened = tuple[Engine, tuple[str, ...]]

CPU = "cpu"


@paused_collection
def open_engine(
    source: ModelSource,
    session_options: onnxruntime.SessionOptions | None,
    providers: tuple[Sequence[Any] | None, Sequence[Mapping[str, Any]] | None],
    devices: Requests | None,
    options: Options | Mapping[str, Any] | None,
    arguments: Mapping[str, Any],
) -> Opened:
    """Return a model's engine and its devices' names, from the arguments of `InferenceSession`.

    Garbage collection is paused, because opening a model imports hundreds of modules.
    """
    kind = kind_of(source)
    requests = devices if devices is not None else _of_providers(*providers)
    if kind is SourceKind.COMPILED:
        assert isinstance(source, (str, os.PathLike, bytes)), "nothing else is"
        return _of_compiled(source, requests, options_from(options), session_options)
    if kind is SourceKind.PADDLE:
        assert isinstance(source, (str, os.PathLike)), "nothing else is"
        source = optional_part("paddle_onnx_file")(source, options)
    elif kind is SourceKind.MODULE:
        # for modules, the second positional argument holds example inputs
        source, session_options = optional_part("torch_model_as_onnx")(source, session_options), None
    if session_options is not None and not hasattr(session_options, "enable_profiling"):
        raise TypeError(f"session options must be an onnxruntime.SessionOptions, got {type(session_options).__name__}")
    if getattr(session_options, "is_load_cancelled", False):  # an attribute of `nnadapter.ort.SessionOptions`
        raise CancelledError("the load cancellation flag of the session options is set; clear it to open a session")
    requests = default_devices() if requests is None else requests
    return _of_onnx(source, requests, options, session_options, providers, arguments)


def _of_compiled(
    source: str | os.PathLike[str] | bytes,
    requests: Requests | None,
    options: Options,
    session_options: onnxruntime.SessionOptions | None,
) -> Opened:
    from nnadapter.engine.compiled_file import CompiledFile
    from nnadapter.engine.engine import PlanEngine
    from nnadapter.engine.file_source import FilePlanSource
    from nnadapter.traces.selection import trace_for

    file = CompiledFile(source)
    if session_options is not None:
        from nnadapter.session.binding import with_session_options

        options = with_session_options(options, session_options)
    trace = trace_for(options.trace, session_options)
    plans = FilePlanSource(file, requests, options, trace, session_options)
    return PlanEngine(plans, options.deadline_s, session_options), plans.device_names


def _make_report(observed: Observed) -> PartitionReport:
    from nnadapter.report.builder import report_of

    return report_of(observed)


def _with_checks(make_source: Callable[..., ModelPlanSource], options: Options) -> Callable[..., ModelPlanSource]:
    from nnadapter.accuracy.checks import with_checks

    return with_checks(make_source, options)


def _of_onnx(
    source: ModelSource,
    requests: Requests,
    options: Options | Mapping[str, Any] | None,
    session_options: onnxruntime.SessionOptions | None,
    providers: tuple[Sequence[Any] | None, Sequence[Mapping[str, Any]] | None],
    arguments: Mapping[str, Any],
) -> Opened:
    given = options_from(options)
    if given.precision == "auto":
        return _of_auto(
            lambda precision: _of_onnx(
                source, requests, replace(given, precision=precision), session_options, providers, arguments
            ),
            requests,
            given,
        )
    is_alone = requests in (CPU, [CPU])
    is_plain = options is None and session_options is None and not providers[0]
    chosen, make_source = of_session(given), None
    if session_options is not None and not is_alone:
        from nnadapter.drivers.selection import accelerates_first

        if accelerates_first(requests):
            from nnadapter.session.binding import with_session_options

            chosen = with_session_options(chosen, session_options)
    if chosen.cache_dir not in (None, False) and not is_alone:
        from nnadapter.engine.cached_plans import is_cacheable

        if is_cacheable(requests, chosen, session_options):
            from nnadapter.engine.cached_plans import UpperLayers, cached_session

            plan_cache = cached_session(source, requests, chosen)
            upper = UpperLayers(_make_report, _with_checks)
            if plan_cache is not None:
                engine_or_reason = plan_cache.engine(upper)
                if not isinstance(engine_or_reason, str):
                    return engine_or_reason
                # the new plan is written to the cache, and reports say why the cached one was not used
                make_source = plan_cache.source_maker(engine_or_reason, _make_report)
    if chosen.checks:
        from nnadapter.engine.model_source import ModelPlanSource

        make_source = _with_checks(make_source or ModelPlanSource, chosen)
    if is_plain and is_alone and isinstance(source, (str, os.PathLike, bytes)):
        from nnadapter.engine.host import host_alone

        engine = host_alone(source, arguments)
        if engine is not None:
            return engine, (CPU,)
    from nnadapter.drivers.selection import accelerates_first

    begun = None  # threads read its weights while modules are imported and devices opened
    is_timed = chosen.trace is not None or session_options is not None  # with a trace, loading is timed
    if isinstance(source, (str, os.PathLike)) and not is_timed and accelerates_first(requests):
        from nnadapter.onnx.files import BegunModel

        with suppress(NNAdapterError):  # loading it again below raises the error
            begun = BegunModel(source)
    try:
        from nnadapter.engine.model_source import make_engine
        from nnadapter.planning.setting import open_setting

        setting = open_setting(requests, chosen, session_options)
        names = tuple(device.name for device in setting.devices if not device.is_spare)
        return make_engine(source, setting, chosen, session_options, providers, arguments, make_source, begun), names
    finally:
        if begun is not None:
            begun.stop()


def _of_auto(open_at: Callable[[str], Opened], requests: Requests, options: Options) -> Opened:
    from nnadapter.session.precision_choice import DecidingEngine, has_lower_default

    engine, names = open_at("device")
    if not has_lower_default(requests, options.isolated):
        return engine, names
    return cast("Engine", DecidingEngine(engine, lambda: open_at("float32")[0])), names


def _of_providers(
    providers: Sequence[Any] | None, provider_options: Sequence[Mapping[str, Any]] | None
) -> Requests | None:
    if not providers:
        return None
    from nnadapter.drivers.providers import devices_of_providers

    return devices_of_providers(providers, provider_options)


_OF_ONNX_RUNTIME = frozenset({"disabled_optimizers", "enable_fallback", "read_config_from_model"})
_PARAMETERS = ("sess_options", "providers", "provider_options", "devices", "options")


class InferenceSession:
    """Model on chosen devices; the CPU runs nodes that they do not support. Thread-safe; a context manager.

    Source: onnxruntime.InferenceSession.

    Args:
        path_or_bytes: ONNX or compiled model (path or bytes), `onnx.ModelProto`, path of a Paddle model, exported
            PyTorch program, or PyTorch module followed by its example inputs: `InferenceSession(module, (x,))`.
        sess_options: ONNX Runtime's SessionOptions, for steps on the CPU.
        providers: ONNX Runtime's way to choose devices; also accepts device names.
        provider_options: options for `providers`.
        devices: `"fake_npu"`, `"fake_npu:0"`, `"fake_npu@float16"`, `("fake_npu", {option: value})`, or a list of these
            in order of preference. `"cpu"` is always last, followed by `"reference"` for nodes that the CPU refuses.
            For a compiled model: the subset of its devices to use.
        options: `Options`, or a mapping of its fields.
        **kwargs: other arguments of ONNX Runtime, used if the CPU runs the entire model. Names close to an option raise
            an error.

    Raises:
        InvalidModelError, ModelFileError: the model cannot be read or contradicts itself.
        DeviceNotFoundError, DeviceUnavailableError: a device does not exist or cannot be used.
        InvalidOptionError: an option does not exist or is not valid.
        NotDelegatedError, CompilationError: fallback is forbidden and would be needed.
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes | onnx.ModelProto,
        sess_options: onnxruntime.SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        *,
        devices: DeviceRequest | Sequence[DeviceRequest] | None = None,
        options: Options | Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        refuse_misplaced(kwargs.keys() - _OF_ONNX_RUNTIME, _PARAMETERS)
        self._local = threading.local()
        self._workers: ThreadPoolExecutor | None = None
        self._lock = new_lock()
        self._closed = False
        register_after_fork(self)
        is_path = isinstance(path_or_bytes, (str, os.PathLike))
        self._model_path = os.fspath(path_or_bytes) if is_path else None  # ONNX Runtime's clients read this attribute
        provider_args = (providers, provider_options)
        self._engine, self._devices = open_engine(path_or_bytes, sess_options, provider_args, devices, options, kwargs)

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the devices in order of preference, without `reference` unless it was requested."""
        return self._devices

    @property
    def provenance(self) -> Provenance | None:
        """Steps and devices of the calling thread's last run; None if it failed or there was none."""
        return getattr(self._local, "provenance", None)

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: onnxruntime.RunOptions | None = None,
    ) -> list[Any]:
        """Run the model and return one array per output, or a list for a sequence.

        Args:
            output_names: outputs to return, in this order; None or empty for all.
            input_feed: arrays by input name.
            run_options: ONNX Runtime's RunOptions. `terminate` stops before the next step, or within a step if the
                device can stop. Active LoRA adapters replace inputs. The entry `nnadapter.deadline_s` replaces
                `Options.deadline_s`.

        Raises:
            InvalidInputError: an input is missing or unknown, or of the wrong type or shape.
            ExecutionError: a device failed and fallback is forbidden.
            CancelledError: `run_options.terminate` was set.
            DeadlineExceededError: the run missed its deadline.
        """
        self._local.provenance = None
        results, self._local.provenance = self._engine.run(output_names, input_feed, run_options)
        return results

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any,
        run_options: onnxruntime.RunOptions | None = None,
    ) -> None:
        """Run in the background, then call `callback(results, user_data, error)`; `error` is empty on success.

        Do not change the feed before the callback. Errors of the callback go to `threading.excepthook`.
        """

        def work() -> None:
            try:
                results, error = self.run(output_names, input_feed, run_options), ""
            except Exception as failure:  # noqa: BLE001  passed to the callback, as in ONNX Runtime
                results, error = [], str(failure)
            try:
                callback(results, user_data, error)
            except BaseException:  # noqa: BLE001  otherwise the pool would swallow it
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))

        self._pool().submit(work)

    def submit(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: onnxruntime.RunOptions | None = None,
    ) -> RunFuture:
        """Run in the background and return a future of the results. Do not change the feed before the run ends.

        After the run, the future has its `provenance`. `cancel` also stops a run in progress.
        """
        from nnadapter.engine.control import RunControl
        from nnadapter.session.streams import RunFuture

        future = RunFuture(RunControl(has_holder=True))
        self._pool().submit(future.work, partial(self._engine.run, output_names, input_feed, run_options))
        return future

    def stream(self, feeds: Iterable[Mapping[str, Any]], depth: int | None = None) -> Stream:
        """Run many feeds, pipelined over the plan's devices, and yield their results in order.

        An error is raised in place of its result, and the stream continues. `provenance` describes the last result.

        Args:
            feeds: feeds as in `run`; up to `depth` are read ahead. Do not change their arrays before their result.
            depth: number of concurrent runs; default: one more than there are devices.

        Raises:
            InvalidOptionError: `depth` is not an integer of at least 1.
        """
        from nnadapter.session.streams import Stream

        depth = len(self._devices) + 1 if depth is None else depth
        if not isinstance(depth, int) or isinstance(depth, bool) or depth < 1:
            raise InvalidOptionError(f"the depth of a stream must be an integer of at least 1, got {depth!r}")
        with self._lock:
            self._refuse_closed()
        return Stream(partial(_run_all, self._engine), feeds, depth, self._note)

    def prepare(self, shapes: Mapping[str, Sequence[int]] | Iterable[Mapping[str, Sequence[int]]]) -> None:
        """Compile plans ahead of time, for one or several sets of input shapes."""
        from nnadapter.onnx.signature import read_shapes

        for shape_set in read_shapes(shapes):
            self._engine.prepare(shape_set)

    def report(self) -> PartitionReport:
        """Return the placement of every node and its reasons, for the shapes of the last run or for assumed shapes.

        If `cpu` is the only device, runs are not recorded: the report is for assumed shapes and has no times.
        """
        from nnadapter.report.observed_report import build_report

        report = build_report(self._engine.observed())
        choice = getattr(self._engine, "choice", "")
        return replace(report, precision_choice=choice) if choice else report

    def get_inputs(self) -> list[NodeArg]:
        """Return names, types and shapes of the inputs without default values."""
        return self._engine.inputs()

    def get_outputs(self) -> list[NodeArg]:
        """Return names, types and shapes of the outputs."""
        return self._engine.outputs()

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Return the inputs with default values, which a feed may override."""
        return self._engine.overridable()

    def get_modelmeta(self) -> ModelMetadata:
        """Return the metadata of the model."""
        return self._engine.metadata()

    def get_providers(self) -> list[str]:
        """Return the names of the devices, in order of preference."""
        return list(self._devices)

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Return no options: `devices` configures devices."""
        return {name: {} for name in self._devices}

    def set_providers(
        self, providers: Sequence[Any] | None = None, provider_options: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        """Check that the session uses these devices, otherwise raise InvalidOptionError."""
        from nnadapter.drivers.providers import devices_of_providers

        requests = devices_of_providers(providers or (), provider_options) if providers else ()
        names = [request if isinstance(request, str) else request[0] for request in requests]
        if not self._serves(names):
            raise InvalidOptionError(
                f"the session uses devices {list(self._devices)}, and cannot change them; open another "
                f"session with providers={list(providers or ())!r}"
            )

    def _serves(self, devices: Sequence[str]) -> bool:
        return not devices or {*devices, CPU} == {*self._devices, CPU}

    def get_session_options(self) -> onnxruntime.SessionOptions:
        """Return the session options, or default ones."""
        return self._engine.session_options()

    def io_binding(self) -> IOBinding:
        """Return a binding for `run_with_iobinding`."""
        from nnadapter.session.binding import IOBinding

        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: onnxruntime.RunOptions | None = None) -> None:
        """Run on the bound values; the binding holds the results."""
        self._local.provenance = None
        self._local.provenance = iobinding.run(run_options)

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, onnxruntime.OrtValue | DeviceValue],
        run_options: onnxruntime.RunOptions | None = None,
    ) -> list[Any]:
        """Run on OrtValues or device-resident values, and return OrtValues in host memory."""
        from nnadapter.drivers.onnxruntime.values import ort_value_of
        from nnadapter.engine.device_value import DeviceValue

        _refuse_missing(self.get_inputs(), input_dict_ort_values)
        names = list(output_names or [value.name for value in self.get_outputs()])
        if run_options is not None and _has_adapters(run_options):  # a binding does not support adapters
            results = self.run(names, input_dict_ort_values, run_options)
        else:
            binding = self._engine.binding()
            for name, value in input_dict_ort_values.items():
                binding.bind_input(name, value)
            for name in names:
                binding.bind_output(name, CPU)
            self._local.provenance = None
            self._local.provenance = binding.run(run_options)
            results = [value.contents if isinstance(value, DeviceValue) else value for value in binding.results]
        types = {value.name: value.type for value in self.get_outputs()}
        return [ort_value_of(result, types[name]) for name, result in zip(names, results, strict=True)]

    def run_with_ortvaluevector(
        self,
        run_options: onnxruntime.RunOptions | None,
        feed_names: Sequence[str],
        feeds: Any,
        fetch_names: Sequence[str],
        fetches: Any,
        fetch_devices: Sequence[Any],
    ) -> None:
        """Run on a vector of OrtValues and append the results, in host memory, to `fetches`."""
        from nnadapter.process.real_onnxruntime import onnxruntime

        values = {name: onnxruntime.OrtValue(feeds[place]) for place, name in enumerate(feed_names)}
        for value in self.run_with_ort_values(fetch_names, values, run_options):
            fetches.push_back(value._get_c_value())

    def create_ortvalue_from_shape_and_type(
        self, shape: Sequence[int], element_type: Any, device_type: str, device_id: int = 0, vendor_id: int = -1
    ) -> Any:
        """Return an uninitialized OrtValue for `cpu`, otherwise a DeviceValue of zeros."""
        from nnadapter.engine.device_value import DeviceValue
        from nnadapter.process.real_onnxruntime import onnxruntime

        if device_type.lower() == CPU:
            return onnxruntime.OrtValue.ortvalue_from_shape_and_type(shape, element_type)
        return DeviceValue.ortvalue_from_shape_and_type(shape, element_type, device_type, device_id)

    def get_provider_graph_assignment_info(self) -> Sequence[Any]:
        """Return the sub-graphs with their device. Raises InvalidOptionError unless session options enable it."""
        from nnadapter.session.binding import assignment_of

        return assignment_of(self._engine)

    def get_tuning_results(self) -> list[Any]:
        """Return no results: no device tunes kernels."""
        return []

    def set_tuning_results(self, results: Sequence[Mapping[str, Any]], *, error_on_invalid: bool = False) -> None:
        """Refuse tuning results if `error_on_invalid`, otherwise warn: no device uses them."""
        from nnadapter.session.binding import refuse_tuning

        refuse_tuning(results, error_on_invalid=error_on_invalid)

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Set dynamic options of ONNX Runtime's providers; warn of devices that have none."""
        from nnadapter.session.binding import set_dynamic_options

        set_dynamic_options(self._engine, options)

    def get_input_memory_infos(self) -> Sequence[onnxruntime.OrtMemoryInfo]:
        return [_host_memory()] * len(self.get_inputs())

    def get_output_memory_infos(self) -> Sequence[onnxruntime.OrtMemoryInfo]:
        return [_host_memory()] * len(self.get_outputs())

    def get_input_epdevices(self) -> Sequence[onnxruntime.OrtEpDevice | None]:
        from nnadapter.onnx.onnxruntime_limits import CPU_PROVIDER
        from nnadapter.process.real_onnxruntime import onnxruntime

        cpu = next((ep_device for ep_device in onnxruntime.get_ep_devices() if ep_device.ep_name == CPU_PROVIDER), None)
        return [cpu] * len(self.get_inputs())

    def release_captured_graph(self, graph_annotation_id: int = 0) -> None:
        pass

    def end_profiling(self) -> str:
        """Stop profiling and return the file's name; empty if profiling is off."""
        return self._engine.end_profiling()

    def get_profiling_start_time_ns(self) -> int:
        """Return the start of profiling in nanoseconds; 0 if profiling is off."""
        return self._engine.profiling_started()

    def disable_fallback(self) -> None:
        """Do nothing: ONNX Runtime's provider fallback is not `Options.fallback`."""

    def enable_fallback(self) -> None:
        pass

    def close(self) -> None:
        """Close the devices and free all resources."""
        with self._lock:
            workers, self._workers, self._closed = self._workers, None, True
        if workers is not None:
            workers.shutdown(wait=True)
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> NoReturn:
        """Refuse pickling: devices belong to this process."""
        raise TypeError(
            "a session cannot be pickled, because its devices belong to this process; open its model in "
            "the other process"
        )

    def after_fork(self) -> None:
        """Drop the thread pool in a forked child, which lacks its threads."""
        self._workers = None

    def _note(self, provenance: Provenance) -> None:
        self._local.provenance = provenance

    def _refuse_closed(self) -> None:
        if self._closed:
            raise ClosedError("the session is closed; open another one")

    def _pool(self) -> ThreadPoolExecutor:
        with self._lock:
            self._refuse_closed()
            if self._workers is None:
                from concurrent.futures import ThreadPoolExecutor

                self._workers = ThreadPoolExecutor(max_workers=os.cpu_count() or 1, thread_name_prefix="nnadapter")
            return self._workers


def _refuse_missing(inputs: Sequence[NodeArg], feed: Mapping[str, Any]) -> None:
    needed = [value.name for value in inputs if not value.type.startswith("optional")]
    missing = [name for name in needed if name not in feed]
    if missing:
        raise MissingInputError.of(missing, feed, needed)


def _host_memory() -> onnxruntime.OrtMemoryInfo:
    from nnadapter.process.real_onnxruntime import onnxruntime

    allocator, kind = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, onnxruntime.OrtMemType.DEFAULT
    return onnxruntime.OrtMemoryInfo("Cpu", allocator, 0, kind)


def _has_adapters(options: onnxruntime.RunOptions) -> bool:
    from nnadapter.drivers.onnxruntime.adapters import has_adapters

    return has_adapters(options)


def _run_all(engine: Engine, feed: Mapping[str, Any], control: RunControl) -> tuple[list[Any], Provenance]:
    return engine.run(None, feed, None, control)
