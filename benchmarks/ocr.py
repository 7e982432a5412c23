"""RapidOCR over pictures of many sizes, on a device by way of `nna.ort`, beside ONNX Runtime itself.

    python benchmarks/ocr.py [--device fake_npu] [--pictures 20] [--passes 3] [--json FILE]

Cold is a fresh reader's first pass over all pictures, in which nearly each brings shapes that were never seen: making
plans is counted. Warm are the passes after it. Both readers take turns at every picture; ONNX Runtime's threads do not
spin. The pictures are drawn with the same random numbers each time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnxruntime

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "pictures"))

from make import DENSE, DIGITS, SKEWED, TURNED, Line, Page, draw_page

import nnadapter as nna
from benchmarks.timing import table

LINES = [line.text for text in (DENSE, DIGITS, SKEWED, TURNED) for line in text]
Pass = list[dict[str, float]]
"""Seconds by reader, per picture."""


def main() -> None:
    """Read, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="fake_npu")
    parser.add_argument("--pictures", type=int, default=20)
    parser.add_argument("--passes", type=int, default=3, help="warm ones")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    pictures = drawn(arguments.pictures)
    nna.ort.use(arguments.device)
    readers = {"ours": Reader(nna.ort), "theirs": Reader(onnxruntime)}
    texts: dict[str, list[Sequence[str]]] = {name: [] for name in readers}
    passes = [one_pass(readers, pictures, texts) for _ in range(1 + arguments.passes)]
    rows = [facts("cold", passes[:1]), facts("warm", passes[1:])]
    same = sum(ours == theirs for ours, theirs in zip(texts["ours"], texts["theirs"], strict=True))
    head = ["pass", f"{arguments.device} s", "ONNX Runtime s", "times", "median over pictures"]
    print(table(head, [[row["pass"], *(f"{row[name]:.2f}" for name in list(row)[1:])] for row in rows]))
    print(f"\n{len(pictures)} pictures; the same text in {same} of {len(texts['ours'])} readings")
    for session in readers["ours"].sessions:
        report = session.report()
        print(f"{report.plans.made} plans made, {report.coverage.flops:.0%} of FLOPs off the CPU in the last of them")
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows, "passes": passes, "same_text": same}, indent=2))


def drawn(count: int) -> list[np.ndarray]:
    """Pictures `[H, W, 3]` of different sizes, with one line of text up to a page full."""
    generator = np.random.default_rng(0)
    pictures = []
    for _ in range(count):
        letters, width, height = generator.integers([16, 320, 320], [40, 960, 960]).tolist()
        lines = generator.integers(1, height // (2 * letters) + 1)
        chosen = [Line(text=LINES[index]) for index in generator.integers(0, len(LINES), lines)]
        pictures.append(np.asarray(draw_page(Page(lines=chosen, letters=letters, size=(width, height)))))
    return pictures


class Reader:
    """A fresh RapidOCR with a module of its own in the place of onnxruntime.

    RapidOCR makes sessions as late as when it first needs them, so its modules, and that one, are put in their places
    whenever it reads.
    """

    def __init__(self, module: ModuleType) -> None:
        self.sessions: list[Any] = []
        """What it made, in order."""
        self._modules = {"onnxruntime": with_sleeping_sessions(module, self.sessions)}
        with self._in_place():
            from rapidocr import RapidOCR

            self._reader = RapidOCR(params={"Global.log_level": "error"})

    def read(self, picture: np.ndarray) -> tuple[float, Sequence[str]]:
        """How long it takes to read one picture, in seconds, and what stands there."""
        with self._in_place():
            started = time.perf_counter()
            found = self._reader(picture)
            return time.perf_counter() - started, tuple(found.txts or ())

    @contextmanager
    def _in_place(self) -> Iterator[None]:
        others = taken_out()
        sys.modules.update(self._modules)
        try:
            yield
        finally:
            self._modules = taken_out()
            sys.modules.update(others)


def taken_out() -> dict[str, ModuleType]:
    """Take the modules of RapidOCR, and the one that is called onnxruntime, from where Python finds them."""
    names = [name for name in sys.modules if name == "onnxruntime" or name.partition(".")[0] == "rapidocr"]
    return {name: sys.modules.pop(name) for name in names}


def with_sleeping_sessions(module: ModuleType, sessions: list[Any]) -> ModuleType:
    """The same module, whose sessions have threads that sleep when they have nothing to do; each is kept in a list."""

    class Sleeping(module.InferenceSession):  # type: ignore[misc, name-defined]
        def __init__(self, path: str, sess_options: onnxruntime.SessionOptions, **named: Any) -> None:
            sess_options.add_session_config_entry("session.intra_op.allow_spinning", "0")
            super().__init__(path, sess_options, **named)
            sessions.append(self)

    made = ModuleType("onnxruntime")
    vars(made).update(vars(module), InferenceSession=Sleeping)
    return made


def one_pass(readers: dict[str, Reader], pictures: Sequence[np.ndarray], texts: dict[str, list[Sequence[str]]]) -> Pass:
    """Read every picture with every reader in turn, every other picture backwards; the text is added to `texts`."""
    passed: Pass = []
    for position, picture in enumerate(pictures):
        passed.append({})
        for name in readers if position % 2 else reversed(readers):
            passed[-1][name], text = readers[name].read(picture)
            texts[name].append(text)
    return passed


def facts(name: str, passes: Sequence[Pass]) -> dict[str, Any]:
    """Seconds per pass and reader, their ratio, and the median of the pictures' own ratios."""
    ours, theirs = (sum(seconds[who] for one in passes for seconds in one) / len(passes) for who in ("ours", "theirs"))
    ratios = [seconds["ours"] / seconds["theirs"] for one in passes for seconds in one]
    return {"pass": name, "ours": ours, "theirs": theirs, "ratio": ours / theirs, "median": statistics.median(ratios)}


if __name__ == "__main__":
    main()
