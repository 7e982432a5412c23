"""InferenceSession, shaped like ONNX Runtime's, and the choice of the engine for its model.

What runs the model of a session. What the model is given as is looked at once; then it goes down one way.

A compiled file has an engine of its own. Whatever else there is becomes ONNX, which plans that were kept run, the CPU
alone, or plans that are made. Each is imported where it is used: a compiled model needs nothing that reads, judges or
cuts models, and the CPU alone nothing that speaks of devices.

InferenceSession: shaped like ONNX Runtime's, so that changing an import is enough.

What only some sessions use is imported by those.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from nnadapter.errors import CancelledError, ClosedError, InvalidOptionError, MissingInputError, NNAdapterError
from nnadapter.files.source_kind import SourceKind, kind_of
from nnadapter.optional_parts import optional_part
from nnadapter.options import Options, default_devices, of_session, options_from, refuse_misplaced
from nnadapter.process.resources import new_lock, paused_collection, register_after_fork

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
    Requests = DeviceRequest | Sequence[DeviceRequest]
    Opened = tuple[Engine, tuple[str, ...]]

CPU = "cpu"


@paused_collection
def open_engine(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto,
    session_options: onnxruntime.SessionOptions | None,
    providers: tuple[Sequence[Any] | None, Sequence[Mapping[str, Any]] | None],
    devices: Requests | None,
    options: Options | Mapping[str, Any] | None,
    arguments: Mapping[str, Any],
) -> Opened:
    """Return what runs a model, and the names of its devices. Arguments and errors are those of `InferenceSession`.

    Hundreds of modules are imported for it, and what they define stays.
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
        # The argument after a module holds its example inputs.
        source, session_options = optional_part("torch_model_as_onnx")(source, session_options), None
    if session_options is not None and not hasattr(session_options, "enable_profiling"):
        raise TypeError(f"session options are an onnxruntime.SessionOptions, got {type(session_options).__name__}")
    if getattr(session_options, "is_load_cancelled", False):  # `nnadapter.ort.SessionOptions` tell it
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


def _with_checks(make: Callable[..., ModelPlanSource], options: Options) -> Callable[..., ModelPlanSource]:
    from nnadapter.accuracy.checks import with_checks

    return with_checks(make, options)


def _of_onnx(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto,
    requests: Requests,
    options: Options | Mapping[str, Any] | None,
    session_options: onnxruntime.SessionOptions | None,
    providers: tuple[Sequence[Any] | None, Sequence[Mapping[str, Any]] | None],
    arguments: Mapping[str, Any],
) -> Opened:
    """By plans that were kept, on the CPU alone, or in whichever way the devices say that come first."""
    is_alone = requests in (CPU, [CPU])
    is_plain = options is None and session_options is None and not providers[0]
    chosen, make = of_session(options_from(options)), None
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
            cached_engine = plan_cache.engine(upper) if plan_cache is not None else ""
            if not isinstance(cached_engine, str):
                return cached_engine
            make = None if plan_cache is None else plan_cache.source_maker(cached_engine, _make_report)
    if chosen.checks:
        from nnadapter.engine.model_source import ModelPlanSource

        make = _with_checks(make or ModelPlanSource, chosen)
    if is_plain and is_alone and isinstance(source, (str, os.PathLike, bytes)):
        from nnadapter.engine.host import host_alone

        engine = host_alone(source, arguments)
        if engine is not None:
            return engine, (CPU,)
    from nnadapter.drivers.selection import accelerates_first

    begun = None  # whose weights are read by threads while modules are imported and devices opened
    is_timed = chosen.trace is not None or session_options is not None  # when it is read is told, or may be
    if isinstance(source, (str, os.PathLike)) and not is_timed and accelerates_first(requests):
        from nnadapter.onnx.files import BegunModel

        with suppress(NNAdapterError):  # who loads it again says what is wrong with it
            begun = BegunModel(source)
    try:
        from nnadapter.engine.model_source import make_engine
        from nnadapter.planning.setting import open_setting

        setting = open_setting(requests, chosen, session_options)
        names = tuple(device.name for device in setting.devices if not device.is_spare)
        return make_engine(source, setting, chosen, session_options, providers, arguments, make, begun), names
    finally:
        if begun is not None:
            begun.stop()


def _of_providers(
    providers: Sequence[Any] | None, provider_options: Sequence[Mapping[str, Any]] | None
) -> Requests | None:
    """The devices that a client of ONNX Runtime names; None if it names none."""
    if not providers:
        return None
    from nnadapter.drivers.providers import devices_of_providers

    return devices_of_providers(providers, provider_options)


