"""Networks of Paddle with random weights: saved as inference models, with inputs and the results of Paddle's predictor.

    python -m benchmarks.models.paddle_networks FOLDER [NAME...]

A process of its own runs this, since it imports Paddle.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional
from paddle.static import InputSpec
from paddle.vision import models, ops

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A maker of a network, and its inputs."""

    make: Callable[[], Any]
    inputs: Mapping[str, tuple[Sequence[int | None], Sequence[int], str]]
    """Input -> its declared shape, the shape of the feed, and its data type."""


class Called(nn.Layer):
    """A function as a network."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        """Call the function."""
        return self.function(x)


class Decoder(nn.Layer):
    """A transformer's decoder over a memory."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerDecoderLayer(32, 4, 64, dropout=0.0)
        self.decoder = nn.TransformerDecoder(layer, 2)

    def forward(self, target: Any, memory: Any) -> Any:
        """Decode."""
        return self.decoder(target, memory)


class Recurrent(nn.Layer):
    """A recurrent network that returns outputs and last states."""

    def __init__(self, kind: type[nn.Layer], **options: Any) -> None:
        super().__init__()
        self.inner = kind(8, 12, **options)

    def forward(self, sequence: Any) -> Any:
        """Run over a sequence [N, T, C]."""
        outputs, states = self.inner(sequence)
        return outputs, *(states if isinstance(states, tuple) else (states,))


class Detection(nn.Layer):
    """Boxes and scores of a feature map."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Conv2D(4, 14, 1)

    def forward(self, features: Any, size: Any) -> Any:
        """Decode boxes as YOLO does."""
        return ops.yolo_box(self.head(features), size, [10, 13, 16, 30], 2, 0.005, 32)


class Deformable(nn.Layer):
    """A deformable convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.offsets, self.inner = nn.Conv2D(3, 18, 3, padding=1), ops.DeformConv2D(3, 4, 3, padding=1)

    def forward(self, x: Any) -> Any:
        """Convolve at offsets that are computed from the data."""
        return self.inner(x, self.offsets(x))


class KeptBoxes(nn.Layer):
    """Non-maximum suppression by class."""

    def forward(self, boxes: Any, scores: Any) -> Any:
        """Suppress boxes [N, M, 4] by scores [N, C, M]."""
        corners = paddle.concat([boxes[..., :2], boxes[..., :2] + boxes[..., 2:]], -1)
        return paddle._C_ops.multiclass_nms3(corners, scores, None, 0.1, 10, 5, 0.4, True, 1.0, -1)[0]


def _steps(x: Any) -> Any:
    """Run a loop with a number of steps that depends on the data, and a branch."""
    total, count = x, paddle.zeros([1], "int64")
    while count < 10 and paddle.sum(paddle.abs(total)) < 100.0:
        total = total * 1.5
        count += 1
    if paddle.mean(total) > 0:
        total = total - paddle.mean(total)
    return total, count


def _with_zeros(x: Any) -> Any:
    x = x * 1
    x[:, 2:4] = 0.0
    return x


def _picture(size: int = 64, batch: int | None = None) -> dict[str, tuple[Sequence[int | None], Sequence[int], str]]:
    return {"x": ([batch, 3, size, size], [2, 3, size, size], "float32")}


def _floats(*shape: int, name: str = "x") -> dict[str, tuple[Sequence[int | None], Sequence[int], str]]:
    return {name: ([None, *shape[1:]], shape, "float32")}


def _sequence() -> dict[str, tuple[Sequence[int | None], Sequence[int], str]]:
    return {"x": ([None, None, 8], [2, 7, 8], "float32")}


def _function(function: Callable[..., Any], *shape: int) -> Network:
    return Network(make=partial(Called, function), inputs=_floats(*shape))


