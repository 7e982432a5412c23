"""Harness of all benchmarks: options, timing in turns, memory of a process, tables, and JSON.

A benchmark is a module with `add_options(parser)` and `run(options, results)`. It adds rows of raw values to tables of
its `Results`. The harness prints them as Markdown while they come, or writes them as JSON at the end.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib
import json
import math
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).parents[1]
MEGABYTE = 1e6
_TURN_LIMIT = 200
"""The most runs in one turn."""
_PACKAGES = ("numpy", "onnx", "onnxruntime", "openvino", "torch", "jax", "paddlepaddle", "ray")
_STANDARD_OUTPUT = "-"
_CALL = """
import importlib, json, sys
module, name, arguments = json.loads(sys.argv[1])
print(json.dumps(getattr(importlib.import_module(module), name)(*arguments)))
"""


class UsageError(ValueError):
    """An argument of the command line that cannot be used."""


class Table:
    """Rows with the same columns, printed as they are added."""

    def __init__(self, title: str, stream: TextIO) -> None:
        self.title = title
        self.rows: list[dict[str, Any]] = []
        self._stream = stream

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row of raw values by column; the first row defines the columns."""
        if not self.rows:
            title = [self.title, ""] if self.title else []
            print(*title, _line(row), _line(["---"] * len(row)), sep="\n", file=self._stream)
        elif list(row) != list(self.rows[0]):
            raise ValueError(f"the row has columns {list(row)}, the table has {list(self.rows[0])}")
        self.rows.append(dict(row))
        print(_line(map(_cell, row.values())), file=self._stream, flush=True)


