"""Which engine runs a model: ONNX Runtime on the untouched model where the CPU comes first, plans otherwise.

A model that ONNX Runtime does not load, because single nodes of it are too new or have no kernel, is planned over the
CPU and the last resort. That costs only those models time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nnadapter.drivers.onnxruntime.driver import refused_nodes
from nnadapter.errors import InvalidModelError, ModelFileError
from nnadapter.onnx.files import load_model
from nnadapter.options import Options
from nnadapter.planning.outside import bringing
from nnadapter.planning.setting import Setting
from nnadapter.running.engine import Engine
from nnadapter.running.planned import PlannedEngine
from nnadapter.running.traced_engine import TracedEngine
from nnadapter.traces.event import PLAN, SESSION
from nnadapter.traces.recorder import Recorder
from nnadapter.traces.trace import Trace
from partition.verdict import Unsupported

if TYPE_CHECKING:
    import onnx
    import onnxruntime

    from nnadapter.onnx.beginning import BegunModel

    _Given = tuple[
        str | os.PathLike[str] | bytes | onnx.ModelProto,
        Callable[[], Setting],
        onnxruntime.SessionOptions | None,
        Mapping[str, Any],
        Mapping[str, Any],
        float | None,
    ]
    """What a `HostEngine` is made of, in its order."""


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
    failed = None
    try:
        if setting.devices[0].is_host:
            try:
                from nnadapter.drivers.providers import options_of_cpu

                of_cpu = options_of_cpu(*providers)
                given = source, lambda: setting, session_options, of_cpu, arguments, options.deadline_s
                return _host_engine(given, setting.trace)
            except ModelFileError:
                raise
            except InvalidModelError as error:
                failed = error
        with setting.trace.span(SESSION, PLAN, "load the model"):
            model, held = begun.finish() if begun else (load_model(source), [])
        refused = _refused(model, setting, session_options) if failed else {}
        if failed and not refused:
            raise _told(failed, model, setting)
        setting.trace.check()
        planned = (make or PlannedEngine)(model, setting, options, session_options, refused)
        del held  # until what prepares the model holds its weights
        return TracedEngine(planned, setting.trace) if isinstance(setting.trace, Recorder) else planned
    except BaseException:
        setting.close()
        raise
    finally:
        failed = None  # its traceback holds this frame, and so the model


def _host_engine(given: _Given, trace: Trace) -> Engine:
    from nnadapter.running.host import HostEngine

    if not isinstance(trace, Recorder) or trace.of_session_options:  # ONNX Runtime writes what its own options ask for
        return HostEngine(*given)
    from nnadapter.running.traced_host import traced_host

    return traced_host(*given, trace)


def _told(failed: InvalidModelError, model: onnx.ModelProto, setting: Setting) -> InvalidModelError:
    """What ONNX Runtime said, and who brings or would have to bring an op that it does not know."""
    advice = bringing(dict.fromkeys((node.domain, node.op_type) for node in model.graph.node if node.domain))
    if not advice:
        verdicts = setting.devices[0].context.supported(model)
        unknown = next((node for node, verdict in zip(model.graph.node, verdicts, strict=True) if not verdict), None)
        if unknown is not None and unknown.domain:
            op = f"{unknown.domain}::{unknown.op_type}"
            advice = f"install the package that brings {op}, and name a device that takes it"
    return InvalidModelError(f"{failed}; {advice}") if advice else failed


def _refused(
    model: onnx.ModelProto, setting: Setting, session_options: onnxruntime.SessionOptions | None
) -> dict[int, Unsupported]:
    """What the last resort would have to take, if it takes all of it; empty where it cannot help."""
    refused = refused_nodes(model, session_options)
    verdicts = setting.last_resort.context.supported(model) if refused else ()
    return refused if all(verdicts[position] for position in refused) else {}
