"""Hostile models, files and feeds: the outcome of each, with its time and memory.

Each trial runs in a fork of this process after the imports, so its time, and its peak memory as the system counts it
(VmHWM), cover loading and running only. It has an address space of 8 GiB and `--limit` seconds. A trial is
marked if it takes more than a second or 200 MB, ends otherwise than by a result or an error of nnadapter's, or does not
end. `cpu` is a session on the CPU alone, which passes the model to ONNX Runtime unchanged. Runs have half a second
(`Options(deadline_s=...)`). docs/security.md has the limits and what is promised.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import resource
import signal
import struct
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import onnx
import onnx.parser

import nnadapter as nna
from benchmarks.harness import Results, select_containing
from benchmarks.models.hostile_files import FEEDS, FILES, TEXTS, read
from benchmarks.models.hostile_models import GRAPHS, SIZES, Made

_SECONDS, _MEGABYTES = 1.0, 200.0
_DEADLINE_S = 0.5
_ADDRESS_SPACE = 8 << 30
_SHOWN = 110
_NOT_IMPORTED = ("torch", "paddle", "templates", "__main__", "testing")


class Outcome(NamedTuple):
    """Outcome of one trial."""

    text: str
    seconds: float
    megabytes: float

    @property
    def is_beyond(self) -> bool:
        """Check whether the trial exceeds a limit or gives a wrong result."""
        return self.seconds > _SECONDS or self.megabytes > _MEGABYTES or self.text.startswith("!")


def _serialized(source: Any) -> Any:
    return source.SerializeToString() if isinstance(source, onnx.ModelProto) else source


def _session(device: str, hostile_model: Made) -> str:
    source, feed = hostile_model
    with nna.InferenceSession(_serialized(source), devices=device, options={"deadline_s": _DEADLINE_S}) as session:
        session.run(None, feed)
    return "ran"


def _report(hostile_model: Made) -> str:
    source, feed = hostile_model
    shapes = {name: array.shape for name, array in feed.items()}
    return str(nna.partition_report(_serialized(source), devices="fake_npu", input_shapes=shapes)) and "reported"


_OF_MODELS: Mapping[str, Callable[[Made], str]] = {
    "fake_npu": partial(_session, "fake_npu"),
    "cpu": partial(_session, "cpu"),
    "report": _report,
    "openvino": partial(_session, "openvino"),
}


def _trials(ways: list[str], folder: Path) -> dict[tuple[str, str], Callable[[], Callable[[], str]]]:
    """Return (name, way) -> function that prepares the trial."""
    trials: dict[tuple[str, str], Callable[[], Callable[[], str]]] = {}
    for name, make in {**GRAPHS, **SIZES, **FILES}.items():
        trials |= {(name, way): partial(_of_model, make, way, folder) for way in ways}
    for name, make_feed in FEEDS.items():
        trials |= {(f"fed {name}", way): partial(_of_feed, make_feed, way) for way in ways if way != "report"}
    trials |= {(name, "read"): partial(_of_text, text, folder) for name, text in TEXTS.items()}
    return trials


def _of_model(make: Callable[[Path], Made], way: str, folder: Path) -> Callable[[], str]:
    return partial(_OF_MODELS[way], make(folder))


def _of_feed(make: Callable[[], Any], way: str) -> Callable[[], str]:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[n, 3] x) => (float[n, 3] y) { y = Relu(x) }'
    )
    return partial(_OF_MODELS[way], (model, make()))


def _of_text(kind_and_contents: Any, folder: Path) -> Callable[[], str]:
    return partial(read, *kind_and_contents, folder)


def _memory(field: str) -> float:
    """Return megabytes of this process that the system counts."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024


def _run(trial: Callable[[], str], limit: int) -> Outcome:
    """Run a trial in a fork of this process."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.alarm(limit)
        initial_memory, start = _memory("VmRSS"), time.perf_counter()
        text = _outcome(trial)
        seconds = time.perf_counter() - start
        os.write(
            writing, struct.pack("dd", seconds, _memory("VmHWM") - initial_memory) + text.encode("utf-8", "replace")
        )
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        output = pipe.read()
    _, status, usage = os.wait4(child, 0)
    if not output:
        return Outcome(f"! ended by signal {os.WTERMSIG(status)}", float(limit), usage.ru_maxrss / 1024)
    return Outcome(output[16:].decode(), *struct.unpack("dd", output[:16]))


def _outcome(trial: Callable[[], str]) -> str:
    warnings.simplefilter("ignore")
    try:
        return trial()
    except BaseException as error:  # noqa: BLE001  any outcome is a row
        foreign = "" if isinstance(error, nna.errors.NNAdapterError) else "! "
        return f"{foreign}{type(error).__name__}: {' '.join(str(error).split())}"[:_SHOWN]


def _import_all() -> None:
    """Import all modules that a session may import, so that trials do not count them."""
    for package in ("nnadapter", "partition"):
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            if not any(part in module.name for part in _NOT_IMPORTED):
                importlib.import_module(module.name)
    for name in ("onnx.reference", "onnx.shape_inference", "onnx.checker"):
        importlib.import_module(name)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--ways", nargs="+", default=["fake_npu", "cpu", "report"], choices=_OF_MODELS)
    parser.add_argument("--only", nargs="+", default=[], help="trials whose names contain one of these")
    parser.add_argument("--limit", type=int, default=20, help="seconds of a trial")


def run(options: argparse.Namespace, results: Results) -> None:
    """Run every chosen trial in every chosen way."""
    table = results.table()
    with tempfile.TemporaryDirectory() as folder:
        trials = _trials(options.ways, Path(folder))
        names = select_containing(options.only, dict.fromkeys(name for name, _ in trials))
        _import_all()
        for (name, way), prepare in trials.items():
            if name in names:
                outcome = _run(prepare(), options.limit)
                row = {"trial": name, "way": way, "outcome": outcome.text, "s": outcome.seconds}
                table.add({**row, "MB": outcome.megabytes, "mark": "beyond" if outcome.is_beyond else ""})
    marked = sum(bool(row["mark"]) for row in table.rows)
    results.note(f"{marked} of {len(table.rows)} are beyond {_SECONDS:.0f} s or {_MEGABYTES:.0f} MB")
