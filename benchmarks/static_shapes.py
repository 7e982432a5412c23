"""Cost of a new shape on devices that compile for static shapes: our work, and the driver's.

Two models: a decoder like GPT-2 with a growing cache, and an encoder like BERT at many lengths in random
order. Three devices: `fixed`, in Python, which takes all operations and computes zeros; `acme_fixed`, the example in C
compiled for static shapes, which takes seven operations; and `acme_open`, the same with dynamic shapes. A run at a new
shape is compared with the next one at that shape. The difference is our work and the driver's. The driver's part is how
much longer its own functions take: to judge and to compile, and in C also to compute, which takes longer in memory that
is touched for the first time. `static_shapes_watch.c` measures the functions in C.

The last table has the tokens per second of the decoder compared with ONNX Runtime; every length is new to its session.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

import nnadapter as nna
from benchmarks.decode import decode
from benchmarks.harness import ROOT, Results, Table, UsageError, interleaved, seconds_of
from benchmarks.models.encoders import encoder_model
from benchmarks.models.language_models import Sizes, language_model
from nnadapter.drivers import Capability, Context, Device, Driver, DynamicShapes, Program, Verdict
from nnadapter.drivers.null import NullContext, NullDevice
from nnadapter.ir import Model

_ACME = ROOT / "examples" / "drivers" / "acme_c" / "csrc"
_WATCH_SOURCE = Path(__file__).with_name("static_shapes_watch.c")
_OPTIONS = nna.Options(fallback="allow", max_plans=256)
_WARM = 5
"""Shapes that do not count: the first plan, and what is compiled once for many shapes."""
Feed = Mapping[str, np.ndarray[Any, Any]]


@dataclass(eq=False)
class Watch:
    """Seconds of a driver's own functions."""

    seconds: float = 0.0


WATCH = Watch()


class CWatch:
    """Seconds of the functions of a driver in C."""

    def __init__(self, library: Path) -> None:
        self._seconds = ctypes.CDLL(str(library)).watched_seconds
        self._seconds.restype = ctypes.c_double

    @property
    def seconds(self) -> float:
        """Seconds of judging, compiling and computing until now."""
        return float(self._seconds())


class FixedContext(NullContext):
    """A context that measures judging and compiling."""

    def supported(self, model: Model) -> Sequence[Verdict]:
        """Judge every operation, measured."""
        return _watched(lambda: super(FixedContext, self).supported(model))

    def compile(self, model: Model) -> Program:
        """Compile a segment, measured."""
        return _watched(lambda: super(FixedContext, self).compile(model))


class FixedDevice(NullDevice):
    """A device that compiles for static shapes."""

    @property
    def capability(self) -> Capability:
        """The capability without dynamic shapes."""
        return replace(super().capability, dynamic_shapes=DynamicShapes.NONE)

    def create_context(self, options: Mapping[str, Any]) -> Context:
        """Return a context that is measured."""
        return FixedContext()


class FixedDriver(Driver):
    """A driver with one device."""

    def open(self, device_id: str) -> Device:
        """Open the device."""
        return FixedDevice()


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--lengths", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)


def run(options: argparse.Namespace, results: Results) -> None:
    """Measure new shapes on every device, then tokens per second."""
    if options.lengths <= _WARM:
        raise UsageError(f"--lengths is {options.lengths}, expected more than {_WARM}, which do not count")
    folder = Path(tempfile.mkdtemp())
    install(folder)
    sizes = Sizes()
    decoder, encoder = language_model(sizes), encoder_model()
    table = results.table()
    for name, model, feeds in (
        ("decoder", decoder, lambda call: decode(call, sizes, options.lengths)),
        ("encoder", encoder, lambda call: _encode(call, options.lengths)),
    ):
        for device in ("fixed", "acme_fixed", "acme_open"):
            watch = WATCH if device == "fixed" else CWatch(folder / f"nnadapter_{device}.so")
            table.add({"model": name, "device": device, **_new_shapes(model, device, feeds, watch)})
    _measure_tokens(decoder, sizes, options, results.table())


