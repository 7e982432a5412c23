"""Devices in processes of their own: what that costs a run, and what is left when processes die.

    python benchmarks/isolated.py speed                    # isolated beside in process, by turns
    python benchmarks/isolated.py losses --count 1000      # kills, hangs and want of memory, in any phase
    python benchmarks/isolated.py parent                   # how long a process outlives the one that started it
    python benchmarks/isolated.py threads --count 20000    # 8 threads on one device, shapes that change
    python benchmarks/isolated.py sessions --count 1000    # sessions made and dropped

Results are held to ONNX Runtime's.
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

sys.path.insert(0, str(Path(__file__).parent.parent))
import nnadapter as nna
from benchmarks.fault_matrix import forget_process
from benchmarks.timing import table
from nnadapter.drivers import isolated, registry
from nnadapter.drivers.isolation.child import Child
from nnadapter.running import resting
from tests.c_compiler import acme_among_devices

DEVICES = ("fake_npu", "acme_c", "openvino", "qnn")
HELD = """<ir_version: 8, opset_import: ["": 17]>
g (float[N, 64] x) => (float[N, 64] y) { a = Relu(x) b = Mul(a, a) y = Add(b, x) }"""
CHAIN = """<ir_version: 8, opset_import: ["": 17]>
g (float[N, 64] x) => (float[N, 64] y) { a = Relu(x) b = Sigmoid(a) c = Add(a, b) d = Tanh(c) y = Mul(c, d) }"""
TOLERANCES = dict.fromkeys(DEVICES, 1e-4) | {"qnn": 2e-2}
"""How far a result may be off, which is at most 5 here; qnn computes in half precision."""


def model(text: str) -> bytes:
    """A model as bytes."""
    return onnx.parser.parse_model(text).SerializeToString()


def feed(elements: int, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """An input of so many elements."""
    return {"x": np.random.default_rng(seed).standard_normal((elements // 64, 64)).astype(np.float32)}


def right(text: str, fed: dict[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """What ONNX Runtime makes of it."""
    with nna.InferenceSession(model(text), devices="cpu") as session:
        return session.run(None, fed)[0]  # type: ignore[no-any-return]


@contextmanager
def opened(text: str, device: str, **options: Any) -> Iterator[nna.InferenceSession]:
    """A session on a device."""
    named = (device, options.pop("device_options", {}))
    with nna.InferenceSession(model(text), devices=named, options=nna.Options(fallback="allow", **options)) as session:
        yield session


def speed(count: int) -> None:
    """Medians of a step, in process and isolated by turns, and the difference."""
    rows = []
    with tempfile.TemporaryDirectory() as folder, acme_among_devices(Path(folder)):
        for device in ("fake_npu", "acme_c"):
            for kilobytes in (64, 1024, 16384):
                rows.append(_compared(device, kilobytes, max(20, count // kilobytes)))
    print(table(["device", "tensor", "in process", "isolated", "more", "a copy in and out"], rows))


def _compared(device: str, kilobytes: int, count: int) -> list[str]:
    fed = feed(kilobytes * 256)
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[N, 64] x) => (float[N, 64] y) { y = Relu(x) }'
    copied = np.empty_like(fed["x"])
    with opened(text, device, isolate=False) as here, opened(text, device, isolate=True) as there:
        for session in (here, there):
            for _ in range(3):
                np.testing.assert_array_equal(session.run(None, fed)[0], np.maximum(fed["x"], 0))
            assert session.provenance is not None and session.provenance.steps[0].device == device
        taken = _by_turns(
            [lambda: here.run(None, fed), lambda: there.run(None, fed), lambda: _copy_twice(copied, fed["x"])], count
        )
    one, other, copies = (statistics.median(each) * 1e6 for each in taken)
    return [device, f"{kilobytes} KiB", f"{one:.0f} us", f"{other:.0f} us", f"{other - one:.0f} us", f"{copies:.0f} us"]


def _copy_twice(target: np.ndarray[Any, Any], source: np.ndarray[Any, Any]) -> None:
    np.copyto(target, source)
    source.copy()


def _by_turns(calls: list[Callable[[], object]], count: int) -> list[list[float]]:
    taken: list[list[float]] = [[] for _ in calls]
    for _ in range(count):
        for call, seconds in zip(calls, taken, strict=True):
            began = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - began)
    return taken


def losses(count: int) -> None:
    """Faults in any phase, until an interrupt: right results, how late hangs were noticed, what is left."""
    chance, made, wrong = random.Random(0), Counter[str](), 0
    isolated._FREE_LOSSES = count  # sessions come one after the other, each with a device that works at first
    resting.FIRST_PAUSE = 0.0
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
                made[f"{kind} in {phase}" if came else f"none in {phase} of {device}"] += 1
                wrong += not good
                log.unlink(missing_ok=True)
        count, passed = sum(made.values()), time.monotonic() - began
    for device in list(registry._isolated.values()):
        device.close()
    print(table(["fault", "times"], [[what, str(number)] for what, number in sorted(made.items())]))
    print(
        f"{count - wrong} of {count} results are right, in {passed:.0f} s; {_children()} children left; "
        f"blocks of shared memory with a name: {_named_blocks()}; {len(late)} hangs were noticed "
        f"{max(late, default=0) * 1e3:.0f} ms late at most, {statistics.median(late or [0]) * 1e3:.0f} ms as a rule"
    )


_PHASES = ("open", "context", "judge", "admit", "compile", "create", "run")
_LIMIT_S, _OPENING_S = 0.5, 5.0
_ROWS = {
    "segmentation fault": 'kind = "crash"\nsignal = "SIGSEGV"\n',
    "kill": 'kind = "crash"\nsignal = "SIGKILL"\n',
    "hang": 'kind = "hang"\n',
    "out of memory": 'kind = "out_of_memory"\n',
}


def _lost(device: str, kind: str, phase: str, log: Path, fed: Any, expected: Any) -> bool:
    """Whether the result is right all the same."""
    script = f'log = "{log}"\n[[fault]]\n{_ROWS[kind]}phase = "{phase}"\nnth = 1\n'
    limits = dict.fromkeys(_PHASES, _LIMIT_S) | {"compile": 2 * _LIMIT_S, "open": _OPENING_S}
    named: dict[str, Any] = {"isolate": limits if kind == "hang" else True}
    if phase == "open":  # which comes before a device is told its options
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
    """By how many seconds each question that hung was given up after its limit."""
    late: list[float] = []
    converse = Child.converse

    def timed(self: Child, what: str, limit_s: float, talk: Any) -> Any:
        began = time.monotonic()
        try:
            return converse(self, what, limit_s, talk)
        except nna.errors.DeviceTimeoutError:
            late.append(time.monotonic() - began - limit_s)
            raise

    Child.converse = timed  # type: ignore[method-assign]
    try:
        yield late
    finally:
        Child.converse = converse  # type: ignore[method-assign]


def _children() -> int:
    """Processes that any thread of this one started, and that are still there."""
    return sum(len(each.read_text().split()) for each in Path("/proc/self/task").glob("*/children"))


def _named_blocks() -> int:
    return sum(each.name.startswith("nnadapter") for each in Path("/dev/shm").iterdir())


_IN_RUN = """
import sys; sys.path.insert(0, {root!r})
from benchmarks.isolated import CHAIN, feed, opened
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


