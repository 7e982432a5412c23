"""Traces: events of a session with their times, recorded and written for trace viewers.

An event belongs to a lane (a device or the session) and to a thread. Events are arranged in rows at the end, several
per lane if threads overlap. ONNX Runtime's events are read from its profiles.

Memory is bounded: the first events are recorded, later ones counted. Rare events have a separate bound.

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
