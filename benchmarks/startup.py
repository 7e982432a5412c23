"""From the start of a process to its first result, and its peak memory, beside ONNX Runtime and OpenVINO alone.

    python benchmarks/startup.py [--models NAME ...] [--ways NAME ...] [--rounds 5] [--folder FOLDER]

The ways called files are sessions of compiled models, beside OpenVINO with a blob that it wrote itself. Those called
first and second have a cache (docs/cache.md), which is empty at first; qnn is its emulator, where there is no NPU.

Every start is a process of its own; ways take turns, medians count. Peak memory is what the system counts for that
process (VmHWM). A round that does not count comes first: all find files in the system's memory, and modules compiled to
bytecode, as installers leave them, whatever PYTHONDONTWRITEBYTECODE says. Models are kept in FOLDER if one is given:
`largest`, which has 3 GiB, is only measured if it is named.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.startup_models import MODELS, written
from benchmarks.timing import table

_ROOT = Path(__file__).parents[1]
_FEED = "import sys, numpy as np; path, feed = sys.argv[1], dict(np.load(sys.argv[2]))\n"
_OURS = _FEED + "import nnadapter as nna; nna.InferenceSession(path, devices={!r}).run(None, feed)\n"
_REPORT = (
    "import sys; from nnadapter.cli import main\n"
    "main(['report', sys.argv[1], '-d', {!r}, '--output', '/dev/null'], standalone_mode=False)\n"
)
_END = "print(max(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1], flush=True)\n"
_BLOB = (
    _FEED
    + "import openvino as o; blob = open(path + '.blob', 'rb').read()\n"  # which the engine looks into, and holds not
    "compiled = o.Core().import_model(blob, 'CPU'); compiled(feed)\n"
)
_FILE = _FEED + "import nnadapter as nna; nna.InferenceSession(path + '.{}').run(None, feed)\n"
_CACHED = (
    _FEED + "import tempfile, nnadapter as nna; folder = tempfile.TemporaryDirectory(); kept = {}\n"
    "nna.InferenceSession(path, devices={!r}, options={{'cache_dir': kept}}).run(None, feed)\n"
)
_OPENVINO = "{'PERFORMANCE_HINT': 'LATENCY', 'INFERENCE_PRECISION_HINT': 'f32'}"
WAYS = {
    "ONNX Runtime": _FEED + "import onnxruntime as o; o.InferenceSession(path).run(None, feed)\n",
    "cpu": _OURS.format("cpu"),
    "OpenVINO": _FEED + f"import openvino as o; o.Core().compile_model(path, 'CPU', {_OPENVINO})(feed)\n",
    "openvino": _OURS.format("openvino"),
    "fake_npu": _OURS.format("fake_npu"),
    "fake_npu file": _FILE.format("fake_npu"),
    "openvino file": _FILE.format("openvino"),
    "OpenVINO blob": _BLOB,
    "openvino first": _CACHED.format("folder.name", "openvino"),
    "openvino second": _CACHED.format("path + '.cache'", "openvino"),
    "qnn first": _CACHED.format("folder.name", "qnn"),
    "qnn second": _CACHED.format("path + '.cache'", "qnn"),
    "report fake_npu": _REPORT.format("fake_npu"),
    "report openvino": _REPORT.format("openvino"),
}
"""What each process runs."""
_WRITING = (
    "import nnadapter as nna; shapes = {{name: array.shape for name, array in feed.items()}}\n"
    "nna.compile(path, path + '.{}', devices={!r}, input_shapes=shapes)\n"
)
WRITERS = {
    "fake_npu file": ("fake_npu", _FEED + _WRITING.format("fake_npu", "fake_npu")),
    "openvino file": ("openvino", _FEED + _WRITING.format("openvino", "openvino")),
    "OpenVINO blob": (
        "blob",
        _FEED + f"import openvino as o; compiled = o.Core().compile_model(path, 'CPU', {_OPENVINO})\n"
        "open(path + '.blob', 'wb').write(compiled.export_model().getvalue())\n",
    ),
}
"""For ways that read a file made from the model: what that is called behind the model's name, and what writes it."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=[name for name in MODELS if name != "largest"])
    has_qnn = find_spec("onnxruntime_qnn") is not None
    parser.add_argument(
        "--ways", nargs="+", choices=WAYS, default=[way for way in WAYS if has_qnn or not way.startswith("qnn")]
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        for name in arguments.models:
            paths = tuple(map(str, written(name, folder)))
            compile_for(arguments.ways, paths)
            results = measured({way: WAYS[way] for way in arguments.ways}, paths, arguments.rounds)
            rows = [(way, f"{seconds:.3f}", f"{megabytes:.0f}") for way, (seconds, megabytes) in results.items()]
            print(f"\n{name}\n\n{table(('way', 'seconds', 'MB'), rows)}", flush=True)


def compile_for(ways: Iterable[str], paths: tuple[str, ...]) -> None:
    """Write what ways read in place of the model, where it is not there."""
    for suffix, code in (WRITERS[way] for way in ways if way in WRITERS):
        if not Path(f"{paths[0]}.{suffix}").exists():
            subprocess.run([sys.executable, "-W", "ignore", "-c", code, *paths], check=True, cwd=_ROOT)


def measured(ways: Mapping[str, str], arguments: tuple[str, ...], rounds: int) -> Mapping[str, tuple[float, float]]:
    """Return the median seconds and peak megabytes of every way, after a round that does not count."""
    with tempfile.TemporaryDirectory() as bytecode:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        return _medians(ways, arguments, rounds, {**environment, "PYTHONPYCACHEPREFIX": bytecode})


def _medians(
    ways: Mapping[str, str], arguments: tuple[str, ...], rounds: int, environment: Mapping[str, str]
) -> Mapping[str, tuple[float, float]]:
    taken: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    chance, order = random.Random(0), list(ways)
    for number in range(rounds + 1):
        chance.shuffle(order)
        for way in order:
            result = start(ways[way], arguments, environment)
            if number:
                taken[way].append(result)
    medians = {way: tuple(map(statistics.median, zip(*results, strict=True))) for way, results in taken.items()}
    return {way: (seconds, megabytes) for way, (seconds, megabytes) in medians.items()}


def start(code: str, arguments: tuple[str, ...], environment: Mapping[str, str]) -> tuple[float, float]:
    """Run code in a process of its own: seconds until it has its result, and the megabytes that it had at most."""
    began = time.perf_counter()
    command = [sys.executable, "-W", "ignore", "-c", code + _END, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=_ROOT, env=environment) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        seconds = time.perf_counter() - began
    return seconds, int(line) / 1024


if __name__ == "__main__":
    main()
