"""Traces: events of a session with their times, recorded and written for trace viewers.

An event belongs to a lane (a device or the session) and to a thread. For writing, events are arranged in rows, several
per lane if threads overlap. ONNX Runtime's events are read from its profiles.

Memory is bounded: events beyond a limit are only counted. Rare events have a separate limit.

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
