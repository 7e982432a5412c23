"""Child process of test_paddle_plug_in.py: Paddle with the custom device.

The argument is a JSON list of environment variables and function names. Paddle is imported once; each entry runs in a
process forked before the device is used. Prints a JSON list of results by function name and standard error.
`by_definition` as the first function installs the driver of by_definition.py.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional as F  # noqa: N812  the name that Paddle's documentation uses

DEVICE = "acme_c"
_RANDOM = np.random.default_rng(0)


def _normal(*shape: int) -> np.ndarray:
    return _RANDOM.standard_normal(shape).astype(np.float32)


A, B, POSITIVE, IMAGES, FILTER = (
    _normal(2, 3, 4),
    _normal(3, 4),
    np.abs(_normal(2, 3, 4)) + 0.5,
    _normal(2, 4, 9, 11),
    _normal(6, 4, 3, 3),
)


def _changed_in_place(x: paddle.Tensor) -> paddle.Tensor:
    y = x + 0
    y.add_(x)
    F.relu_(y)
    y[0] = 1.0
    y[:, ::2] = x[:, ::2]
    return y


def _set_turned_round(x: paddle.Tensor) -> paddle.Tensor:
    y = x + 0
    y[::-1, :, ::-2] = x[:, :, ::2]
    return y


CASES = {
    **{
        name: (getattr(paddle, name), POSITIVE)
        for name in (
            "abs",
            "ceil",
            "cos",
            "erf",
            "exp",
            "floor",
            "reciprocal",
            "rsqrt",
            "sin",
            "sqrt",
            "square",
            "tanh",
            "log",
        )
    },
    **{
        name: (getattr(F, name), A)
        for name in (
            "hardswish",
            "relu",
            "relu6",
            "sigmoid",
            "silu",
            "softsign",
            "gelu",
            "leaky_relu",
            "elu",
            "softmax",
        )
    },
    **{
        name: (getattr(paddle, name), POSITIVE, np.abs(B) + 0.1)
        for name in (
            "add",
            "subtract",
            "multiply",
            "divide",
            "maximum",
            "minimum",
            "pow",
        )
    },
    **{
        name: (getattr(paddle, name), A, B)
        for name in (
            "equal",
            "not_equal",
            "less_than",
            "less_equal",
            "greater_than",
            "greater_equal",
        )
    },
    "gelu by tanh": (lambda x: F.gelu(x, approximate=True), A),
    "int64": (lambda x: x + x, np.arange(5)),
    "int64 divided": (lambda x: x / (x + 1), np.arange(5)),
    "float64": (F.relu, A.astype(np.float64)),
    "scaled": (lambda x: x * 2 + 1, A),
    "matmul": (paddle.matmul, A, _normal(4, 5)),
    "matmul transposed": (lambda x, y: paddle.matmul(x, y, transpose_y=True), A, B),
    "matmul, broadcast": (paddle.matmul, _normal(2, 1, 3, 4), _normal(5, 4, 3)),
    "matmul of a vector": (lambda x: paddle.matmul(x, x[0]), B),
    "conv2d": (lambda x, w: F.conv2d(x, w, padding=1, stride=2), IMAGES, FILTER),
    "conv2d, four pads": (lambda x, w: F.conv2d(x, w, padding=[0, 1, 2, 1]), IMAGES, FILTER),
    "conv2d, same": (lambda x, w: F.conv2d(x, w, padding="SAME"), IMAGES, FILTER),
    "conv2d, dilated": (lambda x, w: F.conv2d(x, w, dilation=2), IMAGES, FILTER),
    "conv2d, depthwise": (lambda x, w: F.conv2d(x, w, groups=4), IMAGES, FILTER[:4, :1]),
    "conv2d, NHWC": (lambda x, w: F.conv2d(x, w, data_format="NHWC"), IMAGES.transpose(0, 2, 3, 1).copy(), FILTER),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), IMAGES),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 3, stride=2, padding=1), IMAGES),
    "avg_pool2d with pads": (lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, exclusive=False), IMAGES),
    "max_pool2d of pads alone": (lambda x: F.max_pool2d(x, 2, 2, 1, ceil_mode=True), IMAGES),
    "avg_pool2d, four pads": (lambda x: F.avg_pool2d(x, 2, 1, [0, 1, 1, 0], exclusive=False), IMAGES),
    "pool to 1": (lambda x: F.adaptive_avg_pool2d(x, 1), IMAGES),
    "pool to 3, 4": (lambda x: F.adaptive_avg_pool2d(x, (3, 4)), IMAGES),
    "max pool to 3, 1": (lambda x: F.adaptive_max_pool2d(x, (3, 1)), IMAGES),
    "transposed": (lambda x: paddle.transpose(x, [2, 0, 1]) + 1, A),
    "transposed, contiguous": (lambda x: F.relu(x.transpose([1, 0, 2])), A),
    "concat": (lambda x: paddle.concat([x, x], axis=-1), A),
    "mean of all": (paddle.mean, A),
    "mean": (lambda x: paddle.mean(x, axis=[0, -1], keepdim=True), A),
    "mean, last axis first": (lambda x: paddle.mean(x, axis=[-1, 0]), A),
    "sum": (lambda x: paddle.sum(x, axis=1), A),
    "sum of int64": (paddle.sum, np.arange(5)),
    "cast": (lambda x: paddle.cast(x, "int32"), A),
    "booleans added": (lambda x: (x > 0) + (x > 1), A),
    "booleans ordered": (lambda x: (x > 0) < (x > -1), A),
    "booleans equal": (lambda x: (x > 0) == (x > 1), A),
    "compared in place": (lambda x: (x + 0).less_than_(x * 2), A),
    "turned round": (lambda x: x[:, ::-1] + 0, A),
    "set turned round": (_set_turned_round, A),
    "slice": (lambda x: x[:, 1:, ::2] + 0, A),
    "index": (lambda x: x[:, [0, 2]], A),
    "reshape": (lambda x: x.reshape([6, 4]) + x.reshape([6, 4]), A),
    "expand": (lambda x: x.expand([5, 3, 4]) + 1, B),
    "split": (lambda x: paddle.split(x, 2, axis=2)[1] * 2, A),
    "no elements": (lambda x: F.relu(x[:0]), A),
    "in place": (_changed_in_place, A),
    "layer_norm": (lambda x: F.layer_norm(x, [4]), A),
    "topk": (lambda x: paddle.topk(x, 2)[0], A),
}


def cases() -> dict[str, object]:
    """Return per case whether the device's result is close to the CPU's, and its place."""
    outcomes = {}
    for name, (function, *arrays) in CASES.items():
        results = {}
        for device in ("cpu", DEVICE):
            paddle.set_device(device)
            result = function(*map(paddle.to_tensor, arrays))
            results[device] = result.numpy()
        on_cpu, on_device = results["cpu"], results[DEVICE]
        alike = on_cpu.shape == on_device.shape and on_cpu.dtype == on_device.dtype
        close = alike and np.allclose(on_device, on_cpu, atol=1e-5)
        outcomes[name] = [bool(close), str(result.place)]
    return outcomes


def tutorial() -> dict[str, object]:
    """Run the lines of Paddle's tutorial of custom devices."""
    paddle.set_device(DEVICE)
    x = paddle.to_tensor([1])
    y = paddle.to_tensor([1.0])
    return {"devices": paddle.device.get_all_custom_device_type(), "x": str(x), "sum": str(x + x), "real": str(y + y)}