class Results:
    """Tables, notes and failures of one benchmark."""

    def __init__(self, benchmark: str, arguments: Sequence[str], json_file: str | None = None) -> None:
        self.failures: list[str] = []
        self._json_file = json_file
        self._stream = sys.stderr if json_file == _STANDARD_OUTPUT else sys.stdout
        self._tables: list[Table] = []
        self._notes: list[str] = []
        self._start = {"benchmark": benchmark, "arguments": list(arguments)}

    def table(self, title: str = "") -> Table:
        """Begin a table."""
        self._separate()
        self._tables.append(Table(title, self._stream))
        return self._tables[-1]

    def note(self, text: str) -> None:
        """Add a line of text."""
        self._separate()
        self._notes.append(text)
        print(text, file=self._stream, flush=True)

    def fail(self, text: str) -> None:
        """Add a line of text that makes the exit code 1."""
        self.failures.append(text)
        print(f"\nFAILED: {text}", file=self._stream, flush=True)

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data, with the versions of packages and the machine."""
        return {
            **self._start,
            "versions": {"python": platform.python_version(), **_versions()},
            "machine": {"platform": platform.platform(), "processors": processors()},
            "tables": [{"title": table.title, "rows": table.rows} for table in self._tables],
            "notes": self._notes,
            "failures": self.failures,
        }

    def write(self) -> None:
        """Write the JSON file, if one was asked for."""
        if self._json_file is None:
            return
        text = json.dumps(self.to_json(), indent=2, default=str)
        if self._json_file == _STANDARD_OUTPUT:
            print(text)
        else:
            Path(self._json_file).write_text(text + "\n", encoding="utf-8")

    def _separate(self) -> None:
        if (self._tables and self._tables[-1].rows) or self._notes:
            print(file=self._stream)


def run_benchmark(name: str, arguments: Sequence[str]) -> int:
    """Run the benchmark of a name with arguments of the command line, and return the exit code."""
    module = importlib.import_module(f"benchmarks.{name}")
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks {name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_options(parser)
    parser.add_argument(
        "--json", nargs="?", const=_STANDARD_OUTPUT, metavar="FILE", help="write JSON, to standard output by default"
    )
    options = parser.parse_args(arguments)
    results = Results(name, arguments, options.json)
    try:
        module.run(options, results)
    except UsageError as error:
        parser.error(str(error))
    results.write()
    return 1 if results.failures else 0


def select(names: Sequence[str], choices: Iterable[str]) -> list[str]:
    """Return `names`, or all known names if it is empty.

    Raises:
        UsageError: a name is not known.
    """
    every = list(choices)
    for name in names:
        if name not in every:
            raise UsageError(f"there is no {name!r}, only {', '.join(every)}")
    return list(names) or every


def select_containing(parts: Sequence[str], choices: Iterable[str]) -> list[str]:
    """Return the known names that contain one of `parts`, or all if there are none.

    Raises:
        UsageError: no name contains one.
    """
    every = list(choices)
    matches = [name for name in every if not parts or any(part in name for part in parts)]
    if not matches:
        raise UsageError(f"no name contains {' or '.join(map(repr, parts))}, there are {', '.join(every)}")
    return matches


def interleaved(
    candidates: Mapping[str, Callable[[], object]], rounds: int, pause: float = 0.0, turn: float = 0.0
) -> dict[str, float]:
    """Return the median seconds of every candidate over `rounds` rounds in turn, after one that does not count.

    Each round has its own random order, the same in every call, because the candidate that ran before decides what
    caches and memory hold. Alternating forward and backward would favor the first and last candidate, which would run
    twice in a row.

    Args:
        candidates: what to call, by name.
        rounds: that count.
        pause: seconds of sleep before each turn, which are not counted.
        turn: seconds of a turn. A turn is one call by default. With `turn` it is one call that does not count, then as
            many as fit into that time, at least one, and their median is the time of the turn.
    """
    durations: dict[str, list[float]] = {name: [] for name in candidates}
    order, generator = list(candidates.items()), random.Random(0)
    for position in range(rounds + 1):
        generator.shuffle(order)
        for name, candidate in order:
            if pause:
                time.sleep(pause)
            seconds = _turn(candidate, turn)
            if position:
                durations[name].append(seconds)
    return {name: statistics.median(seconds) for name, seconds in durations.items()}


def seconds_of(call: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _turn(candidate: Callable[[], object], seconds: float) -> float:
    if not seconds:
        return seconds_of(candidate)
    candidate()
    durations = [seconds_of(candidate)]
    while sum(durations) < seconds and len(durations) < _TURN_LIMIT:
        durations.append(seconds_of(candidate))
    return statistics.median(durations)


def command_in_process(function: Callable[..., Any], *arguments: Any) -> list[str]:
    """Return the command of a process that calls a module's function and prints its result as JSON."""
    call = json.dumps([function.__module__, function.__qualname__, arguments])
    return [sys.executable, "-c", _CALL, call]


def in_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a module's function in a process of its own; arguments and result are JSON values."""
    command = command_in_process(function, *arguments)
    process = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
    return json.loads(process.stdout.splitlines()[-1])


def random_feed(model: Any, input_shapes: Mapping[str, Sequence[int]] | None = None) -> dict[str, Any]:
    """Return seeded random inputs for a model, imported on use: `in_process` measures the memory of imports."""
    from nnadapter.candidates import random_feed as feed_of

    return dict(feed_of(model, input_shapes))


def processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def resident_bytes() -> int:
    """Return how many bytes of this process are in memory."""
    return _status("VmRSS")


def anonymous_bytes() -> int:
    """Return how many bytes of this process are in memory and not backed by a file."""
    return _status("RssAnon")


def retained_bytes() -> int:
    """Return the anonymous bytes after garbage collection, with free memory given back to the system."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return anonymous_bytes()


def peak_bytes() -> int:
    """Return the most bytes that were in memory since this program began; getrusage counts from before that."""
    return _status("VmHWM")


def _status(name: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) << 10


def _versions() -> dict[str, str]:
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_cell, value))
    return str(value).replace("|", "\\|")


def _number(value: float) -> str:
    """Four significant digits, with at most four after the point."""
    if not value or not math.isfinite(value):
        return f"{value:g}"
    magnitude = math.floor(math.log10(abs(value)))
    return f"{value:.{min(max(3 - magnitude, 0), 4)}f}" if -3 <= magnitude < 7 else f"{value:.1e}"