def _new_shapes(
    model: onnx.ModelProto, device: str, feeds: Callable[[Any], object], watch: Watch | CWatch
) -> dict[str, Any]:
    """Return medians over the shapes that `feeds` feeds."""
    first_times, repeat_times, driver = list[float](), list[float](), list[float]()
    with nna.InferenceSession(model, devices=device, options=_OPTIONS) as session:

        def twice(feed: Feed) -> Sequence[Any]:
            initial_seconds = watch.seconds
            first_times.append(seconds_of(lambda: session.run(None, dict(feed))))
            between = watch.seconds
            repeat_times.append(seconds_of(lambda: session.run(None, dict(feed))))
            driver.append((between - initial_seconds) - (watch.seconds - between))
            return session.run(None, dict(feed))

        feeds(twice)
        report = session.report()
    columns = [durations[_WARM:] for durations in (first_times, repeat_times, driver)]
    ours = [more - less - inside for more, less, inside in zip(*columns, strict=True)]
    medians = [1e3 * statistics.median(column) for column in (*columns, ours)]
    return {
        "shapes": len(ours),
        **dict(zip(("new ms", "again ms", "driver ms", "our work ms"), medians, strict=True)),
        "segments": len(report.segments),
        "plans": report.plans.compiled if report.plans else 0,
    }


def _measure_tokens(model: onnx.ModelProto, sizes: Sizes, options: argparse.Namespace, table: Table) -> None:
    """Decode from an empty cache with a new session in every round, so that every length is new."""
    steps = options.lengths

    def fresh(device: str) -> Callable[[], object]:
        def work() -> None:
            with nna.InferenceSession(model, devices=device, options=_OPTIONS) as session:
                decode(lambda feed: session.run(None, dict(feed)), sizes, _WARM)
                durations[device].append(
                    seconds_of(lambda: decode(lambda feed: session.run(None, dict(feed)), sizes, steps))
                )

        return work

    ort_session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    durations: dict[str, list[float]] = {"ONNX Runtime": [], "fixed": [], "acme_fixed": [], "acme_open": []}

    def peer() -> None:
        durations["ONNX Runtime"].append(
            seconds_of(lambda: decode(lambda feed: ort_session.run(None, dict(feed)), sizes, steps))
        )

    candidates = {name: peer if name == "ONNX Runtime" else fresh(name) for name in durations}
    interleaved(candidates, options.rounds, pause=0.2)
    medians = {name: statistics.median(seconds[1:]) for name, seconds in durations.items()}
    for name, median in medians.items():
        ratio = medians["ONNX Runtime"] / median
        table.add({"device": name, "tokens/s": steps / median, "times ONNX Runtime": ratio})


def _encode(call: Callable[[Feed], object], lengths: int) -> None:
    """Run texts of so many lengths, in random order."""
    order = list(range(8, 8 + lengths))
    random.Random(0).shuffle(order)
    for length in order:
        call({"ids": np.zeros((1, length), np.int64), "mask": np.ones((1, length), np.int64)})


def install(folder: Path) -> None:
    """Make `fixed`, `acme_fixed` and `acme_open` devices of this process."""
    information = folder / "fixed-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: fixed\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[nnadapter.drivers]\nfixed = benchmarks.static_shapes:FixedDriver\n")
    sys.path.insert(0, str(folder))
    os.environ["NNADAPTER_DRIVER_PATH"] = str(folder)
    for name, can in (("acme_fixed", "STATIC"), ("acme_open", "DYNAMIC")):
        flags = ("-std=c11", "-O2", "-pthread", "-shared", "-fPIC", "-Dnnadapter_driver=watched_driver")
        flags = (*flags, "-D_POSIX_C_SOURCE=200809L")
        sources = [*sorted(_ACME.glob("*.c")), _WATCH_SOURCE]
        library = folder / f"nnadapter_{name}.so"
        command = ["cc", *flags, f"-DACME_OPEN_SIZES=NNADAPTER_SHAPES_{can}", f"-I{nna.get_include()}"]
        subprocess.run([*command, *map(str, sources), "-lm", "-o", str(library)], check=True)


def _watched(work: Callable[[], Any]) -> Any:
    started = time.perf_counter()
    try:
        return work()
    finally:
        WATCH.seconds += time.perf_counter() - started
