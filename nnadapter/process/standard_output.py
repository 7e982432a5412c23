"""Keeps standard output to those who ask for results: what a native library prints there goes to standard error."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress

from nnadapter.process.forking import new_re_lock

_lock = new_re_lock()
_STDOUT, _STDERR = 1, 2


@contextmanager
def native_prints_to_stderr() -> Iterator[None]:
    """Send what C code prints to standard output while the block runs to standard error, in the whole process.

    Nothing is done where a process has no such files, or on systems without a C library that can be asked to flush.
    """
    with _lock:
        try:
            flush = ctypes.CDLL(None).fflush
            sys.stdout.flush()
            saved_descriptor = os.dup(_STDOUT)
        except (OSError, TypeError, AttributeError, ValueError):
            yield
            return
        try:
            flush(None)
            with suppress(OSError):  # standard error is closed
                os.dup2(_STDERR, _STDOUT)
            yield
        finally:
            flush(None)  # C buffers what goes to a pipe
            os.dup2(saved_descriptor, _STDOUT)
            os.close(saved_descriptor)


@contextmanager
def prints_to_stderr() -> Iterator[None]:
    """The same, for what Python code prints as well."""
    with redirect_stdout(sys.stderr), native_prints_to_stderr():
        yield
