"""What runs the model of a session: a compiled model by itself, the CPU alone, or any other by its plans.

Each is imported where it is used: a compiled model needs nothing that reads, judges or cuts models, and the CPU alone
nothing that speaks of devices.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nnadapter.files.beginning import is_container, is_paddle_model
from nnadapter.options import Options, default_devices, of_session, options_from
from nnadapter.process.collecting import paused_collection

if TYPE_CHECKING:
    import onnx
    import onnxruntime

    from nnadapter.drivers.selection import DeviceRequest
    from nnadapter.running.engine import Engine

    Requests = DeviceRequest | Sequence[DeviceRequest]

CPU = "cpu"


@paused_collection
def open_engine(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto,
    session_options: onnxruntime.SessionOptions | None,
    providers: tuple[Sequence[Any] | None, Sequence[Mapping[str, Any]] | None],
    devices: Requests | None,
    options: Options | Mapping[str, Any] | None,
    arguments: Mapping[str, Any],
) -> tuple[Engine, tuple[str, ...]]:
    """Return what runs a model, and the names of its devices. Arguments and errors are those of `InferenceSession`.

    Hundreds of modules are imported for it, and what they define stays.
    """
    if "torch" in sys.modules:  # else nobody has a module
        source, session_options = _of_module(source, session_options)
    if is_paddle_model(source):
        from nnadapter.paddle_models.keeping import as_onnx

        source = as_onnx(source, options)
    is_file = isinstance(source, (str, os.PathLike, bytes))
    requests = devices if devices is not None else _of_providers(*providers)
    if is_file and is_container(source):
        return _of_file(source, requests, options_from(options), session_options)
    requests = default_devices() if requests is None else requests
    if is_file and options is None and session_options is None and not providers[0] and requests in (CPU, [CPU]):
        from nnadapter.running.host import host_alone

        engine = host_alone(source, arguments)
        if engine is not None:
            return engine, (CPU,)
    chosen = of_session(options_from(options))
    make = None
    if chosen.cache_dir not in (None, False):
        from nnadapter.kept_plans.asking import can_be_kept

        if can_be_kept(requests, chosen, session_options):
            from nnadapter.kept_plans.opening import keeping

            kept = keeping(source, requests, chosen)
            found = kept.engine() if kept is not None else ""
            if not isinstance(found, str):
                return found
            make = None if kept is None else kept.planned(found)
    from nnadapter.inference.beginning import begun_model

    is_timed = chosen.trace is not None or session_options is not None  # when it is read is told, or may be
    begun = None if is_timed else begun_model(source, requests)
    try:
        from nnadapter.planning.setting import open_setting
        from nnadapter.running.choosing import make_engine

        setting = open_setting(requests, chosen, session_options)
        names = tuple(device.name for device in setting.devices if not device.is_spare)
        if chosen.checks:
            from nnadapter.accuracy.adding import with_checks
            from nnadapter.running.planned import PlannedEngine

            make = with_checks(make or PlannedEngine, chosen)
        return make_engine(source, setting, chosen, session_options, providers, arguments, make, begun), names
    finally:
        if begun is not None:
            begun.stop()


def _of_module(source: Any, second: Any) -> tuple[Any, Any]:
    """A PyTorch module as a model: what stands behind it are its inputs, and no session options. Others as they are."""
    if isinstance(source, (str, os.PathLike, bytes)):
        return source, second
    from nnadapter.torch_models.modules import is_module, model_of

    return (model_of(source, second), None) if is_module(source) else (source, second)


def _of_file(
    source: str | os.PathLike[str] | bytes,
    requests: Requests | None,
    options: Options,
    session_options: onnxruntime.SessionOptions | None,
) -> tuple[Engine, tuple[str, ...]]:
    from nnadapter.compiled_models.engine import CompiledEngine
    from nnadapter.compiled_models.reading import CompiledFile
    from nnadapter.traces.asking import trace_for

    file = CompiledFile(source)
    trace = trace_for(options.trace, session_options)
    engine = CompiledEngine(file, requests, options, trace, session_options)
    if not trace.is_kept:
        return engine, engine.device_names
    from nnadapter.running.traced_engine import TracedEngine
    from nnadapter.traces.recorder import Recorder

    assert isinstance(trace, Recorder), "no other trace keeps events"

    return TracedEngine(engine, trace), engine.device_names


def _of_providers(
    providers: Sequence[Any] | None, provider_options: Sequence[Mapping[str, Any]] | None
) -> Requests | None:
    """The devices that a client of ONNX Runtime names; None if it names none."""
    if not providers:
        return None
    from nnadapter.drivers.providers import devices_of_providers

    return devices_of_providers(providers, provider_options)