_WHOLE: Mapping[str, tuple[Callable[[], Any], int]] = {
    "resnet18": (models.resnet18, 64),
    "resnet50": (models.resnet50, 64),
    "mobilenet_v1": (models.mobilenet_v1, 64),
    "mobilenet_v2": (models.mobilenet_v2, 64),
    "mobilenet_v3_small": (models.mobilenet_v3_small, 64),
    "mobilenet_v3_large": (models.mobilenet_v3_large, 64),
    "vgg11": (partial(models.vgg11, num_classes=10), 224),
    "alexnet": (models.alexnet, 224),
    "squeezenet1_1": (models.squeezenet1_1, 64),
    "shufflenet_v2_x0_25": (models.shufflenet_v2_x0_25, 64),
    "densenet121": (models.densenet121, 64),
    "googlenet": (models.googlenet, 224),
    "inception_v3": (models.inception_v3, 128),
    "resnext50_32x4d": (models.resnext50_32x4d, 64),
}
_LAYERS: Mapping[str, Network] = {
    "transformer encoder": Network(
        make=lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0), 2),
        inputs={"src": ([None, None, 32], [2, 9, 32], "float32")},
    ),
    "transformer decoder": Network(
        make=Decoder,
        inputs={
            "target": ([None, None, 32], [2, 5, 32], "float32"),
            "memory": ([None, None, 32], [2, 9, 32], "float32"),
        },
    ),
    "LSTM, both ways": Network(make=partial(Recurrent, nn.LSTM, direction="bidirect"), inputs=_sequence()),
    "LSTM, two layers": Network(make=partial(Recurrent, nn.LSTM, num_layers=2), inputs=_sequence()),
    "GRU, both ways": Network(make=partial(Recurrent, nn.GRU, direction="bidirect"), inputs=_sequence()),
    "SimpleRNN": Network(make=partial(Recurrent, nn.SimpleRNN), inputs=_sequence()),
    "loop and branch": _function(_steps, 2, 3),
    "yolo_box": Network(
        make=Detection,
        inputs={"features": ([None, 4, 8, 8], [1, 4, 8, 8], "float32"), "size": ([None, 2], [1, 2], "int32")},
    ),
}
_FUNCTIONS: Mapping[str, Network] = {
    "interpolate, bilinear": _function(partial(functional.interpolate, scale_factor=2, mode="bilinear"), 1, 3, 8, 8),
    "interpolate, aligned": _function(
        lambda x: functional.interpolate(x, size=[11, 13], mode="bilinear", align_corners=True), 1, 3, 8, 8
    ),
    "interpolate, nearest": _function(partial(functional.interpolate, scale_factor=1.5, mode="nearest"), 1, 3, 8, 8),
    "interpolate, bicubic": _function(lambda x: functional.interpolate(x, size=[12, 12], mode="bicubic"), 1, 3, 8, 8),
    "grid_sample": _function(
        lambda x: functional.grid_sample(x, paddle.tanh(x[:, :2].transpose([0, 2, 3, 1]))), 1, 3, 8, 8
    ),
    "roi_align": _function(
        lambda x: ops.roi_align(x, paddle.to_tensor([[0.0, 0, 6, 6], [1, 2, 7, 5]]), paddle.to_tensor([2], "int32"), 3),
        1,
        3,
        8,
        8,
    ),
    "topk": _function(lambda x: paddle.topk(x, 3), 4, 9),
    "argsort": _function(lambda x: (paddle.argsort(x, descending=True), paddle.sort(x)), 4, 9),
    "argmax": _function(lambda x: (x.argmax(-1), x.argmin(0)), 4, 9),
    "where": _function(lambda x: paddle.where(x > 0.5, x, -x), 4, 9),
    "nonzero": _function(lambda x: paddle.nonzero(x > 0.5), 4, 9),
    "cumsum": _function(lambda x: paddle.cumsum(x, axis=1), 4, 9),
    "one_hot": _function(lambda x: functional.one_hot(x.argmax(-1), 9), 4, 9),
    "gather_nd": _function(lambda x: paddle.gather_nd(x, paddle.to_tensor([[0, 1], [2, 3]])), 4, 9),
    "scatter": _function(
        lambda x: paddle.scatter(x, paddle.to_tensor([1, 3]), paddle.ones([2, 9]), overwrite=True), 4, 9
    ),
    "slices": _function(lambda x: (x[:, 1::2], x[..., -3:], x[:, ::-1]), 4, 9),
    "set_value": _function(_with_zeros, 4, 9),
    "pad": _function(lambda x: functional.pad(x, [1, 2, 0, 1], mode="reflect"), 1, 3, 8, 8),
    "pooling, ceil": _function(lambda x: functional.max_pool2d(x, 3, 2, ceil_mode=True), 1, 3, 8, 8),
    "pooling, average": _function(lambda x: functional.avg_pool2d(x, 3, 2, padding=1, exclusive=False), 1, 3, 8, 8),
    "pooling, adaptive": _function(lambda x: functional.adaptive_avg_pool2d(x, (3, 5)), 1, 3, 8, 8),
    "norms": _function(
        lambda x: (functional.instance_norm(x), functional.layer_norm(x, x.shape[1:]), functional.normalize(x)),
        2,
        4,
        8,
        8,
    ),
    "group_norm": Network(make=partial(nn.GroupNorm, 2, 4), inputs=_floats(2, 4, 8, 8)),
    "activations": _function(
        lambda x: paddle.concat(
            [
                functional.gelu(x),
                functional.silu(x),
                functional.mish(x),
                functional.softplus(x),
                functional.elu(x),
                functional.hardsigmoid(x),
                functional.leaky_relu(x),
                functional.selu(x),
                functional.swish(x),
                functional.log_softmax(x),
                functional.hardshrink(x),
                functional.softsign(x),
                functional.tanhshrink(x),
            ],
            0,
        ),
        4,
        9,
    ),
    "arithmetic": _function(
        lambda x: (
            x // 0.3,
            x % 0.3,
            x**2,
            paddle.rsqrt(x + 1),
            paddle.erf(x),
            paddle.sign(x - 0.5),
            paddle.round(x * 9),
        ),
        4,
        9,
    ),
    "einsum": _function(lambda x: paddle.einsum("bij,bkj->bik", x, x), 2, 4, 5),
    "split and stack": _function(lambda x: paddle.stack(paddle.split(x, 3, axis=1)[::-1], axis=0), 4, 9),
    "expand and tile": _function(lambda x: (x.unsqueeze(0).expand([3, 4, 9]), paddle.tile(x, [2, 1])), 4, 9),
    "reductions": _function(
        lambda x: (x.max(1), x.min(0), x.prod(1), paddle.logsumexp(x, 1), x.norm(p=2, axis=1), (x > 0.5).any(1)), 4, 9
    ),
    "transposed convolution": Network(
        make=lambda: nn.Conv2DTranspose(3, 4, 3, stride=2, padding=1, output_padding=1), inputs=_floats(1, 3, 8, 8)
    ),
    "deformable convolution": Network(make=Deformable, inputs=_floats(1, 3, 8, 8)),
    "pixel_shuffle": _function(lambda x: functional.pixel_shuffle(x, 2), 1, 4, 4, 4),
    "unfold": _function(lambda x: functional.unfold(x, [3, 3], 2, 1), 1, 3, 8, 8),
    "flip and roll": _function(lambda x: (paddle.flip(x, [1]), paddle.roll(x, 2, 1)), 4, 9),
    "tril": _function(lambda x: (paddle.tril(x), paddle.triu(x, 1)), 9, 9),
    "meshgrid": _function(lambda x: paddle.meshgrid(paddle.arange(3), paddle.arange(4))[0] + x[0, 0], 4, 9),
    "embedding": Network(
        make=lambda: nn.Embedding(20, 6, padding_idx=0), inputs={"x": ([None, None], [2, 5], "int64")}
    ),
    "multiclass_nms": Network(
        make=KeptBoxes,
        inputs={"boxes": ([1, 20, 4], [1, 20, 4], "float32"), "scores": ([1, 3, 20], [1, 3, 20], "float32")},
    ),
    "casts": _function(lambda x: ((x * 9).astype("int32"), (x * 9).astype("int64") % 4, x > 0.5), 4, 9),
    "half": _function(lambda x: (x.astype("float16") * 2).astype("float32"), 4, 9),
    "svd": _function(lambda x: paddle.linalg.svd(x)[1], 4, 9),
}


