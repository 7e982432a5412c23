"""Devices in processes of their own: the cost of a run, and what remains after processes die.

    speed      isolated and in process, in turns
    losses     kills, hangs and out of memory in any phase
    parent     how long a process outlives the one that started it
    threads    8 threads on one device, with changing shapes
    sessions   sessions created and dropped

Results are compared with ONNX Runtime's.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser

import nnadapter as nna
from benchmarks.fault_matrix import forget_process
from benchmarks.harness import ROOT, Results, seconds_of
from nnadapter.drivers import registry
from nnadapter.drivers.isolation import Child, isolated_device
from nnadapter.engine import plan_devices
from tests.c_compiler import acme_among_devices

DEVICES = ("fake_npu", "acme_c", "openvino", "qnn")
HELD = """<ir_version: 8, opset_import: ["": 17]>
g (float[N, 64] x) => (float[N, 64] y) { a = Relu(x) b = Mul(a, a) y = Add(b, x) }"""
CHAIN = """<ir_version: 8, opset_import: ["": 17]>
g (float[N, 64] x) => (float[N, 64] y) { a = Relu(x) b = Sigmoid(a) c = Add(a, b) d = Tanh(c) y = Mul(c, d) }"""
TOLERANCES = dict.fromkeys(DEVICES, 1e-4) | {"qnn": 2e-2}
"""Absolute tolerances of results up to 5; qnn computes in half precision."""


def model(text: str) -> bytes:
    """Return a model as bytes."""
    return onnx.parser.parse_model(text).SerializeToString()


def feed(elements: int, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """Return an input of so many elements."""
    return {"x": np.random.default_rng(seed).standard_normal((elements // 64, 64)).astype(np.float32)}


def right(text: str, fed: dict[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Return the result of ONNX Runtime."""
    with nna.InferenceSession(model(text), devices="cpu") as session:
        return session.run(None, fed)[0]  # type: ignore[no-any-return]


@contextmanager
def opened(text: str, device: str, **options: Any) -> Iterator[nna.InferenceSession]:
    """Open a session on a device."""
    named = (device, options.pop("device_options", {}))
    with nna.InferenceSession(model(text), devices=named, options=nna.Options(fallback="allow", **options)) as session:
        yield session


