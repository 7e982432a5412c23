"""Traces: events of a session with their times, recorded and written for trace viewers.

A session has a `Trace`. Most sessions have one that discards events, so a run skips recording. With
`Options(trace=PATH)` it is a `Recorder`, and planning, driver calls, steps of a run and waits record events. An event
belongs to a lane (a device or the session itself) and to a thread. Recording appends to a list; events are arranged in
rows at the end (`recorder.py`). If several threads use a device at once, its lane has several rows. ONNX Runtime's own
events are read from its profiles at the end.

Memory is bounded: the first events are recorded, later ones counted, as in ONNX Runtime. Rare events (plans, compiling,
fallbacks) have a bound of their own.

Source: Google's Trace Event Format, which chrome://tracing and ui.perfetto.dev read.
"""

from __future__ import annotations

from nnadapter.process.lazily import lazily

__getattr__ = lazily(
    __name__,
    {
        ".recorder": "Recorder rows_of",
        ".selection": "LogTrace VARIABLE is_enabled trace_for",
        ".trace": "COMPILE Event FALLBACK RUN SESSION SILENT STEP",
    },
)
