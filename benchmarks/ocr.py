"""RapidOCR over pictures of many sizes, on a device through `nna.ort`, compared with ONNX Runtime itself.

Cold is the first pass of a new reader over all pictures. Nearly every picture has new shapes, and compiling plans is
counted. Warm are the passes after it. Both readers take turns at every picture, and ONNX Runtime's threads do not spin.
The pictures are the same each time.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import onnxruntime

import nnadapter as nna
from benchmarks.harness import ROOT, Results

sys.path.insert(0, str(ROOT / "examples" / "pictures"))

from make import DENSE, DIGITS, SKEWED, TURNED, Line, Page, draw_page

_LINES = [line.text for text in (DENSE, DIGITS, SKEWED, TURNED) for line in text]
Pass = list[dict[str, float]]
"""Seconds by reader, per picture."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--device", default="fake_npu")
    parser.add_argument("--pictures", type=int, default=20)
    parser.add_argument("--passes", type=int, default=3, help="warm ones")


def run(options: argparse.Namespace, results: Results) -> None:
    """Read all pictures in every pass."""
    pictures = _drawn(options.pictures)
    nna.ort.use(options.device)
    readers = {"ours": Reader(nna.ort), "theirs": Reader(onnxruntime)}
    texts: dict[str, list[Sequence[str]]] = {name: [] for name in readers}
    passes = [_one_pass(readers, pictures, texts) for _ in range(1 + options.passes)]
    table = results.table()
    for name, part in {"cold": passes[:1], "warm": passes[1:]}.items():
        table.add(_row(name, part, options.device))
    same = sum(ours == theirs for ours, theirs in zip(texts["ours"], texts["theirs"], strict=True))
    results.note(f"{len(pictures)} pictures; the same text in {same} of {len(texts['ours'])} readings")
    table = results.table()
    for number, session in enumerate(readers["ours"].sessions):
        report = session.report()
        row = {"session": number, "plans": report.plans.compiled}
        table.add({**row, "FLOPs off the CPU in the last plan %": 100 * report.coverage.flops})


def _drawn(count: int) -> list[np.ndarray]:
    """Return pictures `[H, W, 3]` of different sizes, with one line of text up to a full page."""
    generator = np.random.default_rng(0)
    pictures = []
    for _ in range(count):
        letters, width, height = generator.integers([16, 320, 320], [40, 960, 960]).tolist()
        lines = generator.integers(1, height // (2 * letters) + 1)
        chosen = [Line(text=_LINES[index]) for index in generator.integers(0, len(_LINES), lines)]
        pictures.append(np.asarray(draw_page(Page(lines=chosen, letters=letters, size=(width, height)))))
    return pictures


class Reader:
    """A new RapidOCR that imports another module as onnxruntime.

    RapidOCR creates sessions when it first needs them, so its modules and that one are installed whenever it reads.
    """

    def __init__(self, module: ModuleType) -> None:
        self.sessions: list[Any] = []
        """The sessions of RapidOCR, in order."""
        self._modules = {"onnxruntime": _with_sleeping_sessions(module, self.sessions)}
        with self._in_place():
            from rapidocr import RapidOCR

            self._reader = RapidOCR(params={"Global.log_level": "error"})

    def read(self, picture: np.ndarray) -> tuple[float, Sequence[str]]:
        """Return the seconds to read one picture, and its text."""
        with self._in_place():
            started = time.perf_counter()
            result = self._reader(picture)
            return time.perf_counter() - started, tuple(result.txts or ())

    @contextmanager
    def _in_place(self) -> Iterator[None]:
        removed_modules = _removed_modules()
        sys.modules.update(self._modules)
        try:
            yield
        finally:
            self._modules = _removed_modules()
            sys.modules.update(removed_modules)


def _removed_modules() -> dict[str, ModuleType]:
    """Remove RapidOCR and onnxruntime from `sys.modules`, and return them."""
    names = [name for name in sys.modules if name == "onnxruntime" or name.partition(".")[0] == "rapidocr"]
    return {name: sys.modules.pop(name) for name in names}


def _with_sleeping_sessions(module: ModuleType, sessions: list[Any]) -> ModuleType:
    """Return a module with sessions that have sleeping idle threads; each session is added to a list."""

    class Sleeping(module.InferenceSession):  # type: ignore[misc, name-defined]
        def __init__(self, path: str, sess_options: onnxruntime.SessionOptions, **named: Any) -> None:
            sess_options.add_session_config_entry("session.intra_op.allow_spinning", "0")
            super().__init__(path, sess_options, **named)
            sessions.append(self)

    stub = ModuleType("onnxruntime")
    vars(stub).update(vars(module), InferenceSession=Sleeping)
    return stub


def _one_pass(
    readers: dict[str, Reader], pictures: Sequence[np.ndarray], texts: dict[str, list[Sequence[str]]]
) -> Pass:
    """Read every picture with every reader, in alternating order, and add the text to `texts`."""
    passed: Pass = []
    for position, picture in enumerate(pictures):
        passed.append({})
        for name in readers if position % 2 else reversed(readers):
            passed[-1][name], text = readers[name].read(picture)
            texts[name].append(text)
    return passed


def _row(name: str, passes: Sequence[Pass], device: str) -> dict[str, Any]:
    """Return seconds per pass and reader, their ratio, and the median of the ratios of single pictures."""
    ours, theirs = (
        sum(reading[who] for readings in passes for reading in readings) / len(passes) for who in ("ours", "theirs")
    )
    ratios = [seconds["ours"] / seconds["theirs"] for readings in passes for seconds in readings]
    return {
        "pass": name,
        f"{device} s": ours,
        "ONNX Runtime s": theirs,
        "ratio": ours / theirs,
        "median ratio of pictures": statistics.median(ratios),
    }
