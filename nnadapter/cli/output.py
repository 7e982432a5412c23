"""Output of commands: complete files, JSON, and progress bars on stderr."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from nnadapter.cli.command import Failure
from nnadapter.files.atomic_files import write_file

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
    with delayed_display(bar):
        yield lambda: bar.advance(task)


@contextmanager
def delayed_display(display: Display) -> Iterator[None]:
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


def write_output(path: str | os.PathLike[str], write: Callable[[BinaryIO], object]) -> None:
    """See `nnadapter.files.atomic_files.write_file`.

    Raises:
        Failure: the file cannot be written.
    """
    try:
        write_file(Path(path), write)
    except OSError as error:
        raise Failure(f"{str(Path(path))!r} cannot be written: {error.strerror or error}; give another path") from error


def to_json(data: object) -> str:
    """JSON text; numbers that are not finite, which JSON does not know, become null."""
    return json.dumps(_finite(data), indent=2, allow_nan=False)


def _finite(data: Any) -> Any:
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(value) for value in data]
    return data
