"""A model on the CPU alone in a session with a trace: ONNX Runtime's own events, and every run as a step."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from nnadapter.drivers.onnxruntime.profiling import profile_of
from nnadapter.drivers.onnxruntime.sessions import new_session_options, options_lock, profiling
from nnadapter.engine.engine import TracedEngine
from nnadapter.engine.host import CPU, HostEngine
from nnadapter.engine.tracing import traced_run
from nnadapter.errors import NNAdapterError
from nnadapter.onnx.files import load_model
from nnadapter.traces.recorder import Recorder
from nnadapter.traces.trace import COMPILE

if TYPE_CHECKING:
    import onnx
    import onnxruntime

    from nnadapter.planning.setting import Setting


_USUAL_NODES = 1_000
"""Of a model that only ONNX Runtime reads."""


def traced_host(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto,
    setting: Callable[[], Setting],
    session_options: onnxruntime.SessionOptions | None,
    provider_options: Mapping[str, Any],
    arguments: Mapping[str, Any],
    deadline_s: float | None,
    recorder: Recorder,
) -> TracedEngine:
    """Return a `HostEngine` whose loading and runs are events. Arguments and errors are its own."""
    options = session_options or new_session_options()
    profile = profile_of(recorder, CPU)
    with recorder.span(CPU, COMPILE, "load the model"), options_lock, profiling(options, profile):
        engine = HostEngine(
            source,
            setting,
            options,
            provider_options,
            arguments,
            deadline_s,
            lambda run: traced_run(recorder, CPU, run, profile),
        )
    if profile is not None:
        profile.nodes = _node_count(source)
        profile.begin(engine.session)
    return TracedEngine(engine, recorder)


def _node_count(source: str | os.PathLike[str] | bytes | onnx.ModelProto) -> int:
    try:
        return len(load_model(source, external_data=False).graph.node)
    except NNAdapterError:  # ONNX Runtime may know it all the same, as a form of its own
        return _USUAL_NODES
