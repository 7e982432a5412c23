"""Command line. Results go to stdout, notes and progress to stderr; exit codes are in `nnadapter --help`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnadapter.process.lazily import lazily

if TYPE_CHECKING:
    from nnadapter.cli.command import main
    from nnadapter.cli.report import report as partition_report

__all__ = ["main", "partition_report"]

__getattr__ = lazily(
    __name__,
    {
        ".command": "main",
        ".report": "partition_report:report",
    },
)
