"""Networks that are trained in seconds on scikit-learn's digits, and on patches of its sample pictures.

The samples are a test set that training does not use. The trained weights are cached as ONNX files.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import sklearn
import torch
from sklearn.datasets import load_digits, load_sample_images
from torch import Tensor, nn

from benchmarks.models.outliers import with_outliers
from benchmarks.models.trained import Array, Trained, accuracy, cached_model

_OPSET = 17
_SEED = 0
_BATCH = 64
_CALIBRATION = 64
_TEST_DIGITS = 600
_PATCH = 32
_STRIPS = 10
_PATCHES = 3000
_TEST_PATCHES = 600
_ROUGH = 20
"""The least standard deviation of a patch, of 255: flat patches look the same after many changes."""


class _Data(NamedTuple):
    pictures: Array
    labels: Array
    test_pictures: Array
    test_labels: Array


class _Cnn(nn.Sequential):
    """Convolutions with batch normalization."""

    def __init__(self, width: int = 24) -> None:
        super().__init__(
            *_normalized_convolution(1, width),
            *_normalized_convolution(width, 2 * width),
            nn.MaxPool2d(2),
            *_normalized_convolution(2 * width, 4 * width),
            *_normalized_convolution(4 * width, 4 * width),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10)),
        )


def _normalized_convolution(before: int, after: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()


class _SmallCnn(nn.Sequential):
    """Fewer convolutions at smaller sizes, for larger pictures in color."""

    def __init__(self) -> None:
        super().__init__(
            *(*_normalized_convolution(3, 24), nn.MaxPool2d(2)),
            *(*_normalized_convolution(24, 48), nn.MaxPool2d(2)),
            *_normalized_convolution(48, 96),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, 10)),
        )


class _Vit(nn.Module):
    """A transformer over patches of 4 x 4 pixels."""

    def __init__(self, size: int = 16, width: int = 64, layers: int = 3) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 4, 4)
        self.positions = nn.Parameter(torch.randn(1, (size // 4) ** 2, width) / 10)
        self.layers = nn.Sequential(*(_VitLayer(width) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        scores: Tensor = self.head(self.norm(self.layers(tokens)).mean(1))
        return scores


class _VitLayer(nn.Module):
    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.shape = heads, width // heads
        self.query, self.key, self.value, self.mix = (nn.Linear(width, width) for _ in range(4))
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inner = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        normal = self.before(x)
        query, key, value = (
            part(normal).unflatten(2, self.shape).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        shares = (query @ key.transpose(2, 3) / self.shape[1] ** 0.5).softmax(-1)
        x = x + self.mix((shares @ value).transpose(1, 2).flatten(2))
        result: Tensor = x + self.inner(self.between(x))
        return result


class _Lstm(nn.Module):
    """An LSTM over the rows of a picture."""

    def __init__(self, columns: int = 16, width: int = 96) -> None:
        super().__init__()
        self.width = width
        self.rows, self.head = nn.LSTM(columns, width, num_layers=2, batch_first=True), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        start = torch.zeros(2, int(x.shape[0]), self.width)
        states, _ = self.rows(x[:, 0], (start, start))
        scores: Tensor = self.head(states[:, -1])
        return scores


class _MobileNet(nn.Sequential):
    """A network like MobileNetV3: depthwise convolutions, hard-swish, squeeze-and-excite."""

    def __init__(self) -> None:
        super().__init__(
            *(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.Hardswish()),
            _Inverted(16, 48, 24, 3, 2),
            _Inverted(24, 72, 24, 3, 1),
            _Inverted(24, 96, 40, 5, 2),
            _Inverted(40, 120, 40, 5, 1),
            *(nn.Conv2d(40, 160, 1, bias=False), nn.BatchNorm2d(160), nn.Hardswish()),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(160, 128), nn.Hardswish(), nn.Linear(128, 10)),
        )


class _Inverted(nn.Module):
    def __init__(self, before: int, width: int, after: int, size: int, stride: int) -> None:
        super().__init__()
        self.expand = nn.Sequential(nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width), nn.Hardswish())
        depthwise = nn.Conv2d(width, width, size, stride, size // 2, groups=width, bias=False)
        self.depthwise = nn.Sequential(depthwise, nn.BatchNorm2d(width), nn.Hardswish())
        squeeze = nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, width // 4, 1), nn.ReLU()
        self.excite = nn.Sequential(*squeeze, nn.Conv2d(width // 4, width, 1), nn.Hardsigmoid())
        self.project = nn.Sequential(nn.Conv2d(width, after, 1, bias=False), nn.BatchNorm2d(after))
        self.is_residual = (before, stride) == (after, 1)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.depthwise(self.expand(x))
        inner = self.project(inner * self.excite(inner))
        return x + inner if self.is_residual else inner


def digits_cnn(name: str, folder: Path, samples: int | None = None) -> Trained:
    """Return a convolutional network with batch normalization fused into the weights."""
    return _learned(name, folder, _digits, _Cnn, samples, epochs=8)


def digits_cnn_with_normalization(name: str, folder: Path, samples: int | None = None) -> Trained:
    """Return the same network with nodes of batch normalization."""
    return _learned(name, folder, _digits, _Cnn, samples, epochs=8, is_fused=False)


def digits_outliers(name: str, folder: Path, samples: int | None = None) -> Trained:
    """Return the convolutional network with outliers in its third convolution."""
    network = digits_cnn("digits-cnn", folder, samples)
    convolutions = [node.name for node in network.model.graph.node if node.op_type == "Conv"]
    return replace(network, name=name, model=with_outliers(network.model, convolutions[2]))


def digits_vit(name: str, folder: Path, samples: int | None = None) -> Trained:
    """Return a small vision transformer."""
    return _learned(name, folder, _digits, _Vit, samples, epochs=30)


def digits_lstm(name: str, folder: Path, samples: int | None = None) -> Trained:
    """Return an LSTM that reads digits row by row."""
    return _learned(name, folder, _digits, _Lstm, samples, epochs=20)


def digits_mobilenet(name: str, folder: Path, samples: int | None = None) -> Trained:
    """Return a network like MobileNetV3."""
    return _learned(name, folder, _digits, _MobileNet, samples, epochs=15)


def patches_cnn(name: str, folder: Path, samples: int | None = None) -> Trained:
    """Return a convolutional network that finds out how a patch of a picture was changed."""
    return _learned(name, folder, _patches, _SmallCnn, samples, epochs=8)


def _learned(
    name: str,
    folder: Path,
    source: Callable[[], _Data],
    make: Callable[[], nn.Module],
    samples: int | None,
    *,
    epochs: int,
    is_fused: bool = True,
) -> Trained:
    """Return a network that is trained unless it is cached."""
    data = source()
    model = cached_model(
        folder,
        name,
        lambda: _exported(_train(make, source, epochs), data.pictures[:1], is_fused=is_fused),
        Path(__file__).read_text(encoding="utf-8"),
        torch.__version__,
        sklearn.__version__,
    )
    count = len(data.test_labels) if samples is None else samples
    return Trained(
        name=name,
        model=model,
        samples=tuple({"x": picture[None]} for picture in data.test_pictures[:count]),
        items=tuple(data.test_labels[:count].tolist()),
        calibration=tuple({"x": picture[None]} for picture in data.pictures[:_CALIBRATION]),
        metric=accuracy,
        unit="% of pictures",
    )


@cache
def _train(make: Callable[[], nn.Module], source: Callable[[], _Data], epochs: int) -> nn.Module:
    data = source()
    with torch.random.fork_rng():
        torch.manual_seed(_SEED)
        module = make().train()
        pictures, labels = torch.from_numpy(data.pictures), torch.from_numpy(data.labels)
        steps = epochs * (len(labels) // _BATCH)
        optimizer = torch.optim.AdamW(module.parameters(), lr=3e-3)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
        for _ in range(epochs):
            for batch in torch.randperm(len(labels))[: len(labels) // _BATCH * _BATCH].split(_BATCH):
                optimizer.zero_grad()
                nn.functional.cross_entropy(module(pictures[batch]), labels[batch]).backward()
                optimizer.step()
                schedule.step()
        return module.eval()


def _exported(module: nn.Module, example: Array, *, is_fused: bool) -> onnx.ModelProto:
    """Return a module in ONNX, with batch normalization in the weights of convolutions or as nodes."""
    modes = torch.onnx.TrainingMode
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the older exporter writes opset 17, the newer one converts to it
        torch.onnx.export(
            module,
            (torch.from_numpy(example),),
            buffer,
            input_names=["x"],
            output_names=["y"],
            opset_version=_OPSET,
            dynamo=False,
            training=modes.EVAL if is_fused else modes.PRESERVE,
        )
    return onnx.load_from_string(buffer.getvalue())


@cache
def _digits() -> _Data:
    """Return digits `[N, 1, 16, 16]` from 0 to 1, each pixel twice in both directions."""
    data = load_digits()
    order = np.random.default_rng(_SEED).permutation(len(data.target))
    pictures = (data.images[order, None] / 16).repeat(2, 2).repeat(2, 3).astype(np.float32)
    labels = data.target[order].astype(np.int64)
    return _Data(pictures[_TEST_DIGITS:], labels[_TEST_DIGITS:], pictures[:_TEST_DIGITS], labels[:_TEST_DIGITS])


@cache
def _patches() -> _Data:
    """Return patches `[N, 3, 32, 32]` around 0, and the number of the change of each.

    Each picture is cut into strips. Every fourth is for the test.
    """
    generator = np.random.default_rng(_SEED)
    strips = [strip for image in load_sample_images().images for strip in np.split(image, _STRIPS, axis=1)]
    training = _changed_patches([strip for number, strip in enumerate(strips) if number % 4], _PATCHES, generator)
    return _Data(*training, *_changed_patches(strips[::4], _TEST_PATCHES, generator))


def _changed_patches(images: Sequence[Array], count: int, generator: np.random.Generator) -> tuple[Array, Array]:
    patches: list[Array] = []
    while len(patches) < count:
        image = images[generator.integers(len(images))]
        top, left = (int(generator.integers(size - _PATCH)) for size in image.shape[:2])
        patch = image[top : top + _PATCH, left : left + _PATCH].astype(np.float32)
        if patch.std() >= _ROUGH:
            patches.append(_CHANGES[len(patches) % len(_CHANGES)](patch, generator))
    pictures = (np.stack(patches).transpose(0, 3, 1, 2) / 127.5 - 1).astype(np.float32)
    return np.ascontiguousarray(pictures), np.arange(count) % len(_CHANGES)


def _blurred(patch: Array) -> Array:
    for axis in (0, 1):
        patch = sum(np.roll(patch, shift, axis) for shift in range(-3, 4)) / 7  # type: ignore[assignment]
    return patch


def _mosaic(patch: Array) -> Array:
    return patch[::4, ::4].repeat(4, 0).repeat(4, 1)


def _striped(patch: Array, axis: int) -> Array:
    wave = 20 * np.sin(np.arange(_PATCH, dtype=np.float32) * np.pi / 2)
    return patch + (wave[:, None, None] if axis == 0 else wave[None, :, None])


_Change = Callable[[Array, np.random.Generator], Array]
_CHANGES: tuple[_Change, ...] = (
    lambda patch, generator: patch,
    lambda patch, generator: _blurred(patch),
    lambda patch, generator: _striped(_striped(patch, 0), 1),
    lambda patch, generator: patch + generator.normal(0, 20, patch.shape).astype(np.float32),
    lambda patch, generator: np.round(patch / 64) * 64,
    lambda patch, generator: _mosaic(patch),
    lambda patch, generator: patch.mean(2, keepdims=True).repeat(3, 2),
    lambda patch, generator: _striped(patch, 0),
    lambda patch, generator: _striped(patch, 1),
    lambda patch, generator: np.where(generator.random((_PATCH, _PATCH, 1)) < 0.04, np.float32(255), patch),
)
"""Change of the patches, by class."""
