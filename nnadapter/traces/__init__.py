"""What happened in a session, and when: events, recorded, laid out on lanes, and written for trace viewers.

A session has a `SymbolicTrace`. Most have the one that keeps nothing, and then a run does not even ask. With
`Options(trace=PATH)` it is a `Recorder`, and whoever does something that takes time says so: planning, the calls of
drivers, steps of a run, waits. An event belongs to a lane, which is a device or the session itself, and to the thread
that it happened in. Rows are made of that at the end (`recorder.py`), so that recording is an append to a list:
events of one thread lie within each other or behind each other, and where several threads use a device at once, its
lane has
several rows. ONNX Runtime's own events are read from its profiles at the end, too.

Memory is bounded: the first events are kept, as ONNX Runtime does it, and what came after is counted. What is rare
(plans, compiling, fallbacks) has a bound of its own, so that runs do not crowd it out.

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
