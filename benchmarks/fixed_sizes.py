"""What a shape that nobody has seen costs on devices that compile for fixed sizes: our work, and the driver's.

    python benchmarks/fixed_sizes.py [--lengths 100] [--rounds 3]

Two models: a decoder of the form of GPT-2 whose cache grows by one at each step, and an encoder of the form of BERT at
so many lengths in random order. Two devices that compile for fixed sizes: `fixed`, in Python, which takes all of a
model and computes zeros, and `acme_fixed`, the example in C, which takes seven operations; and `acme_open`, the same
as it leaves sizes open. A run at a new shape is compared with the next one at the same shape: what is more is our work
and the driver's. The driver's is what more its own functions took: to judge and to compile, and in C, where
`fixed_sizes_watch.c` stands in front of it, to compute, which takes longer where memory of other sizes is touched
first. Last,
tokens per second of the decoder, every length new to its session, beside ONNX Runtime.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

sys.path.insert(0, str(Path(__file__).parents[1]))

import nnadapter as nna
from benchmarks.decode import decode
from benchmarks.models.encoders import encoder_model
from benchmarks.models.language_models import Sizes, language_model
from benchmarks.timing import interleaved, table
from nnadapter.drivers import Capability, Context, Device, Driver, OpenSizes, Program, Verdict
from nnadapter.drivers.null import NullContext, NullDevice
from nnadapter.ir import Model

ACME = Path(__file__).parents[1] / "examples" / "drivers" / "acme_c" / "csrc"
WATCHING = Path(__file__).parent / "fixed_sizes_watch.c"
QUIET = nna.Options(fallback="allow", max_plans=256)
WARM = 5
"""Shapes that do not count: the first plan, and what a class costs once."""
Feed = Mapping[str, np.ndarray[Any, Any]]


@dataclass(eq=False)
class Watch:
    """Seconds that a driver's own functions took."""

    seconds: float = 0.0


WATCH = Watch()


class CWatch:
    """Seconds that the functions of a driver in C took."""

    def __init__(self, library: Path) -> None:
        self._seconds = ctypes.CDLL(str(library)).watched_seconds
        self._seconds.restype = ctypes.c_double

    @property
    def seconds(self) -> float:
        """Of all its functions that judge, compile or compute, until now."""
        return float(self._seconds())


class FixedContext(NullContext):
    """Watches what is asked of it."""

    def supported(self, model: Model) -> Sequence[Verdict]:
        """See `Context.supported`."""
        return _watched(lambda: super(FixedContext, self).supported(model))

    def compile(self, model: Model) -> Program:
        """See `Context.compile`."""
        return _watched(lambda: super(FixedContext, self).compile(model))


class FixedDevice(NullDevice):
    """Compiles for fixed sizes."""

    @property
    def capability(self) -> Capability:
        """See `Device.capability`."""
        return replace(super().capability, open_sizes=OpenSizes.NONE)

    def create_context(self, options: Mapping[str, Any]) -> Context:
        """See `Device.create_context`."""
        return FixedContext()


class FixedDriver(Driver):
    """Offers one device."""

    def open(self, device_id: str) -> Device:
        """See `Driver.open`."""
        return FixedDevice()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.lengths <= WARM:
        parser.error(f"--lengths is {arguments.lengths}, expected more than {WARM}, which do not count")
    folder = Path(tempfile.mkdtemp())
    install(folder)
    sizes = Sizes()
    decoder, encoder = language_model(sizes), encoder_model()
    rows = []
    for name, model, feeds in (
        ("decoder", decoder, lambda run: decode(run, sizes, arguments.lengths)),
        ("encoder", encoder, lambda run: encode(run, arguments.lengths)),
    ):
        for device in ("fixed", "acme_fixed", "acme_open"):
            watch = _watch() if device == "fixed" else CWatch(folder / f"nnadapter_{device}.so")
            rows.append([name, device, *map(str, new_shapes(model, device, feeds, watch))])
    print(
        table(
            ["model", "device", "shapes", "new ms", "again ms", "driver ms", "our work ms", "segments", "plans"], rows
        )
    )
    print()
    print(
        table(
            ["device", "tokens/s", "times ONNX Runtime"],
            list(tokens(decoder, sizes, arguments.lengths, arguments.rounds)),
        )
    )