class _LeNet(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2D(1, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2D(2, 2),
            nn.Conv2D(6, 16, 5), nn.ReLU(), nn.MaxPool2D(2, 2),
        )  # fmt: skip
        self.classes = nn.Sequential(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 10))

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return self.classes(paddle.flatten(self.features(x), 1))


def _trained(device: str) -> list[float]:
    paddle.set_device(device)
    random = np.random.default_rng(0)
    net = _LeNet()
    for parameter in net.parameters():
        parameter.set_value((random.standard_normal(parameter.shape) * 0.1).astype(np.float32))
    images = paddle.to_tensor(random.standard_normal((4, 1, 28, 28)).astype(np.float32))
    optimizer = paddle.optimizer.Adam(parameters=net.parameters())
    losses = []
    for _ in range(3):
        loss = F.cross_entropy(net(images), paddle.to_tensor([1, 2, 3, 4]))
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        losses.append(float(loss))
    return losses


def training() -> dict[str, object]:
    """Return the losses of three training steps on the CPU and the device."""
    return {device: _trained(device) for device in ("cpu", DEVICE)}


def threads() -> dict[str, object]:
    """Check sums on four threads, streams, events, copies between devices and memory."""
    wrong = []

    def work(seed: int) -> None:
        paddle.set_device(DEVICE)
        random = np.random.default_rng(seed)
        for turn in range(50):
            values = random.standard_normal((3, 4 + turn % 5)).astype(np.float32)
            tensor = paddle.to_tensor(values, place=paddle.CustomPlace(DEVICE, 0))
            if not np.array_equal((tensor + tensor).numpy(), values + values):
                wrong.append((seed, turn))

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    paddle.set_device(DEVICE)
    event = paddle.device.Stream(f"{DEVICE}:0").record_event()
    event.synchronize()
    copied = paddle.ones([2])._copy_to(paddle.CustomPlace(DEVICE, 1), True)
    return {
        "wrong": wrong,
        "event": bool(event.query()),
        "second": [str(copied.place), copied.numpy().tolist()],
        "allocated": paddle.device.memory_allocated(f"{DEVICE}:0"),
        "bfloat16": paddle.amp.is_bfloat16_supported(),
    }


