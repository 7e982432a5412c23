"""Six networks saved by Paddle, with inputs and the results of Paddle's predictor. Run in its own process.

python tests/paddle/networks.py FOLDER
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import paddle
from paddle import nn
from paddle.inference import Config, create_predictor
from paddle.nn import functional
from paddle.static import InputSpec

from nnadapter.paddle import conversion, worker


class Classifier(nn.Layer):
    """Small convolutional network with the ops of mobile ones."""

    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2D(3, 8, 3, stride=2, padding=1), nn.BatchNorm2D(8)
        self.groups, self.slope = nn.GroupNorm(2, 8, epsilon=0.25), nn.LeakyReLU(0.3)
        self.depthwise, self.pointwise = nn.Conv2D(8, 8, 3, padding=1, groups=8), nn.Conv2D(8, 16, 1)
        self.head = nn.Linear(16, 10)

    def forward(self, image):
        x = functional.hardswish(self.norm(self.stem(image)))
        x = functional.pad(self.slope(self.groups(x)), [1, 1, 1, 1], value=0.5)
        x = functional.relu6(self.pointwise(self.depthwise(x)))
        x = functional.max_pool2d(x, 2)
        return functional.softmax(self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1)))


class Recognizer(nn.Layer):
    """Text recognition in lines of any width: convolutions, a bidirectional LSTM, letters for CTC."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2D(3, 8, 3, padding=1), nn.BatchNorm2D(8)
        self.second = nn.Conv2D(8, 16, 3, stride=(2, 1), padding=1)
        self.reader, self.head = nn.LSTM(16, 12, direction="bidirect"), nn.Linear(24, 20)

    def forward(self, x):
        x = functional.max_pool2d(functional.relu(self.norm(self.first(x))), 2)
        x = functional.gelu(functional.hardswish(self.second(x)), approximate=True).mean(axis=2)
        x, _ = self.reader(x.transpose([0, 2, 1]))
        return functional.softmax(self.head(x), axis=2)


class Encoder(nn.Layer):
    """Transformer over tokens, with two outputs."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(100, 32)
        self.inner = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, activation="gelu"), 2)
        self.head = nn.Linear(32, 5)

    def forward(self, ids):
        x = self.inner(self.tokens(ids))
        return self.head(x), x.mean(axis=1)


class Deciding(nn.Layer):
    """Network with a data-dependent loop and branch after a convolution."""

    def __init__(self):
        super().__init__()
        self.features, self.step = nn.Conv2D(1, 4, 3), nn.Linear(4, 4)

    def forward(self, x):
        x = functional.relu(self.features(x)).mean(axis=[2, 3])
        count = paddle.zeros([1], "int64")
        while count < 8 and paddle.sum(paddle.abs(x)) > 0.5:
            x = paddle.tanh(self.step(x))
            count += 1
        if paddle.sum(x) > 0:  # noqa: SIM108  a branch is the point
            x = x * 2.0
        else:
            x = x - 1.0
        return x, count


class Rounding(nn.Layer):
    """Rounding to 8 bits and back, by Paddle's quantization operations or by their definitions."""

    def __init__(self, largest, axis, written_out):
        super().__init__()
        self.axis, self.written_out = axis, written_out
        largest = np.asarray(largest, np.float32).reshape(-1)
        self.scale, self.zero = self._held(largest), self._held(np.zeros_like(largest))
        self.total, self.state = self._held([0.0]), self._held([0.0])

    def _held(self, values):
        values = np.asarray(values, np.float32)
        return self.create_parameter(list(values.shape), default_initializer=nn.initializer.Assign(values))

    def forward(self, x):
        if self.written_out:
            scale = self.scale.reshape([-1] + [1] * (len(x.shape) - 1)) if self.axis == 0 else self.scale
            return paddle.clip(paddle.round(x / scale * 127.0), -128.0, 127.0) * (scale / 127.0)
        rest = (self.scale, self.zero, self.total, self.state, self.axis, 8, -128, 127, 0, True, False)
        return paddle._C_ops.dequantize_linear(paddle._C_ops.quantize_linear(x, *rest)[0], *rest)[0]


class Quantized(nn.Layer):
    """Convolution and matrix in 8 bits: one scale for activations, one per channel for weights."""

    def __init__(self, written_out=False):
        super().__init__()
        self.conv, self.head = nn.Conv2D(3, 8, 3, padding=1), nn.Linear(8 * 8 * 8, 10)
        self.image, self.hidden = Rounding(0.9, -1, written_out), Rounding(1.5, -1, written_out)
        self.filters = Rounding(np.abs(self.conv.weight.numpy()).max((1, 2, 3)), 0, written_out)
        self.matrix = Rounding(np.abs(self.head.weight.numpy()).max(0), 1, written_out)

    def forward(self, x):
        x = functional.conv2d(self.image(x), self.filters(self.conv.weight), self.conv.bias, padding=1)
        x = self.hidden(functional.relu(x)).flatten(1)
        return paddle.matmul(x, self.matrix(self.head.weight)) + self.head.bias


