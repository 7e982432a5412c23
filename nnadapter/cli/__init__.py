"""The command line. Results go to stdout, notes and progress to stderr; exit codes are in `nnadapter --help`."""

from nnadapter.cli.entry import main
from nnadapter.cli.report import report as partition_report

__all__ = ["main", "partition_report"]
