"""What comes of models, files and feeds that ask for more than they give: each with its time and its memory.

    python benchmarks/bounds.py [--ways NAME ...] [--only WORDS ...] [--limit 20]

Each trial is a process of its own, forked behind the imports: its time, and its peak memory as the system counts it
(VmHWM), are those of loading and running alone. It has an address space of 8 GiB and `--limit` seconds. What takes
more than a second or 200 MB, ends otherwise than by an error of nnadapter's or a result, or does not end, is marked.
`cpu` is a session on the CPU alone, which hands the model to ONNX Runtime as it is; runs have half a second
(`Options(deadline_s=...)`). Models are limited by `nnadapter/limits.py`; docs/security.md says what is promised.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import resource
import signal
import struct
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import onnx
import onnxruntime

import nnadapter as nna
from benchmarks.choosing import containing
from benchmarks.models.hostile_files import FEEDS, FILES, TEXTS, read
from benchmarks.models.hostile_models import GRAPHS, SIZES, Made
from benchmarks.timing import table

_SECONDS, _MEGABYTES = 1.0, 200.0
_DEADLINE_S = 0.5
_ADDRESS_SPACE = 8 << 30
_SHOWN = 110
_NOT_IMPORTED = ("torch", "paddle", "templates", "__main__", "testing")


class Outcome(NamedTuple):
    """What came of one trial."""

    text: str
    seconds: float
    megabytes: float

    @property
    def is_beyond(self) -> bool:
        """Whether it is to be marked."""
        return self.seconds > _SECONDS or self.megabytes > _MEGABYTES or self.text.startswith("!")


def _serialized(source: Any) -> Any:
    return source.SerializeToString() if isinstance(source, onnx.ModelProto) else source


def _session(device: str, made: Made) -> str:
    source, feed = made
    with nna.InferenceSession(_serialized(source), devices=device, options={"deadline_s": _DEADLINE_S}) as session:
        session.run(None, feed)
    return "ran"


def _report(made: Made) -> str:
    source, feed = made
    shapes = {name: array.shape for name, array in feed.items()}
    return str(nna.partition_report(_serialized(source), devices="fake_npu", input_shapes=shapes)) and "reported"


_OF_MODELS: Mapping[str, Callable[[Made], str]] = {
    "fake_npu": partial(_session, "fake_npu"),
    "cpu": partial(_session, "cpu"),
    "report": _report,
    "openvino": partial(_session, "openvino"),
}


def _trials(ways: list[str], folder: Path) -> dict[tuple[str, str], Callable[[], Callable[[], str]]]:
    """What makes each trial ready, by its name and its way."""
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
    """Megabytes of this process that the system counts."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024


def _run(trial: Callable[[], str], limit: int) -> Outcome:
    """What comes of a trial in a fork of this process."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.alarm(limit)
        before, start = _memory("VmRSS"), time.perf_counter()
        text = _outcome(trial)
        seconds = time.perf_counter() - start
        os.write(writing, struct.pack("dd", seconds, _memory("VmHWM") - before) + text.encode("utf-8", "replace"))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read()
    _, status, used = os.wait4(child, 0)
    if not told:
        return Outcome(f"! ended by signal {os.WTERMSIG(status)}", float(limit), used.ru_maxrss / 1024)
    return Outcome(told[16:].decode(), *struct.unpack("dd", told[:16]))


def _outcome(trial: Callable[[], str]) -> str:
    warnings.simplefilter("ignore")
    try:
        return trial()
    except BaseException as error:  # noqa: BLE001  whatever it is, it is told
        foreign = "" if isinstance(error, nna.errors.NNAdapterError) else "! "
        return f"{foreign}{type(error).__name__}: {' '.join(str(error).split())}"[:_SHOWN]


def _import_all() -> None:
    """Import whatever a session may import: what counts is what comes behind."""
    for package in ("nnadapter", "partition"):
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            if not any(part in module.name for part in _NOT_IMPORTED):
                importlib.import_module(module.name)
    for name in ("onnx.reference", "onnx.shape_inference", "onnx.checker"):
        importlib.import_module(name)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="+", default=["fake_npu", "cpu", "report"], choices=_OF_MODELS)
    parser.add_argument("--only", nargs="+", default=[], help="trials whose names hold one of these")
    parser.add_argument("--limit", type=int, default=20, help="seconds that a trial has")
    chosen = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        trials = _trials(chosen.ways, Path(folder))
        names = containing(parser, chosen.only, dict.fromkeys(name for name, _ in trials))
        _import_all()
        for (name, way), prepare in trials.items():
            if name in names:
                outcome = _run(prepare(), chosen.limit)
                mark = "beyond" if outcome.is_beyond else ""
                rows.append((name, way, outcome.text, f"{outcome.seconds:.2f} s", f"{outcome.megabytes:.0f} MB", mark))
                print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
    print(f"nnadapter with ONNX Runtime {onnxruntime.__version__}, onnx {onnx.__version__}\n")
    print(table(("What", "Way", "What came of it", "Time", "Peak memory", ""), rows))
    print(f"\n{sum(bool(row[-1]) for row in rows)} of {len(rows)} are beyond {_SECONDS:.0f} s or {_MEGABYTES:.0f} MB")


if __name__ == "__main__":
    main()