class Attributes(nn.Layer):
    """Operations with attributes that paddle2onnx lacks or converts incorrectly, each an output."""

    def __init__(self):
        super().__init__()
        self.norm, self.shifted = nn.LayerNorm([6, 6]), nn.LayerNorm([4, 6, 6], weight_attr=False)
        self.scaled = nn.LayerNorm([6, 6], bias_attr=False)
        for number, each in enumerate((*self.norm.parameters(), *self.shifted.parameters(), *self.scaled.parameters())):
            each.set_value(paddle.linspace(0.5, 1.5 + number, each.shape[0]))
        self.larger = nn.Conv2DTranspose(4, 3, 3, stride=2, padding=[0, 1, 1, 0])
        self.depthwise = nn.Conv2DTranspose(4, 4, 3, stride=3, padding="VALID", groups=4)
        self.deep, self.line = nn.Conv3DTranspose(4, 2, 2, stride=3), nn.Conv1DTranspose(4, 2, 3, stride=2)
        self.same, self.dilated = (
            nn.Conv2DTranspose(4, 2, 3, stride=2, padding="SAME"),
            nn.Conv2D(4, 2, 3, padding="SAME", dilation=2),
        )
        self.last, self.groups = (
            nn.Conv2D(6, 4, 3, padding=1, data_format="NHWC"),
            nn.GroupNorm(3, 6, data_format="NHWC"),
        )
        self.batch, self.slope = nn.BatchNorm2D(6, data_format="NHWC"), nn.PReLU(6, data_format="NHWC")
        self.words = nn.Conv1D(6, 4, 3, data_format="NLC")

    def forward(self, x):
        x = x - 0.5
        picture, line = functional.max_pool2d(x, 3, 2, 1, data_format="NHWC"), x[:, :, 0]
        return (
            self.norm(x),
            self.shifted(x),
            self.scaled(x),
            functional.hardtanh(x, -0.3, 0.2),
            functional.hardtanh(x.astype("float64"), 0.1, 0.2),
            functional.softplus(x, beta=3.0),
            functional.softplus(x, beta=-2.0, threshold=0.3),
            functional.softplus(100 * x, beta=2.0, threshold=50.0),
            functional.thresholded_relu(x, 0.1, 0.3),
            paddle.round(10 * x, 1),
            paddle.round(1000 * x, -1),
            self.larger(x, output_size=[13, 12]),
            self.depthwise(x, output_size=[20, 18]),
            self.deep(x.unsqueeze(2), output_size=[2, 18, 19]),
            self.line(line, output_size=[14]),
            self.same(x),
            self.dilated(x),
            self.last(x),
            self.groups(self.batch(self.slope(x))),
            self.words(line),
            functional.interpolate(picture, size=[5, 7], mode="bilinear", data_format="NHWC"),
            functional.adaptive_avg_pool2d(x, 1, data_format="NHWC"),
            functional.pixel_shuffle(
                functional.pad(x, [0, 2], data_format="NHWC", pad_from_left_axis=False), 2, "NHWC"
            ),
            paddle.linalg.norm(x, float("inf"), 1),
            paddle.linalg.norm(x, -float("inf"), 2, keepdim=True),
            paddle.linalg.norm(x, 3.0),
            paddle.linalg.norm(x, float("inf")),
            x - paddle.mean(x),
            paddle.static.nn.cond(x[0, 0, 0, 0] > 0, lambda: self.norm(x), lambda: functional.hardtanh(x, -0.1, 0.1)),
        )


PICTURE, TOKENS = ([None, 3, 32, 32], "float32", "image"), ([None, None], "int64", "ids")
NETWORKS = {
    "cnn": (Classifier, PICTURE, [(2, 3, 32, 32)]),
    "recognizer": (Recognizer, ([None, 3, 32, None], "float32", "x"), [(1, 3, 32, 40), (2, 3, 32, 64)]),
    "transformer": (Encoder, TOKENS, [(2, 9), (1, 4)]),
    "control flow": (Deciding, ([None, 1, 8, 8], "float32", "x"), [(2, 1, 8, 8)]),
    "attributes": (Attributes, ([None, 4, 6, 6], "float32", "x"), [(2, 4, 6, 6)]),
    "quantized": (Quantized, ([None, 3, 8, 8], "float32", "x"), [(2, 3, 8, 8)]),
}
"""Name -> class, input, and shapes of runs."""


def main(folder: Path) -> None:
    for name, (make, (shape, dtype, called), fed) in NETWORKS.items():
        spec = [InputSpec(shape, dtype, called)]
        path = save(folder / name, make, spec)
        if make is Quantized:  # Paddle's predictor skips rounding on the CPU unless it is written out
            path = save(folder / "written out" / name, lambda: Quantized(written_out=True), spec)
        config = Config(f"{path}.json", f"{path}.pdiparams")
        config.disable_glog_info()
        config.disable_mkldnn()  # oneDNN lacks some attributes
        predictor, generator = create_predictor(config), np.random.default_rng(0)
        for number, each in enumerate(fed):
            feed = generator.random(each, np.float32) if dtype == "float32" else generator.integers(0, 100, each)
            predictor.get_input_handle(called).copy_from_cpu(feed)
            predictor.run()
            outputs = {one: predictor.get_output_handle(one).copy_to_cpu() for one in predictor.get_output_names()}
            np.savez(folder / name / f"run{number}.npz", **{f"in {called}": feed}, **outputs)
    paddle.jit.save(Refused(), str(folder / "refused" / "inference"), input_spec=[InputSpec([4, 4], "float32", "x")])
    conversion.convert = converted_here
    for name in NETWORKS.keys() - {"cnn"}:  # the test of "cnn" converts in a process, as outside of tests
        conversion.as_onnx(folder / name, {"cache_dir": folder / "cache" / "programs"})


def save(folder: Path, make, spec) -> str:
    paddle.seed(0)
    network = make()
    network.eval()
    paddle.jit.save(network, str(folder / "inference"), input_spec=spec)
    return str(folder / "inference")


def converted_here(files):
    """Convert as the conversion process does, but in this process, which has already imported Paddle."""
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "model.json").symlink_to(files.structure)
        (Path(name) / "model.pdiparams").symlink_to(files.parameters)
        return worker._converted(Path(name))


class Refused(nn.Layer):
    def forward(self, x):
        return paddle.linalg.svd(x)[1] + paddle.lgamma(x).sum()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
