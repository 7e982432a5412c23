"""A session on XLA compared with JAX itself, for ResNet-50 and BERT written in `jax.numpy` with the same weights.

JAX's side is idiomatic: pictures as [N, H, W, C], weights as arguments of one jitted function that is compiled ahead of
time, the result copied to numpy. Both take turns. Compiling is timed once for each.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
from onnx import numpy_helper

import nnadapter as nna
from benchmarks.harness import Results, interleaved
from benchmarks.models.encoders import bert
from benchmarks.models.language_models import Sizes
from benchmarks.models.quantized_models import resnet

Feed = Mapping[str, np.ndarray]
Network = Callable[[Feed, Sequence[Any]], Any]
"""Inputs and weights in the model's order -> the result."""

_BERT = Sizes(layers=12, width=768, heads=12, words=30_522, positions=512)
_BLOCKS = (3, 4, 6, 3)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("-d", "--device", default="xla:cpu")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--length", type=int, default=128)


def run(options: argparse.Namespace, results: Results) -> None:
    """Measure both networks."""
    generator = np.random.default_rng(0)
    picture = generator.standard_normal((1, 3, 224, 224)).astype(np.float32)
    tokens = {
        "input_ids": generator.integers(0, _BERT.words, (1, options.length)),
        "attention_mask": np.ones((1, options.length), np.int64),
        "token_type_ids": np.zeros((1, options.length), np.int64),
    }
    measure = partial(_measure, options.device, options.rounds)
    table = results.table()
    table.add(measure("ResNet-50", resnet(_BLOCKS, is_deep=True), {"x": picture}, _channels_last, _residual))
    table.add(measure("BERT", bert(_BERT, options.length), tokens, _unchanged, _encoder))


def _measure(
    device: str,
    rounds: int,
    name: str,
    model: onnx.ModelProto,
    feed: Feed,
    order: Callable[[np.ndarray], np.ndarray],
    network: Network,
) -> dict[str, Any]:
    """Return the medians of one network's runs.

    Args:
        device: one of XLA's.
        rounds: turns of each.
        name: of the network.
        model: as ONNX.
        feed: for both.
        order: transposes weights and pictures for JAX's side.
        network: the same in `jax.numpy`.
    """
    weights = [numpy_helper.to_array(tensor) for tensor in model.graph.initializer]
    kind, _, number = device.removeprefix("xla:").partition(".")
    place = jax.devices(kind)[int(number or 0)]
    reals = [jax.device_put(order(weight), place) for weight in weights if weight.dtype == np.float32]
    inputs = {key: order(value) if value.ndim == 4 else value.astype(np.int32) for key, value in feed.items()}
    started = time.perf_counter()
    with jax.default_device(place), jax.default_matmul_precision("float32"):
        compiled = jax.jit(network).lower(inputs, reals).compile()
    compiling = time.perf_counter() - started
    started = time.perf_counter()
    with nna.InferenceSession(model, devices=device, options=nna.Options(fallback="allow")) as session:
        ours = session.run(None, feed)[0]
        making = time.perf_counter() - started
        theirs = np.asarray(compiled(inputs, reals))
        candidates = {
            "jax": lambda: np.asarray(compiled(inputs, reals)),
            "session": partial(session.run, None, feed),
        }
        seconds = interleaved(candidates, rounds)
        nodes = session.report().coverage.nodes
    error = float(np.abs(ours - theirs).max() / np.abs(theirs).max())
    return {
        "network": name,
        "off the CPU %": 100 * nodes,
        "JAX ms": 1e3 * seconds["jax"],
        "session ms": 1e3 * seconds["session"],
        "ratio": seconds["session"] / seconds["jax"],
        "error": error,
        "JAX compiles s": compiling,
        "session is created s": making,
    }


def _channels_last(array: np.ndarray) -> np.ndarray:
    """[O, I, H, W] as [H, W, I, O]; a picture has as many axes, and one of its own is first."""
    if array.ndim != 4:
        return array
    picture = array.shape[:2] == (1, 3)
    return np.ascontiguousarray(array.transpose(0, 2, 3, 1) if picture else array.transpose(2, 3, 1, 0))


def _unchanged(array: np.ndarray) -> np.ndarray:
    return array


def _residual(inputs: Any, weights: Sequence[Any]) -> Any:
    """ResNet-50, as `resnet` writes it."""
    remaining = iter(weights)

    def convolved(x: Any, stride: int = 1) -> Any:
        kernel, bias = next(remaining), next(remaining)
        pad = kernel.shape[0] // 2
        numbers = ("NHWC", "HWIO", "NHWC")
        return (
            jax.lax.conv_general_dilated(x, kernel, (stride,) * 2, [(pad, pad)] * 2, dimension_numbers=numbers) + bias
        )

    x = jax.nn.relu(convolved(inputs["x"], 2))
    around = [(0, 0), (1, 1), (1, 1), (0, 0)]
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), around)
    channels = 64
    for level, count in enumerate(_BLOCKS):
        for number in range(count):
            stride, width = 2 if level and not number else 1, 64 << level
            inner = jax.nn.relu(convolved(x))
            inner = convolved(jax.nn.relu(convolved(inner, stride)))
            if (channels, stride) != (4 * width, 1):
                x, channels = convolved(x, stride), 4 * width
            x = jax.nn.relu(inner + x)
    kernel, bias = next(remaining), next(remaining)
    return x.mean((1, 2)) @ kernel + bias


def _encoder(inputs: Any, weights: Sequence[Any]) -> Any:
    """BERT, as `bert` writes it."""
    remaining = iter(weights)
    length = inputs["input_ids"].shape[1]

    def linear(x: Any) -> Any:
        return x @ next(remaining) + next(remaining)

    def normalized(x: Any) -> Any:
        centered = x - x.mean(-1, keepdims=True)
        scaled = centered / jnp.sqrt((centered**2).mean(-1, keepdims=True) + _EPSILON)
        return scaled * next(remaining) + next(remaining)

    def heads(x: Any) -> Any:
        return x.reshape(1, length, _BERT.heads, -1).transpose(0, 2, 1, 3)

    words, types, positions = next(remaining), next(remaining), next(remaining)
    x = normalized(words[inputs["input_ids"]] + types[inputs["token_type_ids"]] + positions[:length])
    next(remaining), next(remaining)  # constants of the mask
    hidden = (1 - inputs["attention_mask"][:, None, None].astype(jnp.float32)) * np.finfo(np.float32).min
    for _ in range(_BERT.layers):
        query, key, value = (heads(linear(x)) for _ in range(3))
        scores = query @ key.swapaxes(-1, -2) / next(remaining) + hidden
        mixed = (jax.nn.softmax(scores, -1) @ value).transpose(0, 2, 1, 3).reshape(1, length, -1)
        x = normalized(linear(mixed) + x)
        wide = linear(x)
        for _ in range(3):
            next(remaining)  # constants of the GELU
        x = normalized(linear(jax.nn.gelu(wide, approximate=False)) + x)
    return x


_EPSILON = 1e-5
