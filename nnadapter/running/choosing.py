"""Which engine runs a model: ONNX Runtime on the untouched model where the CPU comes first, plans otherwise.

A model that ONNX Runtime does not load, because single nodes of it are too new or have no kernel, is planned over the
CPU and the last resort. That costs only those models time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nnadapter.drivers.onnxruntime.driver import refused_nodes
from nnadapter.errors import InvalidModelError, ModelFileError
from nnadapter.onnx.files import load_model
from nnadapter.options import Options
from nnadapter.planning.setting import Setting
from nnadapter.running.engine import Engine
from nnadapter.running.host import HostEngine
from nnadapter.running.planned import PlannedEngine
from nnadapter.running.traced_engine import TracedEngine
from nnadapter.traces.event import PLAN, SESSION
from nnadapter.traces.recorder import Recorder
from partition.verdict import Unsupported

if TYPE_CHECKING:
    import onnx
    import onnxruntime


def make_engine(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto,
    setting: Setting,
    options: Options,
    session_options: onnxruntime.SessionOptions | None,
    providers: tuple[Sequence[Any] | None, Sequence[Mapping[str, Any]] | None],
    arguments: Mapping[str, Any],
) -> Engine:
    """Return what runs the model in `setting`.

    Args:
        source: path, contents, or model.
        setting: opened devices, and what the person demands; closed if this fails.
        options: the session's.
        session_options: ONNX Runtime's own.
        providers: what a client gave as `providers` and `provider_options`.
        arguments: what ONNX Runtime's session takes beside.

    Raises:
        InvalidModelError, ModelFileError: the model cannot be read, or no device takes a node of it.
        NotDelegatedError, CompilationError: fallback is forbidden and would be needed.
    """
    try:
        refused: Mapping[int, Unsupported] = {}
        if setting.devices[0].is_host:
            try:
                return _host_engine(source, setting, options, session_options, providers, arguments)
            except ModelFileError:
                raise
            except InvalidModelError:
                refused = _refused(load_model(source), setting, session_options)
                if not refused:
                    raise
        setting.trace.check()
        planned = PlannedEngine(_loaded(source, setting), setting, options, session_options, refused)
        return TracedEngine(planned, setting.trace) if isinstance(setting.trace, Recorder) else planned
    except BaseException:
        setting.close()
        raise


def _host_engine(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto,
    setting: Setting,
    options: Options,
    session_options: onnxruntime.SessionOptions | None,
    providers: tuple[Sequence[Any] | None, Sequence[Mapping[str, Any]] | None],
    arguments: Mapping[str, Any],
) -> Engine:
    from nnadapter.drivers.providers import options_of_cpu

    of_cpu, trace = options_of_cpu(*providers), setting.trace
    if not isinstance(trace, Recorder) or trace.of_session_options:  # ONNX Runtime writes what its own options ask for
        return HostEngine(source, lambda: setting, session_options, of_cpu, arguments, options.deadline_s)
    from nnadapter.running.traced_host import traced_host

    return traced_host(source, lambda: setting, session_options, of_cpu, arguments, options.deadline_s, trace)


def _loaded(source: str | os.PathLike[str] | bytes | onnx.ModelProto, setting: Setting) -> onnx.ModelProto:
    with setting.trace.span(SESSION, PLAN, "load the model"):
        return load_model(source)


def _refused(
    model: onnx.ModelProto, setting: Setting, session_options: onnxruntime.SessionOptions | None
) -> dict[int, Unsupported]:
    """What the last resort would have to take, if it takes all of it; empty where it cannot help."""
    refused = refused_nodes(model, session_options)
    verdicts = setting.last_resort.context.supported(model) if refused else ()
    return refused if all(verdicts[position] for position in refused) else {}