def parent(_: int) -> None:
    """How long a process lives when the one that started it is killed while something is under way."""
    rows = []
    for phase in ("compile", "run"):
        text = _IN_RUN.format(root=str(Path(__file__).parent.parent), phase=phase)
        host = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
        assert host.stdout is not None
        process = int(host.stdout.readline())
        began = time.monotonic()
        host.kill()
        while _is_there(process):
            time.sleep(0.001)
        rows.append([phase, f"{(time.monotonic() - began) * 1e3:.0f} ms"])
        host.wait()
        host.stdout.close()
    print(table(["killed while in", "process gone after"], rows))


def _is_there(process: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def threads(count: int) -> None:
    """8 threads on one isolated device, whose shapes change."""
    sizes = [64 * rows for rows in (1, 5, 16, 64, 300)]
    feeds = [feed(size, size) for size in sizes]
    expected = [right(HELD, each) for each in feeds]
    wrong: list[int] = []
    with opened(HELD, "fake_npu", isolate=True) as session:
        for each in feeds:
            session.run(None, each)
        device = registry.open_isolated("fake_npu")
        before = device.footprint()
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
        passed, after = time.monotonic() - began, device.footprint()
    grown = (after.resident_bytes - before.resident_bytes) / 2**20
    print(
        f"{count // 8 * 8 - len(wrong)} of {count // 8 * 8} runs of 8 threads are right, in {passed:.0f} s; "
        f"its process grew by {grown:.1f} MiB and {after.handles - before.handles} handles"
    )


def sessions(count: int) -> None:
    """Sessions made and dropped: handles, children and memory before and after."""
    fed = feed(640)

    def one() -> None:
        session = nna.InferenceSession(model(HELD), devices="fake_npu", options=nna.Options(isolate=True))
        session.run(None, fed)

    for _ in range(20):
        one()
    gc.collect()
    before = _held()
    for _ in range(count):
        one()
    gc.collect()
    time.sleep(3)
    after = _held()
    print(
        f"{count} sessions made and dropped: {after[0] - before[0]} handles, {after[1]} children, "
        f"{(after[2] - before[2]) / 2**20:.1f} MiB more"
    )


def _held() -> tuple[int, int, int]:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return len(list(Path("/proc/self/fd").iterdir())), _children(), pages * os.sysconf("SC_PAGE_SIZE")


_PROGRAMS: dict[str, tuple[Callable[[int], None], int]] = {
    "speed": (speed, 100_000),
    "losses": (losses, 1000),
    "parent": (parent, 1),
    "threads": (threads, 20_000),
    "sessions": (sessions, 1000),
}


def main() -> None:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", choices=sorted(_PROGRAMS))
    parser.add_argument("--count", type=int)
    given = parser.parse_args()
    program, usual = _PROGRAMS[given.program]
    program(given.count or usual)


if __name__ == "__main__":
    main()