def _speed(count: int, results: Results) -> None:
    """Compare the medians of a step, in process and isolated in turns."""
    table = results.table()
    with tempfile.TemporaryDirectory() as folder, acme_among_devices(Path(folder)):
        for device in ("fake_npu", "acme_c"):
            for kilobytes in (64, 1024, 16384):
                table.add(_compare(device, kilobytes, max(20, count // kilobytes)))


def _compare(device: str, kilobytes: int, count: int) -> dict[str, Any]:
    fed = feed(kilobytes * 256)
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[N, 64] x) => (float[N, 64] y) { y = Relu(x) }'
    copied = np.empty_like(fed["x"])
    with opened(text, device, isolate=False) as local, opened(text, device, isolate=True) as isolated:
        for session in (local, isolated):
            for _ in range(3):
                np.testing.assert_array_equal(session.run(None, fed)[0], np.maximum(fed["x"], 0))
            assert session.provenance is not None and session.provenance.steps[0].device == device
        durations = _in_turns(
            [lambda: local.run(None, fed), lambda: isolated.run(None, fed), lambda: _copy_twice(copied, fed["x"])],
            count,
        )
    inside, outside, copies = (statistics.median(seconds) * 1e6 for seconds in durations)
    return {
        "device": device,
        "tensor KiB": kilobytes,
        "in process us": inside,
        "isolated us": outside,
        "more us": outside - inside,
        "a copy in and out us": copies,
    }


def _copy_twice(target: np.ndarray[Any, Any], source: np.ndarray[Any, Any]) -> None:
    np.copyto(target, source)
    source.copy()


def _in_turns(calls: list[Callable[[], object]], count: int) -> list[list[float]]:
    durations: list[list[float]] = [[] for _ in calls]
    for _ in range(count):
        for call, seconds in zip(calls, durations, strict=True):
            seconds.append(seconds_of(call))
    return durations


def _losses(count: int, results: Results) -> None:
    """Inject faults in any phase until the count or an interrupt, and count right results and what remains."""
    chance, fault_counts, wrong = random.Random(0), Counter[str](), 0
    isolated_device._FREE_LOSSES = count  # sessions follow each other, each with a device that works at first
    plan_devices.FIRST_PAUSE = 0.0
    fed = feed(640)
    expected = right(CHAIN, fed)
    with (
        tempfile.TemporaryDirectory() as folder,
        acme_among_devices(Path(folder)),
        warnings.catch_warnings(),
        _lateness() as late,
    ):
        warnings.simplefilter("ignore")
        log = Path(folder, "log")
        began = time.monotonic()
        with suppress(KeyboardInterrupt):
            for number in range(count):
                device, kind, phase = DEVICES[number % len(DEVICES)], chance.choice(list(_ROWS)), chance.choice(_PHASES)
                good = _lost(device, kind, phase, log, fed, expected)
                came = log.exists() and '"kind"' in log.read_text()
                fault_counts[f"{kind} in {phase}" if came else f"none in {phase} of {device}"] += 1
                wrong += not good
                log.unlink(missing_ok=True)
        count, passed = sum(fault_counts.values()), time.monotonic() - began
    for device in list(registry._isolated.values()):
        device.close()
    table = results.table()
    for name, times in sorted(fault_counts.items()):
        table.add({"fault": name, "times": times})
    results.table().add(
        {
            "results": count,
            "right": count - wrong,
            "s": passed,
            "children left": _children(),
            "named shared memory left": _named_blocks(),
            "hangs": len(late),
            "noticed late by ms, at most": 1e3 * max(late, default=0.0),
            "noticed late by ms, median": 1e3 * statistics.median(late or [0.0]),
        }
    )
    if wrong:
        results.fail(f"{wrong} results are wrong")


_PHASES = ("open", "context", "judge", "admit", "compile", "create", "run")
_LIMIT_S, _OPENING_S = 0.5, 5.0
_ROWS = {
    "segmentation fault": 'kind = "crash"\nsignal = "SIGSEGV"\n',
    "kill": 'kind = "crash"\nsignal = "SIGKILL"\n',
    "hang": 'kind = "hang"\n',
    "out of memory": 'kind = "out_of_memory"\n',
}


def _lost(device: str, kind: str, phase: str, log: Path, fed: Any, expected: Any) -> bool:
    """Return whether the result is right despite a fault."""
    script = f'log = "{log}"\n[[fault]]\n{_ROWS[kind]}phase = "{phase}"\nnth = 1\n'
    limits = dict.fromkeys(_PHASES, _LIMIT_S) | {"compile": 2 * _LIMIT_S, "open": _OPENING_S}
    named: dict[str, Any] = {"isolate": limits if kind == "hang" else True}
    if phase == "open":  # before a device gets its options
        forget_process(device)
        os.environ["NNADAPTER_FAULTS"] = script
    else:
        named["script"] = script
    try:
        with opened(CHAIN, f"faulty:{device}", device_options=named) as session:
            (result,) = session.run(None, fed)
            return bool(np.allclose(result, expected, rtol=0, atol=TOLERANCES[device]))
    except nna.errors.NNAdapterError as error:
        print(f"{device}, {kind} in {phase}: {type(error).__name__}: {error}", file=sys.stderr)
        return False
    finally:
        os.environ.pop("NNADAPTER_FAULTS", None)


@contextmanager
def _lateness() -> Iterator[list[float]]:
    """Record how many seconds after its limit each call that hung is abandoned."""
    late: list[float] = []
    converse = Child.converse

    def timed(self: Child, call_name: str, limit_s: float, talk: Any) -> Any:
        began = time.monotonic()
        try:
            return converse(self, call_name, limit_s, talk)
        except nna.errors.DeviceTimeoutError:
            late.append(time.monotonic() - began - limit_s)
            raise

    Child.converse = timed  # type: ignore[method-assign]
    try:
        yield late
    finally:
        Child.converse = converse  # type: ignore[method-assign]


def _children() -> int:
    """Return how many processes that threads of this one started still exist."""
    return sum(len(path.read_text().split()) for path in Path("/proc/self/task").glob("*/children"))


def _named_blocks() -> int:
    return sum(path.name.startswith("nnadapter") for path in Path("/dev/shm").iterdir())


_IN_RUN = """
import sys; sys.path.insert(0, {root!r})
from benchmarks.isolation import CHAIN, feed, opened
from nnadapter.drivers import registry
import threading, time
script = '[[fault]]\\nkind = "hang"\\nphase = "{phase}"\\n'
def work():
    with opened(CHAIN, "faulty:fake_npu", isolate=True, device_options={{"script": script}}) as session:
        session.run(None, feed(640))
threading.Thread(target=work, daemon=True).start()
while "faulty:fake_npu" not in registry._isolated: time.sleep(0.01)
time.sleep(2)
print(registry._isolated["faulty:fake_npu"].process_id, flush=True)
time.sleep(600)
"""


def _parent(_: int, results: Results) -> None:
    """Measure how long a process lives after its parent is killed in the middle of a phase."""
    table = results.table()
    for phase in ("compile", "run"):
        text = _IN_RUN.format(root=str(ROOT), phase=phase)
        host = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
        assert host.stdout is not None
        process = int(host.stdout.readline())
        began = time.monotonic()
        host.kill()
        while _is_there(process):
            time.sleep(0.001)
        table.add({"killed while in": phase, "process gone after ms": (time.monotonic() - began) * 1e3})
        host.wait()
        host.stdout.close()


def _is_there(process: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def _threads(count: int, results: Results) -> None:
    """Run 8 threads on one isolated device with changing shapes."""
    sizes = [64 * rows for rows in (1, 5, 16, 64, 300)]
    feeds = [feed(size, size) for size in sizes]
    expected = [right(HELD, feed_value) for feed_value in feeds]
    wrong: list[int] = []
    with opened(HELD, "fake_npu", isolate=True) as session:
        for feed_value in feeds:
            session.run(None, feed_value)
        device = registry.open_isolated("fake_npu")
        initial_footprint = device.footprint()
        began = time.monotonic()

        def work(seed: int) -> None:
            chance = random.Random(seed)
            for _ in range(count // 8):
                which = chance.randrange(len(sizes))
                (result,) = session.run(None, feeds[which])
                if not np.allclose(result, expected[which], atol=1e-5):
                    wrong.append(which)

        workers = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        passed, final_footprint = time.monotonic() - began, device.footprint()
    runs = count // 8 * 8
    results.table().add(
        {
            "runs": runs,
            "right": runs - len(wrong),
            "s": passed,
            "its process grew by MiB": (final_footprint.resident_bytes - initial_footprint.resident_bytes) / 2**20,
            "its handles grew by": final_footprint.handles - initial_footprint.handles,
        }
    )
    if wrong:
        results.fail(f"{len(wrong)} results are wrong")


def _sessions(count: int, results: Results) -> None:
    """Create and drop sessions, and compare handles, children and memory before and after."""
    fed = feed(640)

    def run_session() -> None:
        session = nna.InferenceSession(model(HELD), devices="fake_npu", options=nna.Options(isolate=True))
        session.run(None, fed)

    for _ in range(20):
        run_session()
    gc.collect()
    initial = _held()
    for _ in range(count):
        run_session()
    gc.collect()
    time.sleep(3)
    final = _held()
    results.table().add(
        {
            "sessions created and dropped": count,
            "handles more": final[0] - initial[0],
            "children left": final[1],
            "MiB more": (final[2] - initial[2]) / 2**20,
        }
    )


def _held() -> tuple[int, int, int]:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return len(list(Path("/proc/self/fd").iterdir())), _children(), pages * os.sysconf("SC_PAGE_SIZE")


_PARTS: dict[str, tuple[Callable[[int, Results], None], int]] = {
    "speed": (_speed, 100_000),
    "losses": (_losses, 1000),
    "parent": (_parent, 1),
    "threads": (_threads, 20_000),
    "sessions": (_sessions, 1000),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("part", choices=_PARTS)
    parser.add_argument("--count", type=int)


def run(options: argparse.Namespace, results: Results) -> None:
    """Run one part."""
    part, count = _PARTS[options.part]
    part(options.count or count, results)
