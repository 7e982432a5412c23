"""Selection of a session's trace, by its options, ONNX Runtime's session options and the log level."""

from __future__ import annotations

import os
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from nnadapter.traces.trace import SILENT, Trace

if TYPE_CHECKING:
    import onnxruntime

    from nnadapter.traces.recorder import Recorder


def trace_for(path: str | os.PathLike[str] | None, session_options: onnxruntime.SessionOptions | None) -> Trace:
    """Return the trace of a new session.

    Args:
        path: what the person's options say.
        session_options: ONNX Runtime's own.

    Raises:
        InvalidOptionError: the person's file cannot be written. The other one is checked where it is used. Or
            NNADAPTER_LOG names no level.
    """
    if path is not None:
        recorder = _recorder(Path(path))
        recorder.check()
        return recorder
    if session_options is None or not session_options.enable_profiling:
        return _log_trace()
    # As ONNX Runtime calls its profiles, which have the time of the session's start to the millisecond.
    stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S_%f")[:-3]
    return _recorder(Path(f"{session_options.profile_file_prefix}_{stamp}.json"), of_session_options=True)


def _log_trace() -> Trace:
    """What tells a log, if anybody reads one: who does has imported `logging`, or says so in the environment."""
    if "logging" not in sys.modules and not os.environ.get("NNADAPTER_LOG"):
        return SILENT
    from nnadapter.traces.logged import LogTrace, is_enabled

    return LogTrace() if is_enabled() else SILENT


def _recorder(path: Path, *, of_session_options: bool = False) -> Recorder:
    from nnadapter.traces.recorder import Recorder  # most sessions have none

    return Recorder(path, of_session_options=of_session_options)
