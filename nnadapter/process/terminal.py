"""Standard output reserved for results, and signals that stop the process (SIGINT, SIGTERM, SIGHUP)."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from _thread import interrupt_main
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from functools import cache
from importlib.machinery import ExtensionFileLoader
from types import FrameType
from typing import Any

from nnadapter.process.resources import new_re_lock

_lock = new_re_lock()
_STDOUT, _STDERR = 1, 2


@contextmanager
def native_prints_to_stderr() -> Iterator[None]:
    """Redirect native code's standard output to standard error, in the whole process.

    Nothing is redirected if either of them is closed.
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
            with suppress(OSError):
                os.dup2(_STDERR, _STDOUT)
            yield
        finally:
            flush(None)
            os.dup2(saved_descriptor, _STDOUT)
            os.close(saved_descriptor)


@contextmanager
def prints_to_stderr() -> Iterator[None]:
    """Redirect standard output of Python and native code to standard error."""
    with redirect_stdout(sys.stderr), native_prints_to_stderr():
        yield


GRACE_S = 5.0
"""Seconds for the main thread to end after the first signal; native code may never return."""
_SAME_S = 0.1
"""Seconds within which signals count once: `timeout` and terminals signal a process and its group."""
_TICK_S = 0.05
_REPORTS = {"SIGINT": "interrupted", "SIGTERM": "terminated", "SIGHUP": "terminal closed"}
STOP_SIGNALS = tuple(getattr(signal, name) for name in _REPORTS if hasattr(signal, name))


class StopRequested(KeyboardInterrupt):
    """Stop signal as an exception, with the signal's number."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class _Received:
    def __init__(self) -> None:
        self.first: int | None = None
        self.time = 0.0
        self.is_pending = False
        """True for a signal that arrived in a finalizer or an import of an extension, until it is raised again."""
        self.is_reported = False


_received = _Received()


def raise_on_signals() -> None:
    """Raise `StopRequested` in the main thread on a stop signal, unless it was ignored at process start.

    A second signal, or `GRACE_S` seconds without exit, end the process with the exit code of the signal.
    """
    for number in STOP_SIGNALS:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _raise)
    sys.unraisablehook = _note_lost
    if _can_raise_again():
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=reset_signals)
        threading.Thread(target=_watch, args=(reader,), name="nnadapter signals", daemon=True).start()


def reset_signals() -> None:
    """Restore the default handlers of the stop signals."""
    for number in STOP_SIGNALS:
        if signal.getsignal(number) is _raise:
            signal.signal(number, signal.SIG_DFL)
    if _can_raise_again():
        signal.set_wakeup_fd(-1)


def stop_in(error: BaseException) -> KeyboardInterrupt | None:
    """Return the stop signal that was received or that caused `error`, if any."""
    if _received.first is not None:
        return StopRequested(_received.first)
    causes = (error.__cause__, error.__context__) if isinstance(error, ImportError) else ()
    return next((exception for exception in (error, *causes) if isinstance(exception, KeyboardInterrupt)), None)


def exit_code(stop: KeyboardInterrupt) -> int:
    """Return the exit code after a stop signal: 128 plus its number, as in shells."""
    return 128 + (stop.number if isinstance(stop, StopRequested) else signal.SIGINT)


def report(stop: KeyboardInterrupt) -> int:
    """Print how the process was stopped, once, and return its exit code."""
    code = exit_code(stop)
    if not _received.is_reported:
        _received.is_reported = True
        with suppress(OSError, AttributeError, ValueError):
            print(_REPORTS[signal.Signals(code - 128).name], file=sys.stderr, flush=True)
    return code


@contextmanager
def collected_signals() -> Iterator[Callable[[], int]]:
    """Collect stop signals during the block. Yield a function that returns the next signal, or 0 if there is none.

    Each call of the function installs the collecting handlers again, since libraries replace them. For the main thread
    only.
    """
    hangup = getattr(signal, "SIGHUP", None)
    numbers = [
        stop_signal
        for stop_signal in STOP_SIGNALS
        if stop_signal != hangup or signal.getsignal(stop_signal) != signal.SIG_IGN
    ]
    previous_handlers = {number: signal.getsignal(number) for number in numbers}
    arrived: list[int] = []

    def collect(number: int, frame: object) -> None:
        arrived.append(number)

    def next_signal() -> int:
        for number in numbers:
            signal.signal(number, collect)
        return arrived.pop(0) if arrived else 0

    next_signal()
    descriptor = signal.set_wakeup_fd(-1)
    try:
        yield next_signal
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(descriptor)


@contextmanager
def deferred_termination() -> Iterator[None]:
    """Intercept SIGTERM during the block, because its code installs a handler that may abort. For the main thread only.

    The first SIGTERM raises SystemExit in the block, and is raised again after the block. A second SIGTERM ends the
    process. Threads started in the block never receive SIGTERM.
    """
    if not hasattr(signal, "sigtimedwait"):
        yield
        return
    _unblock_in_children()
    previous_handler, blocked = (
        signal.signal(signal.SIGTERM, _interrupt),
        signal.pthread_sigmask(signal.SIG_BLOCK, _TERMINATION),
    )
    _deferring.append(blocked)
    received, is_over = list[int](), threading.Event()
    thread = threading.Thread(target=_await_termination, args=(received, is_over), name="nnadapter SIGTERM")
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        if signal.getsignal(signal.SIGTERM) is _interrupt:
            signal.signal(signal.SIGTERM, previous_handler)
        _deferring.pop()
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        if received:
            signal.raise_signal(signal.SIGTERM)


_TERMINATION = (signal.SIGTERM,)
_deferring: list[set[Any]] = []


@cache
def _unblock_in_children() -> None:
    os.register_at_fork(after_in_child=lambda: _deferring and signal.pthread_sigmask(signal.SIG_SETMASK, _deferring[0]))


def _await_termination(received: list[int], is_over: threading.Event) -> None:
    while not is_over.is_set():
        if signal.sigtimedwait(_TERMINATION, _TICK_S) is not None:
            if received:
                os._exit(128 + signal.SIGTERM)
            received.append(signal.SIGTERM)
            interrupt_main(signal.SIGTERM)


def _interrupt(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def block_signals() -> None:
    """Block the stop signals in this thread, and in threads and processes that it starts."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)