_OF_ONNX_RUNTIME = frozenset({"disabled_optimizers", "enable_fallback", "read_config_from_model"})
"""What ONNX Runtime's session takes beside its parameters; everything else it ignores."""
_PARAMETERS = ("sess_options", "providers", "provider_options", "devices", "options")


class InferenceSession:
    """A model ready to run on the chosen devices, the CPU for the rest.

    Usable from many threads at once, and a context manager. Source: onnxruntime.InferenceSession.

    Args:
        path_or_bytes: path of an ONNX file or a compiled model, its contents, or an `onnx.ModelProto`; path of a Paddle
            inference model, its folder or `inference.json`; a PyTorch module, with what it is called with behind it,
            `InferenceSession(module, (x,))`, or an exported program.
        sess_options: ONNX Runtime's own SessionOptions; they reach the CPU steps.
        providers: ONNX Runtime's way to choose, for code written for it; device names are understood as well.
        provider_options: options that go with `providers`.
        devices: `"fake_npu"`, `"fake_npu:0"`, `("fake_npu", {option: value})`, or a list of these in order of
            preference. `"cpu"` is the last one, named or not; behind it `"reference"` takes what even the CPU
            refuses. A compiled model has devices of its own; named ones are those of them that are to be used.
        options: how the session decides.
        **kwargs: what ONNX Runtime's session takes beside, for sessions on the CPU alone. Others are ignored, as there,
            unless they look like something that was meant for `options`.

    Raises:
        InvalidModelError, ModelFileError: the model cannot be read or contradicts itself.
        DeviceNotFoundError, DeviceUnavailableError: a device does not exist or cannot be used.
        InvalidOptionError: an option does not exist or does not fit.
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
        self._model_path = os.fspath(path_or_bytes) if is_path else None  # which clients of ONNX Runtime read
        provider_args = (providers, provider_options)
        self._engine, self._devices = open_engine(path_or_bytes, sess_options, provider_args, devices, options, kwargs)

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the devices, in order of preference; a last resort that nobody named is in reports alone."""
        return self._devices

    @property
    def provenance(self) -> Provenance | None:
        """Where the results of the calling thread's last run came from; None where it failed, or there was none."""
        return getattr(self._local, "provenance", None)

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: onnxruntime.RunOptions | None = None,
    ) -> list[Any]:
        """Run the model.

        Args:
            output_names: outputs to fetch, in this order; all of them if None or empty.
            input_feed: arrays by input name.
            run_options: reaches the CPU steps; `terminate` is looked at between steps, and in the middle of those whose
                device can stop. The parameters of active adapters replace inputs. The
                entry `nnadapter.deadline_s` is the deadline of this run, instead of `Options.deadline_s`.

        Returns:
            One array per output; lists for sequences.

        Raises:
            InvalidInputError: a feed is missing, superfluous, or of the wrong type or shape.
            ExecutionError: a device failed and fallback is forbidden.
            CancelledError: `run_options.terminate` was set.
            DeadlineExceededError: the run was not done within `Options.deadline_s`.
        """
        self._local.provenance = None  # a run that fails leaves not that of the run before
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
        """Run in the background, then call `callback(results, user_data, error)`; `error` is empty if all went well.

        Arrays of the feed are read until then, and are not to be changed. What the callback raises goes to
        `threading.excepthook`.
        """

        def work() -> None:
            try:
                results, error = self.run(output_names, input_feed, run_options), ""
            except Exception as failure:  # noqa: BLE001  handed to the callback, as in ONNX Runtime
                results, error = [], str(failure)
            try:
                callback(results, user_data, error)
            except BaseException:  # noqa: BLE001  nobody asks the pool for what its work raised
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))

        self._pool().submit(work)

    def submit(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: onnxruntime.RunOptions | None = None,
    ) -> RunFuture:
        """Run in the background, as `run` does. Arrays of the feed are not to be changed before it is done.

        Returns:
            A `concurrent.futures.Future` of the results. Once it is done it has the run's `provenance`; `cancel` also
            stops a run that is under way.
        """
        from nnadapter.engine.control import RunControl
        from nnadapter.session.streams import RunFuture

        future = RunFuture(RunControl(is_held=True))
        self._pool().submit(future.work, partial(self._engine.run, output_names, input_feed, run_options))
        return future

    def stream(self, feeds: Iterable[Mapping[str, Any]], depth: int | None = None) -> Stream:
        """Run over many feeds, pipelined over the plan's devices, and give the results in their order.

        While one input is on a device, the next is on the device before it; `provenance` is that of the result given
        last. An error is raised in place of its result, and `next` goes on behind it.

        Args:
            feeds: what `run` takes, one after the other; as many as `depth` are taken ahead of those under way. Arrays
                are not to be changed, nor filled anew for a later feed, before the result is given.
            depth: how many runs are under way at once; by default one more than the session has devices.

        Raises:
            InvalidOptionError: the depth is no whole number of at least 1.
        """
        from nnadapter.session.streams import Stream

        depth = len(self._devices) + 1 if depth is None else depth
        if not isinstance(depth, int) or isinstance(depth, bool) or depth < 1:
            raise InvalidOptionError(f"stream takes a depth of at least 1, got {depth!r}")
        with self._lock:
            self._refuse_closed()
        return Stream(partial(_run_all, self._engine), feeds, depth, self._note)

    def prepare(self, shapes: Mapping[str, Sequence[int]] | Iterable[Mapping[str, Sequence[int]]]) -> None:
        """Make plans ahead of time: for one set of input shapes, or for several."""
        from nnadapter.onnx.signature import read_shapes

        for shape_set in read_shapes(shapes):
            self._engine.prepare(shape_set)

    def report(self) -> PartitionReport:
        """What runs where and why: for the shapes of the last run, or for usual sizes if there was none.

        On `cpu` alone runs are ONNX Runtime's own, and nobody looks at them: it is for usual sizes, and has no times;
        `provenance` has the seconds of the run.
        """
        from nnadapter.report.observed_report import build_report

        return build_report(self._engine.observed())

    def get_inputs(self) -> list[NodeArg]:
        """The inputs that must be fed."""
        return self._engine.inputs()

    def get_outputs(self) -> list[NodeArg]:
        """The outputs."""
        return self._engine.outputs()

    def get_overridable_initializers(self) -> list[NodeArg]:
        """The inputs that may be fed and have contents of their own."""
        return self._engine.overridable()

    def get_modelmeta(self) -> ModelMetadata:
        """What the model says of itself."""
        return self._engine.metadata()

    def get_providers(self) -> list[str]:
        """Names of the devices, in order of preference."""
        return list(self._devices)

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Per device, its options; empty, since devices are configured by `devices`."""
        return {name: {} for name in self._devices}

    def set_providers(
        self, providers: Sequence[Any] | None = None, provider_options: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        """Nothing to do where the session has the devices that these stand for: it keeps those that it was opened with.

        Raises:
            InvalidOptionError: it has others.
        """
        from nnadapter.drivers.providers import devices_of_providers

        requests = devices_of_providers(providers or (), provider_options) if providers else ()
        names = [request if isinstance(request, str) else request[0] for request in requests]
        if not self._serves(names):
            raise InvalidOptionError(
                f"the session was opened with devices {list(self._devices)}, and keeps them; open another one with "
                f"providers={list(providers or ())!r}"
            )

    def _serves(self, devices: Sequence[str]) -> bool:
        """Whether these are the session's devices, in any order; the CPU comes last, named or not."""
        return not devices or {*devices, "cpu"} == {*self._devices, "cpu"}

    def get_session_options(self) -> onnxruntime.SessionOptions:
        """The session options that were given, or new ones."""
        return self._engine.session_options()

    def io_binding(self) -> IOBinding:
        """A binding for `run_with_iobinding`."""
        from nnadapter.session.binding import IOBinding

        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: onnxruntime.RunOptions | None = None) -> None:
        """Run on what is bound; results are in the binding."""
        self._local.provenance = None
        self._local.provenance = iobinding.run(run_options)

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, onnxruntime.OrtValue | DeviceValue],
        run_options: onnxruntime.RunOptions | None = None,
    ) -> list[Any]:
        """Run on values that lie on devices or the host.

        Returns:
            The results in the host's memory, as ONNX Runtime's OrtValue; lists of dictionaries as they are.
        """
        from nnadapter.drivers.onnxruntime.values import ort_value_of
        from nnadapter.drivers.selection import CPU
        from nnadapter.engine.device_value import DeviceValue

        _refuse_missing(self.get_inputs(), input_dict_ort_values)
        names = list(output_names or [value.name for value in self.get_outputs()])
        if run_options is not None and _has_adapters(run_options):  # which a binding does not take
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
        """Run on a vector of OrtValues and append the results, in the host's memory, to `fetches`."""
        from nnadapter.process.real_onnxruntime import onnxruntime

        values = {name: onnxruntime.OrtValue(feeds[place]) for place, name in enumerate(feed_names)}
        for value in self.run_with_ort_values(fetch_names, values, run_options):
            fetches.push_back(value._get_c_value())

    def create_ortvalue_from_shape_and_type(
        self, shape: Sequence[int], element_type: Any, device_type: str, device_id: int = 0, vendor_id: int = -1
    ) -> Any:
        """Return an uninitialized OrtValue in the host's memory, or a DeviceValue of zeros on another device."""
        from nnadapter.drivers.selection import CPU
        from nnadapter.engine.device_value import DeviceValue
        from nnadapter.process.real_onnxruntime import onnxruntime

        if device_type.lower() == CPU:
            return onnxruntime.OrtValue.ortvalue_from_shape_and_type(shape, element_type)
        return DeviceValue.ortvalue_from_shape_and_type(shape, element_type, device_type, device_id)

    def get_provider_graph_assignment_info(self) -> Sequence[Any]:
        """Return the sub-graphs and the device of each, as in ONNX Runtime.

        Raises:
            InvalidOptionError: the session options do not ask for it.
        """
        from nnadapter.session.binding import assignment_of

        return assignment_of(self._engine)

    def get_tuning_results(self) -> list[Any]:
        """Return the results of tuned kernels: none, since no device of a session tunes kernels."""
        return []

    def set_tuning_results(self, results: Sequence[Mapping[str, Any]], *, error_on_invalid: bool = False) -> None:
        """Refuse results of tuned kernels with `error_on_invalid`, otherwise warn: no device takes them."""
        from nnadapter.session.binding import refuse_tuning

        refuse_tuning(results, error_on_invalid=error_on_invalid)

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Set options of ONNX Runtime's providers while the session lives; warn of devices that have none.

        Raises:
            InvalidOptionError: there are no options.
        """
        from nnadapter.session.binding import set_dynamic_options

        set_dynamic_options(self._engine, options)

    def get_input_memory_infos(self) -> Sequence[onnxruntime.OrtMemoryInfo]:
        """Return the memory that each input is read from: the host's."""
        return [_host_memory()] * len(self.get_inputs())

    def get_output_memory_infos(self) -> Sequence[onnxruntime.OrtMemoryInfo]:
        """Return the memory that each output is written to: the host's."""
        return [_host_memory()] * len(self.get_outputs())

    def get_input_epdevices(self) -> Sequence[onnxruntime.OrtEpDevice | None]:
        """Return the device of ONNX Runtime in whose memory each input is read: the CPU."""
        from nnadapter.onnx.onnxruntime_limits import CPU_PROVIDER
        from nnadapter.process.real_onnxruntime import onnxruntime

        cpu = next((ep_device for ep_device in onnxruntime.get_ep_devices() if ep_device.ep_name == CPU_PROVIDER), None)
        return [cpu] * len(self.get_inputs())

    def release_captured_graph(self, graph_annotation_id: int = 0) -> None:
        """Release a captured graph: a session has none."""

    def end_profiling(self) -> str:
        """Stop profiling; the file's name, or an empty string where nothing was profiled."""
        return self._engine.end_profiling()

    def get_profiling_start_time_ns(self) -> int:
        """When profiling began, in nanoseconds; 0 where nothing is profiled."""
        return self._engine.profiling_started()

    def disable_fallback(self) -> None:
        """Nothing to do: ONNX Runtime's own fallback is between its providers; ours is in `Options.fallback`."""

    def enable_fallback(self) -> None:
        """See `disable_fallback`."""

    def close(self) -> None:
        """Free everything; the session is not to be used after it."""
        with self._lock:
            workers, self._workers, self._closed = self._workers, None, True
        if workers is not None:
            workers.shutdown(wait=True)
        self._engine.close()

    def __enter__(self) -> Self:
        """The session itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the session."""
        self.close()

    def __getstate__(self) -> NoReturn:
        """Raise TypeError: what it holds belongs to this process. A subclass may say what to open it by again."""
        raise TypeError(
            "a session is not pickled, as its devices belong to this process: open its model in the other one"
        )

    def after_fork(self) -> None:
        """In a process that was forked: the threads that ran in the background are not there."""
        self._workers = None

    def _note(self, provenance: Provenance) -> None:
        self._local.provenance = provenance

    def _refuse_closed(self) -> None:
        if self._closed:
            raise ClosedError("the session is closed; make another one")

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
