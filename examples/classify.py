"""Run the ResNet-50 of the package onnx on a device, and print its time and some outputs.

    python examples/classify.py [-d DEVICE] [--input ones|random] [--random-weights] [--repeat N]

All weights of that network are equal, so all classes have the same score; `--random-weights` draws them from a seeded
generator.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from time import perf_counter

import numpy as np
import onnx
from onnx import numpy_helper

import nnadapter as nna

SEED = 50
WARM_UP = 2


def main() -> None:
    """Load, run and print."""
    chosen = parse_arguments()
    model = load_resnet50()
    if chosen.random_weights:
        draw_weights(model)
    with nna.InferenceSession(model, devices=chosen.device) as session:
        (declared,) = session.get_inputs()
        feed = {declared.name: make_input(chosen.input, declared.shape)}
        seconds = average_seconds(session, feed, chosen.repeat)
        probabilities = session.run(None, feed)[0].ravel()
        coverage = session.report().coverage
    print(f"{chosen.device} runs {coverage.nodes:.1%} of nodes, {coverage.flops:.1%} of FLOPs")
    print(f"run avg time is {seconds * 1e3:.3f} ms")
    for index in range(0, probabilities.size, 100):
        print(f"{index} : {probabilities[index]:.6g}")


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Run ResNet-50 on a device.")
    parser.add_argument("-d", "--device", default="fake_npu", help="what `nnadapter devices` lists (default: fake_npu)")
    parser.add_argument("--input", choices=("ones", "random"), default="ones", help="contents of the picture")
    parser.add_argument("--random-weights", action="store_true", help="draw weights instead of using constant ones")
    parser.add_argument("--repeat", type=int, default=10, help="runs to average over (default: 10)")
    return parser.parse_args()


def load_resnet50() -> onnx.ModelProto:
    """Return the model: 176 nodes, and as many nodes again that create constant weights."""
    return onnx.load(Path(onnx.__file__).parent / "backend/test/data/light/light_resnet50.onnx")


def draw_weights(model: onnx.ModelProto) -> None:
    """Replace every ConstantOfShape and its shape by a seeded random array."""
    generator = np.random.default_rng(SEED)
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    declared = {value.name: value for value in model.graph.input}
    for node in [node for node in model.graph.node if node.op_type == "ConstantOfShape"]:
        (shape,) = node.input
        array = draw(generator, tuple(numpy_helper.to_array(tensors[shape])))
        tensors[shape].CopyFrom(numpy_helper.from_array(array, node.output[0]))
        model.graph.node.remove(node)
        model.graph.input.remove(declared[shape])


def draw(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Return weights that keep the magnitude of activations; vectors are positive, because some are variances."""
    if len(shape) < 2:
        return generator.uniform(0.5, 1.5, shape).astype(np.float32)
    return generator.normal(0.0, np.prod(shape[1:]) ** -0.5, shape).astype(np.float32)


def make_input(contents: str, shape: list[int]) -> np.ndarray:
    """Return the image, float32 `[N, C, H, W]`."""
    if contents == "ones":
        return np.ones(shape, np.float32)
    return np.random.default_rng(SEED).random(shape, dtype=np.float32)


def average_seconds(session: nna.InferenceSession, feed: dict[str, np.ndarray], repeat: int) -> float:
    """Return the average duration of a run, after a warm-up."""
    for _ in range(WARM_UP):
        session.run(None, feed)
    started = perf_counter()
    for _ in range(repeat):
        session.run(None, feed)
    return (perf_counter() - started) / repeat


if __name__ == "__main__":
    main()
