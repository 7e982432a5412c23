"""Isolation: a device in a process of its own (docs/failures.md)."""

from __future__ import annotations

from nnadapter.process.lazily import lazily

__getattr__ = lazily(
    __name__,
    {
        ".channels": "Channel from_descriptor pair read_answer type_named written",
        ".child_process": "Child start",
        ".isolated_device": "IsolatedDevice",
    },
)