def new_shapes(
    model: onnx.ModelProto, device: str, feeds: Callable[[Any], object], watch: Watch | CWatch
) -> Iterator[object]:
    """The cells of a row: medians over the shapes that `feeds` feeds."""
    new, again, driver = list[float](), list[float](), list[float]()
    with nna.InferenceSession(model, devices=device, options=QUIET) as session:

        def twice(feed: Feed) -> Sequence[Any]:
            before = watch.seconds
            new.append(seconds(lambda: session.run(None, dict(feed))))
            between = watch.seconds
            again.append(seconds(lambda: session.run(None, dict(feed))))
            driver.append((between - before) - (watch.seconds - between))
            return session.run(None, dict(feed))

        feeds(twice)
        report = session.report()
    columns = [each[WARM:] for each in (new, again, driver)]
    ours = [more - less - own for more, less, own in zip(*columns, strict=True)]
    yield len(ours)
    yield from (f"{statistics.median(column) * 1e3:.2f}" for column in (*columns, ours))
    yield len(report.segments)
    yield report.plans.made if report.plans else 0


def tokens(model: onnx.ModelProto, sizes: Sizes, steps: int, rounds: int) -> Iterator[Sequence[str]]:
    """Rows: every round decodes from an empty cache with a new session, so that every length is new."""

    def fresh(device: str) -> Callable[[], object]:
        def work() -> None:
            with nna.InferenceSession(model, devices=device, options=QUIET) as session:
                decode(lambda feed: session.run(None, dict(feed)), sizes, WARM)
                taken[device].append(seconds(lambda: decode(lambda feed: session.run(None, dict(feed)), sizes, steps)))

        return work

    alone = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    taken: dict[str, list[float]] = {"ONNX Runtime": [], "fixed": [], "acme_fixed": [], "acme_open": []}

    def theirs() -> None:
        taken["ONNX Runtime"].append(seconds(lambda: decode(lambda feed: alone.run(None, dict(feed)), sizes, steps)))

    interleaved({name: theirs if name == "ONNX Runtime" else fresh(name) for name in taken}, rounds, pause=0.2)
    medians = {name: statistics.median(each[1:]) for name, each in taken.items()}
    for name, median in medians.items():
        yield name, f"{steps / median:.0f}", f"{medians['ONNX Runtime'] / median:.2f}"


def encode(run: Callable[[Feed], object], lengths: int) -> None:
    """Run texts of so many lengths, in random order."""
    order = list(range(8, 8 + lengths))
    random.Random(0).shuffle(order)
    for length in order:
        run({"ids": np.zeros((1, length), np.int64), "mask": np.ones((1, length), np.int64)})


def install(folder: Path) -> None:
    """Let `fixed`, `acme_fixed` and `acme_open` be devices of this process."""
    information = folder / "fixed-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: fixed\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[nnadapter.drivers]\nfixed = benchmarks.fixed_sizes:FixedDriver\n")
    sys.path.insert(0, str(folder))
    os.environ["NNADAPTER_DRIVER_PATH"] = str(folder)
    for name, can in (("acme_fixed", "NONE"), ("acme_open", "ANY")):
        flags = ("-std=c11", "-O2", "-pthread", "-shared", "-fPIC", "-Dnnadapter_driver=watched_driver")
        flags = (*flags, "-D_POSIX_C_SOURCE=200809L")
        sources = [*sorted(ACME.glob("*.c")), WATCHING]
        library = folder / f"nnadapter_{name}.so"
        command = ["cc", *flags, f"-DACME_OPEN_SIZES=NNADAPTER_SIZES_{can}", f"-I{nna.get_include()}"]
        subprocess.run([*command, *map(str, sources), "-lm", "-o", str(library)], check=True)


def seconds(work: Callable[[], object]) -> float:
    """How long it takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _watched(work: Callable[[], Any]) -> Any:
    started = time.perf_counter()
    try:
        return work()
    finally:
        WATCH.seconds += time.perf_counter() - started


def _watch() -> Watch:
    """The watch of the module that the entry point names, which is not this one where this is the script."""
    from benchmarks import fixed_sizes

    return fixed_sizes.WATCH


if __name__ == "__main__":
    main()
