"""Entry points of the command line. Imports are lazy, so that signal handlers are installed first."""

from __future__ import annotations

import sys

from nnadapter.process.terminal import raise_on_signals, report, reset_signals, stop_in

_BAD_OUTPUT = 2
_PRINTS = "echo"


def main() -> None:
    """Run the command `nnadapter`."""
    _run("main", "nnadapter")


def partition_report() -> None:
    """Run the command `partition-report`."""
    _run("partition_report", "partition-report")


def _run(command: str, name: str) -> None:
    try:
        raise_on_signals()
        from nnadapter import cli

        getattr(cli, command)(prog_name=name)
    except BaseException as error:
        stop = None if isinstance(error, SystemExit) and not error.code else stop_in(error)
        if stop is not None:
            sys.exit(report(stop))
        if not isinstance(error, OSError) or _raised_in(error) != _PRINTS:
            raise
        sys.stdout = None  # so that the interpreter does not flush it again at exit
        if sys.stderr is not None:
            reason = error.strerror or error
            print(f"Error: standard output cannot be written: {reason}; redirect it elsewhere", file=sys.stderr)
        sys.exit(_BAD_OUTPUT)
    finally:  # a signal during interpreter shutdown ends the process silently
        reset_signals()


def _raised_in(error: BaseException) -> str:
    step = error.__traceback__
    while step is not None and step.tb_next is not None:
        step = step.tb_next
    return step.tb_frame.f_code.co_name if step is not None else ""


if __name__ == "__main__":
    main()