def _raise(number: int, frame: FrameType | None) -> None:
    if _received.first is None:
        _received.first, _received.time = number, time.monotonic()
    elif not _received.is_pending:
        if time.monotonic() - _received.time > _SAME_S:
            os._exit(128 + number)
        return
    _received.is_pending = _can_raise_again() and _is_importing_extension(frame)
    if not _received.is_pending:
        raise StopRequested(_received.first)


def _can_raise_again() -> bool:
    return hasattr(os, "register_at_fork")


def _is_importing_extension(frame: FrameType | None) -> bool:
    """Return whether a native module is being initialized; some abort the process on an exception."""
    while frame is not None:
        is_loader = frame.f_code.co_name in ("create_module", "exec_module")
        if is_loader and type(frame.f_locals.get("self")) is ExtensionFileLoader:
            return True
        frame = frame.f_back
    return False


def _note_lost(args: Any) -> None:
    if isinstance(args.exc_value, StopRequested):
        _received.is_pending = _can_raise_again()
    else:
        sys.__unraisablehook__(args)


def _watch(reader: int) -> None:
    """Raise a pending signal again; end the process on a second signal, or after `GRACE_S`."""
    import select

    block_signals()
    while os.read(reader, 1)[0] not in STOP_SIGNALS:
        pass
    began, is_sent = time.monotonic(), False
    while (current_time := time.monotonic()) < began + GRACE_S:
        if select.select([reader], [], [], _TICK_S)[0]:
            number = os.read(reader, 1)[0]
            if number in STOP_SIGNALS and current_time > began + _SAME_S and not is_sent:
                os._exit(128 + number)
            is_sent = False
        elif _received.is_pending and _received.first is not None:
            is_sent = True
            os.kill(os.getpid(), _received.first)
    number = _received.first or signal.SIGTERM
    report(StopRequested(number))
    os._exit(128 + number)
