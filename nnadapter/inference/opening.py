"""What runs the model of a session: a compiled model by itself, any other by its plans or by ONNX Runtime.

Each is imported where it is used: a compiled model needs nothing that reads, judges or cuts models.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nnadapter.compiled_models.reading import CompiledFile, is_compiled
from nnadapter.drivers.selection import DeviceRequest
from nnadapter.options import Options, default_devices
from nnadapter.running.engine import Engine
from nnadapter.traces.asking import trace_for
from nnadapter.traces.recorder import Recorder

if TYPE_CHECKING:
    import onnx
    import onnxruntime

Requests = DeviceRequest | Sequence[DeviceRequest]


def open_engine(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto,
    session_options: onnxruntime.SessionOptions | None,
    providers: tuple[Sequence[Any] | None, Sequence[Mapping[str, Any]] | None],
    devices: Requests | None,
    options: Options,
    arguments: Mapping[str, Any],
) -> tuple[Engine, tuple[str, ...]]:
    """Return what runs a model, and the names of its devices. Arguments and errors are those of `InferenceSession`."""
    requests = devices if devices is not None else _of_providers(*providers)
    if isinstance(source, (str, os.PathLike, bytes)) and is_compiled(source):
        return _of_file(CompiledFile(source), requests, options, session_options)
    from nnadapter.planning.setting import open_setting
    from nnadapter.running.choosing import make_engine

    setting = open_setting(default_devices() if requests is None else requests, options, session_options)
    names = tuple(device.name for device in setting.devices if not device.is_spare)
    return make_engine(source, setting, options, session_options, providers, arguments), names


def _of_file(
    file: CompiledFile, requests: Requests | None, options: Options, session_options: onnxruntime.SessionOptions | None
) -> tuple[Engine, tuple[str, ...]]:
    from nnadapter.compiled_models.engine import CompiledEngine

    trace = trace_for(options.trace, session_options)
    engine = CompiledEngine(file, requests, options, trace, session_options)
    if not isinstance(trace, Recorder):
        return engine, engine.device_names
    from nnadapter.running.traced_engine import TracedEngine

    return TracedEngine(engine, trace), engine.device_names


def _of_providers(
    providers: Sequence[Any] | None, provider_options: Sequence[Mapping[str, Any]] | None
) -> Requests | None:
    """The devices that a client of ONNX Runtime names; None if it names none."""
    if not providers:
        return None
    from nnadapter.drivers.providers import devices_of_providers

    return devices_of_providers(providers, provider_options)
