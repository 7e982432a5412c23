"""Command line. Results go to stdout, notes and progress to stderr; exit codes are in `nnadapter --help`."""

from __future__ import annotations

from nnadapter.process.lazily import lazily

__getattr__ = lazily(
    __name__,
    {
        ".command": "main",
        ".report": "partition_report:report",
    },
)
