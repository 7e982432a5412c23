"""What runs the model of a session. What the model is given as is looked at once; then it goes down one way.

A compiled file has an engine of its own. Whatever else there is becomes ONNX, which plans that were kept run, the CPU
alone, or plans that are made. Each is imported where it is used: a compiled model needs nothing that reads, judges or
cuts models, and the CPU alone nothing that speaks of devices.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from nnadapter.errors import CancelledError, NNAdapterError
from nnadapter.files.source_kind import SourceKind, kind_of
from nnadapter.options import Options, default_devices, of_session, options_from
from nnadapter.process.collecting import paused_collection

if TYPE_CHECKING:
    import onnx
    import onnxruntime

    from nnadapter.drivers.selection import DeviceRequest
    from nnadapter.running.engine import Engine

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
        from nnadapter.paddle_models.keeping import onnx_of

        assert isinstance(source, (str, os.PathLike)), "nothing else is"
        source = onnx_of(source, options)
    elif kind is SourceKind.MODULE:
        from nnadapter.torch_models.modules import model_of

        source, session_options = model_of(source, session_options), None  # what stands behind a module are its inputs
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
    from nnadapter.compiled_models.engine import CompiledEngine
    from nnadapter.compiled_models.reading import CompiledFile
    from nnadapter.traces.asking import trace_for

    file = CompiledFile(source)
    if session_options is not None:
        from nnadapter.inference.provider_info import with_session_options

        options = with_session_options(options, session_options)
    trace = trace_for(options.trace, session_options)
    engine = CompiledEngine(file, requests, options, trace, session_options)
    if not trace.is_kept:
        return engine, engine.device_names
    from nnadapter.running.traced_engine import TracedEngine
    from nnadapter.traces.recorder import Recorder

    assert isinstance(trace, Recorder), "no other trace keeps events"

    return TracedEngine(engine, trace), engine.device_names


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
            from nnadapter.inference.provider_info import with_session_options

            chosen = with_session_options(chosen, session_options)
    if chosen.cache_dir not in (None, False) and not is_alone:
        from nnadapter.kept_plans.asking import is_cacheable

        if is_cacheable(requests, chosen, session_options):
            from nnadapter.kept_plans.opening import keeping

            plan_cache = keeping(source, requests, chosen)
            cached_engine = plan_cache.engine() if plan_cache is not None else ""
            if not isinstance(cached_engine, str):
                return cached_engine
            make = None if plan_cache is None else plan_cache.planned(cached_engine)
    if chosen.checks:
        from nnadapter.accuracy.adding import with_checks
        from nnadapter.running.planned import PlannedEngine

        make = with_checks(make or PlannedEngine, chosen)
    if is_plain and is_alone and isinstance(source, (str, os.PathLike, bytes)):
        from nnadapter.running.host import host_alone

        engine = host_alone(source, arguments)
        if engine is not None:
            return engine, (CPU,)
    from nnadapter.drivers.selection import accelerates_first

    begun = None  # whose weights are read by threads while modules are imported and devices opened
    is_timed = chosen.trace is not None or session_options is not None  # when it is read is told, or may be
    if isinstance(source, (str, os.PathLike)) and not is_timed and accelerates_first(requests):
        from nnadapter.onnx.beginning import BegunModel

        with suppress(NNAdapterError):  # who loads it again says what is wrong with it
            begun = BegunModel(source)
    try:
        from nnadapter.planning.setting import open_setting
        from nnadapter.running.choosing import make_engine

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