def failures() -> dict[str, object]:
    """Return the exceptions of a failing driver and of a missing device index."""
    raised = {}

    def record(name: str, function: object) -> None:
        try:
            function()
        except Exception as error:  # noqa: BLE001  the test checks the exception's type
            raised[name] = [type(error).__name__, str(error)]

    def add() -> None:
        x = paddle.to_tensor([1.0], place=paddle.CustomPlace(DEVICE, 0))
        (x + x).numpy()

    record("sum", add)
    record("device", lambda: paddle.set_device(f"{DEVICE}:7"))
    return raised


def no_room() -> dict[str, object]:
    """Return the exception of an allocation beyond the device's memory."""
    paddle.set_device(DEVICE)
    try:
        paddle.empty([1 << 28, 2], dtype="float32")
    except Exception as error:  # noqa: BLE001  as above
        return {"raised": type(error).__name__, "said": str(error)}
    return {}


def room_again() -> dict[str, object]:
    """Allocate a tensor that fits only if Paddle releases its cached memory."""
    paddle.set_device(DEVICE)
    cached = paddle.empty([1200, 1 << 17], dtype="float32")  # half a MiB per row; the device has one GiB
    del cached
    return {"shape": list(paddle.empty([1800, 1 << 17], dtype="float32").shape)}


def fork() -> dict[str, object]:
    """Return the error in a forked child that uses its parent's device, and its exit status."""
    paddle.set_device(DEVICE)
    x = paddle.ones([2]) + 1
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            (x + x).numpy()
        except RuntimeError as error:
            os.write(writing, str(error).encode())
        sys.exit()
    os.close(writing)
    with os.fdopen(reading) as pipe:
        message = pipe.read()
    return {"said": message, "status": os.waitpid(child, 0)[1], "parent": (x + x).numpy().tolist()}


def called(names: list[str]) -> dict[str, object]:
    """Call functions and return their results by name."""
    if names[0] == "by_definition":
        from by_definition import install  # in this file's folder

        install()
        names = names[1:]
    return {name: globals()[name]() for name in names}


def in_child(variables: dict[str, str], names: list[str]) -> tuple[dict[str, object] | None, str]:
    """Call functions in a forked process; return their results (None on failure) and standard error."""
    with tempfile.TemporaryFile("w+") as results, tempfile.TemporaryFile("w+") as errors:
        child = os.fork()
        if not child:
            os.dup2(errors.fileno(), 2)
            os.environ.update(variables)
            json.dump(called(names), results)
            results.flush()
            sys.exit()
        failed = os.waitpid(child, 0)[1]
        results.seek(0)
        errors.seek(0)
        return None if failed else json.load(results), errors.read()


if __name__ == "__main__":
    print(json.dumps([in_child(variables, functions) for variables, functions in json.loads(sys.argv[1])]))
