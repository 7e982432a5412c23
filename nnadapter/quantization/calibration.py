"""Calibration: value distributions of activations over sample data, and quantization ranges from them."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout

import numpy as np
import onnx

from nnadapter.ir.operand import Array
from nnadapter.onnx.construction import copied, untyped
from nnadapter.onnx.references import array_of
from nnadapter.quantization.products import FloatModel
from nnadapter.records import dataclass
from nnadapter.session.session import InferenceSession

RANGES = ("minmax", "percentile", "entropy", "mse")
"""`minmax`: all values. `percentile`: all but 0.01 %. `entropy`: Kullback-Leibler divergence. `mse`: least squares."""
LARGEST = 1e30
"""Values with larger magnitudes, such as masks, are not quantized; engines may crash on their scales."""
_BINS = 2048
_ENTROPY_BINS = 512
_PERCENTILE = 99.99
_SHARES = np.linspace(0.2, 1.0, 41)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Distribution:
    """Distribution of a value over all samples."""

    smallest: float
    largest: float
    counts: Array
    """int64 histogram; bins are symmetric around 0."""
    edges: Array
    channel_ends: Array | None
    """[2, channels] Smallest and largest value of each channel; None if sizes differ between samples."""

    def range(self, method: str, levels: int) -> tuple[float, float]:
        """Return the smallest and largest value to represent; includes 0."""
        low, high = _METHODS[method](self, levels) if self.counts.sum() else (0.0, 0.0)
        return min(low, 0.0), max(high, 0.0)


def _minmax(values: Distribution, levels: int) -> tuple[float, float]:
    return values.smallest, values.largest


def _percentile(values: Distribution, levels: int) -> tuple[float, float]:
    return _by_onnxruntime(values, "percentile")


def _entropy(values: Distribution, levels: int) -> tuple[float, float]:
    return _minmax(values, levels) if levels > 256 else _by_onnxruntime(values, "entropy")


def _mse(values: Distribution, levels: int) -> tuple[float, float]:
    centers = (values.edges[1:] + values.edges[:-1]) / 2
    used = values.counts > 0
    centers, counts = centers[used], values.counts[used]
    low, high = min(values.smallest, 0.0), max(values.largest, 0.0)
    errors = []
    for share in _SHARES:
        scale = (high - low) * share / (levels - 1) or 1.0
        rounded = np.clip(np.round(centers / scale), np.round(low * share / scale), np.round(high * share / scale))
        errors.append(float(((rounded * scale - centers) ** 2 * counts).sum()))
    share = float(_SHARES[int(np.argmin(errors))])
    return low * share, high * share


_METHODS: Mapping[str, Callable[[Distribution, int], tuple[float, float]]] = {
    "minmax": _minmax, "percentile": _percentile, "entropy": _entropy, "mse": _mse,
}  # fmt: skip


def _by_onnxruntime(values: Distribution, method: str) -> tuple[float, float]:
    """Return the range by ONNX Runtime's method. Entropy gets fewer bins, because it is slow."""
    from onnxruntime.quantization.calibrate import HistogramCollector

    counts, edges = values.counts, values.edges
    if method == "entropy":
        factor = -(-len(counts) // _ENTROPY_BINS)
        padding = -len(counts) % factor
        counts = np.pad(counts, (0, padding)).reshape(-1, factor).sum(axis=1)
        edges = np.linspace(edges[0], edges[-1] + padding * (edges[1] - edges[0]), len(counts) + 1)
    collector = HistogramCollector(method, False, len(counts), 128, _PERCENTILE, "same")
    ends = np.float32(values.smallest), np.float32(values.largest)
    peak = np.float32(max(map(abs, ends)))
    collector.histogram_dict = {"": (counts, edges.astype(np.float32), *ends, peak)}
    with redirect_stdout(io.StringIO()):  # ONNX Runtime prints progress
        low, high = getattr(collector, f"compute_{method}")()[""][:2]
    return float(low), float(high)


class _Collected:
    def __init__(self) -> None:
        from onnxruntime.quantization.calibrate import HistogramCollector

        self._collector = HistogramCollector("percentile", False, _BINS, 128, _PERCENTILE, "same")
        self._ends: Array | None = None
        self._has_channels = True
        self.is_finite = True

    def add(self, array: Array, axis: int) -> None:
        self.is_finite = self.is_finite and bool((np.abs(array) < LARGEST).all())  # False for NaN
        if not self.is_finite:
            return
        if array.size:
            self._collector.collect_value({"": array})
        if array.ndim and array.size and self._has_channels:
            others = tuple(at for at in range(array.ndim) if at != axis % array.ndim)
            ends, known = np.stack([array.min(axis=others), array.max(axis=others)]), self._ends
            self._has_channels = known is None or known.shape == ends.shape
            if known is not None and self._has_channels:
                ends = np.stack([np.minimum(known[0], ends[0]), np.maximum(known[1], ends[1])])
            self._ends = ends

    def distribution(self) -> Distribution:
        nothing = np.zeros(_BINS, np.int64), np.linspace(0, 0, _BINS + 1), 0.0, 0.0
        counts, edges, smallest, largest, *_ = self._collector.histogram_dict.get("", nothing)
        return Distribution(
            smallest=float(smallest), largest=float(largest), counts=np.asarray(counts),
            edges=np.asarray(edges, np.float64), channel_ends=self._ends if self._has_channels else None,
        )  # fmt: skip


def with_outputs(model: onnx.ModelProto, names: Iterable[str]) -> onnx.ModelProto:
    """Return a copy of the model with these values as further outputs; names of inputs are ignored."""
    more = copied(model)
    present = {value.name for value in (*more.graph.output, *more.graph.input)}
    more.graph.output.extend(untyped(name for name in names if name not in present))
    return more


def distributions(
    model: FloatModel,
    axes: Mapping[str, int],
    feeds: Sequence[Mapping[str, Array]],
    advance: Callable[[], None] = lambda: None,
) -> dict[str, Distribution]:
    """Run a model on the CPU, and return the distributions of the values in `axes`. Raises NNAdapterError.

    Values with elements that are not below `LARGEST` are omitted. `axes` has the channel axis of each value; `advance`
    is called after each feed.
    """
    collected = {name: _Collected() for name in axes}
    defaults = {tensor.name: array_of(tensor) for tensor in model.model.graph.initializer if tensor.name in axes}
    inner = [name for name in axes if name not in {value.name for value in model.model.graph.input}]
    with InferenceSession(with_outputs(model.model, inner), devices="cpu") as session:
        for feed in feeds:
            results = dict(zip(inner, session.run(inner, feed), strict=True)) if inner else {}
            values = {**defaults, **feed, **results}
            for name, axis in axes.items():
                collected[name].add(np.asarray(values[name]), axis)
            advance()
    return {name: values.distribution() for name, values in collected.items() if values.is_finite}
