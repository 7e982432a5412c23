"""Which engine runs a model: ONNX Runtime on the untouched model where the CPU comes first, plans otherwise.

A model that ONNX Runtime does not load, because single nodes of it are too new or have no kernel, is planned over the
CPU and the last resort. That costs only those models time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nnadapter.engine.engine import Engine, with_trace
from nnadapter.engine.planned import PlannedEngine
from nnadapter.errors import InvalidModelError, ModelFileError
from nnadapter.onnx.files import load_model
from nnadapter.options import Options
from nnadapter.planning.setting import Setting
from nnadapter.planning.unloaded import left_to_last_resort
from nnadapter.traces.recorder import Recorder
from nnadapter.traces.trace import PLAN, SESSION

if TYPE_CHECKING:
    import onnx
    import onnxruntime

    from nnadapter.onnx.files import BegunModel


def make_engine(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto,
    setting: Setting,
    options: Options,
    session_options: onnxruntime.SessionOptions | None,
    providers: tuple[Sequence[Any] | None, Sequence[Mapping[str, Any]] | None],
    arguments: Mapping[str, Any],
    make: Callable[..., PlannedEngine] | None = None,
    begun: BegunModel | None = None,
) -> Engine:
    """Return what runs the model in `setting`.

    Args:
        source: path, contents, or model.
        setting: opened devices, and what the person demands; closed if this fails.
        options: the session's.
        session_options: ONNX Runtime's own.
        providers: what a client gave as `providers` and `provider_options`.
        arguments: what ONNX Runtime's session takes beside.
        make: an engine of plans, in place of one that keeps none.
        begun: the model of `source`, if somebody has begun to read it.

    Raises:
        InvalidModelError, ModelFileError: the model cannot be read, or no device takes a node of it.
        NotDelegatedError, CompilationError: fallback is forbidden and would be needed.
    """
    failed = refused = None
    try:
        if setting.devices[0].is_host:
            try:
                return _host_engine(source, setting, options, session_options, providers, arguments)
            except ModelFileError:
                raise
            except InvalidModelError as error:
                failed = error
        planned = with_trace(make or PlannedEngine, setting.trace)
        with setting.trace.span(SESSION, PLAN, "load the model"):
            model, held = begun.finish() if begun else (loaded(source, session_options), [])
        refused = left_to_last_resort(failed, model, setting, session_options) if failed else {}
        if isinstance(refused, InvalidModelError):
            raise refused
        setting.trace.check()
        engine = planned(model, setting, options, session_options, refused)
        del held  # until what prepares the model holds its weights
        return engine
    except BaseException:
        setting.close()
        raise
    finally:
        failed = refused = None  # their tracebacks hold this frame, and so the model


def loaded(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto, session_options: onnxruntime.SessionOptions | None
) -> onnx.ModelProto:
    """Return the model that a source holds, with what session options say of it."""
    if session_options is None:
        return load_model(source)
    from nnadapter.drivers.onnxruntime.sessions import external_folder

    overrides = getattr(session_options, "overrides", None)  # `nnadapter.ort.SessionOptions` have them
    return load_model(source, folder=external_folder(session_options), overrides=overrides)


def _host_engine(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto,
    setting: Setting,
    options: Options,
    session_options: onnxruntime.SessionOptions | None,
    providers: tuple[Sequence[Any] | None, Sequence[Mapping[str, Any]] | None],
    arguments: Mapping[str, Any],
) -> Engine:
    from nnadapter.drivers.providers import options_of_cpu
    from nnadapter.engine.host import HostEngine

    trace, of_cpu = setting.trace, options_of_cpu(*providers)
    given = source, lambda: setting, session_options, of_cpu, arguments, options.deadline_s
    if not isinstance(trace, Recorder) or trace.of_session_options:  # ONNX Runtime writes what its own options ask for
        return HostEngine(*given)
    from nnadapter.engine.traced_host import traced_host

    return traced_host(*given, trace)
