"""A progress bar on stderr, for steps that take longer than a second, on a terminal only."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

PATIENCE_S = 1.0
"""Seconds before a bar appears."""


class Display(Protocol):
    """What is shown late and taken away again."""

    def start(self) -> None:
        """Show it."""

    def stop(self) -> None:
        """Take it away."""


@contextmanager
def progress(description: str, total: int | None = None) -> Iterator[Callable[[], None]]:
    """Show a bar while the block runs, if it runs longer than `PATIENCE_S`.

    Args:
        description: the step, in a word or two.
        total: how often the function that is given to the block will be called; None where nobody knows.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield _nothing
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    shown = columns if total is not None else columns[:2]
    bar = Progress(*shown, TimeElapsedColumn(), console=Console(stderr=True), transient=True)
    task = bar.add_task(description, total=total)
    with late(bar):
        yield lambda: bar.advance(task)


@contextmanager
def late(display: Display) -> Iterator[None]:
    """Start `display` after a while, unless the block is done by then; stop it after the block if it was started."""
    lock = threading.Lock()
    is_finished = started = False

    def start() -> None:
        nonlocal started
        with lock:
            if not is_finished:
                display.start()
                started = True

    timer = threading.Timer(PATIENCE_S, start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        with lock:
            is_finished = True
            if started:
                display.stop()


def _nothing() -> None:
    """Nobody is looking."""
