"""Who asks for a trace: `Options.trace`, or ONNX Runtime's `SessionOptions.enable_profiling`."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from nnadapter.traces.recorder import Recorder
from nnadapter.traces.trace import SILENT, Trace

if TYPE_CHECKING:
    import onnxruntime


def trace_for(path: str | os.PathLike[str] | None, session_options: onnxruntime.SessionOptions | None) -> Trace:
    """Return the trace of a new session.

    Args:
        path: what the person's options say.
        session_options: ONNX Runtime's own.

    Raises:
        InvalidOptionError: the person's file cannot be written. The other one is checked where it is used.
    """
    if path is not None:
        recorder = Recorder(Path(path))
        recorder.check()
        return recorder
    if session_options is not None and session_options.enable_profiling:
        # As ONNX Runtime calls its profiles, which have the time of the session's start to the millisecond.
        stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S_%f")[:-3]
        return Recorder(Path(f"{session_options.profile_file_prefix}_{stamp}.json"), of_session_options=True)
    return SILENT