NETWORKS: Mapping[str, Network] = {
    **{name: Network(make=make, inputs=_picture(size)) for name, (make, size) in _WHOLE.items()},
    **_LAYERS,
    **_FUNCTIONS,
}
"""The networks by name, in the order of the table."""


def save(network: Network, folder: Path) -> None:
    """Write `inference.json` and its parameters, `feeds.npz`, and `results.npz` of Paddle's predictor."""
    paddle.seed(0)
    layer = network.make()
    layer.eval()
    specs = [InputSpec(list(shape), dtype, name) for name, (shape, _, dtype) in network.inputs.items()]
    paddle.jit.save(layer, str(folder / "inference"), input_spec=specs)
    generator = np.random.default_rng(0)
    feeds = {name: _drawn(generator, shape, dtype) for name, (_, shape, dtype) in network.inputs.items()}
    np.savez(folder / "feeds.npz", **feeds)
    np.savez(folder / "results.npz", **predicted(folder, feeds))


def predicted(folder: Path, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Return the results of Paddle's own predictor, by output."""
    from paddle.inference import Config, create_predictor

    parameters = folder / "inference.pdiparams"
    config = Config(str(folder / "inference.json"), str(parameters) if parameters.exists() else "")
    config.disable_glog_info()
    config.disable_mkldnn()  # which computes some of it in other types
    config.switch_ir_optim(False)
    predictor = create_predictor(config)
    for name in predictor.get_input_names():
        predictor.get_input_handle(name).copy_from_cpu(feeds[name])
    predictor.run()
    return {name: predictor.get_output_handle(name).copy_to_cpu() for name in predictor.get_output_names()}


def _drawn(generator: np.random.Generator, shape: Sequence[int], dtype: str) -> Array:
    if dtype.startswith("int"):
        return generator.integers(1, 20, shape).astype(dtype)
    return generator.random(shape, np.float32)


def main() -> None:
    """Save the networks that are named, or all."""
    folder, *names = sys.argv[1:]
    for name in names or NETWORKS:
        target = Path(folder) / name
        target.mkdir(parents=True)
        try:
            save(NETWORKS[name], target)
        except Exception as failure:  # noqa: BLE001  the row of the table says so
            last_line = next(iter(str(failure).strip().splitlines()[-1:]), "")
            (target / "failure.txt").write_text(f"{type(failure).__name__}: {last_line}")


if __name__ == "__main__":
    main()
