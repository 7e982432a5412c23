"""The command line as a process: `python -m nnadapter`, and what the installed commands call.

Everything else is imported here when it is needed, so that Ctrl-C is answered from the first moment on.
"""

from __future__ import annotations

import signal
import sys
import traceback

_BAD_OUTPUT, _INTERRUPTED = 2, 130
_PRINTS = "echo"
"""The function of click's that results are printed by."""


def main() -> None:
    """`nnadapter`."""
    _run("main", "nnadapter")


def partition_report() -> None:
    """`partition-report`."""
    _run("partition_report", "partition-report")


def _run(command: str, name: str) -> None:
    try:
        from nnadapter import cli

        getattr(cli, command)(prog_name=name)
    except KeyboardInterrupt:
        _end(_INTERRUPTED, "interrupted")
    except ImportError as error:
        if not isinstance(error.__cause__ or error.__context__, KeyboardInterrupt):
            raise
        _end(_INTERRUPTED, "interrupted")
    except OSError as error:
        if traceback.extract_tb(error.__traceback__)[-1].name != _PRINTS:
            raise
        sys.stdout = None  # nothing is tried again at the end of the process
        _end(_BAD_OUTPUT, f"Error: standard output cannot be written: {error.strerror or error}; send it elsewhere")
    finally:  # what is left is no work: Ctrl-C ends it without a word
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _end(code: int, message: str) -> None:
    if sys.stderr is not None:
        print(message, file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
