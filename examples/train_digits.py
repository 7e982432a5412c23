"""Train a small convolutional network on scikit-learn's digits, on a device, and read digits with it.

    python examples/train_digits.py [-d DEVICE[,DEVICE]] [--epochs N] [--compare] [--save FILE] [--picture FILE]

The training loop is PyTorch's usual one; `torch.compile` passes forward and backward graphs to the device. Finally the
network is exported to ONNX, and an `InferenceSession` on the same device reads the test digits. With `--compare`,
PyTorch trains the same network from the same seed, and both are compared.

Needs: pip install '.[torch,demo]'. Nothing is downloaded: the 1,797 digits are part of scikit-learn.
"""

from __future__ import annotations

import argparse
import copy
import io
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import torch
from drawing_digits import draw_training
from sklearn.datasets import load_digits
from torch import Tensor, nn

import nnadapter as nna

SEED, BATCH, KEPT_ASIDE = 4, 64, 360


@dataclass(frozen=True, slots=True)
class Digits:
    """Images float32[N, 1, 8, 8] from 0 to 1, and their digits, int64[N]."""

    pictures: Tensor
    answers: Tensor


def main() -> None:
    """Train, save, read and draw; exit with a message if a device is missing."""
    chosen = parse_arguments()
    try:
        work(chosen)
    except (nna.errors.DeviceNotFoundError, nna.errors.DeviceUnavailableError, nna.errors.MissingExtraError) as error:
        sys.exit(str(error))


def work(chosen: argparse.Namespace) -> None:
    """Run with the command-line options."""
    training_set, unknown = load()
    torch.manual_seed(SEED)
    network = build_network()
    twin = copy.deepcopy(network)
    # Equivalent to backend="nnadapter", regardless of installed packages.
    compiled = torch.compile(network, backend=nna.torch.nnadapter, options={"devices": chosen.device.split(",")})
    losses, seconds = train(compiled, network, training_set, chosen.epochs)
    print(describe(compiled))
    print(f"a step takes {1e3 * median(seconds):.1f} ms")
    if chosen.compare:
        compare(losses, seconds, *train(twin, twin, training_set, chosen.epochs, tell=False))
    answers = read(network, chosen, unknown)
    print(f"Accuracy of the saved network on {len(answers)} digits it never saw = {share(answers, unknown):.4f}")
    if chosen.picture:
        draw_training(losses, unknown.pictures.numpy()[:, 0], answers, unknown.answers.numpy()).save(chosen.picture)


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Train a small network on digits, on a device.")
    parser.add_argument(
        "-d", "--device", default="fake_npu", help="as `nnadapter devices` lists it (default: fake_npu)"
    )
    parser.add_argument("--epochs", type=int, default=8, help="how often all digits are seen (default: 8)")
    parser.add_argument("--compare", action="store_true", help="train in PyTorch as well, from the same seed")
    parser.add_argument("--save", type=Path, help="where the network is written as ONNX (default: nowhere)")
    parser.add_argument("--picture", type=Path, help="where the curve of losses and some answers are drawn")
    return parser.parse_args()


def load() -> tuple[Digits, Digits]:
    """Return training and test digits, randomly chosen."""
    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(SEED))
    pictures = torch.tensor(data.images, dtype=torch.float32)[order].unsqueeze(1) / 16
    answers = torch.tensor(data.target)[order]
    test_part, training_part = slice(KEPT_ASIDE), slice(KEPT_ASIDE, None)
    return Digits(pictures[training_part], answers[training_part]), Digits(pictures[test_part], answers[test_part])


def build_network() -> nn.Module:
    """Return a network of two convolutions with batch normalization and pooling, and one matrix."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(128, 10)),
    )


def train(
    run: Callable[[Tensor], Tensor], network: nn.Module, digits: Digits, epochs: int, *, tell: bool = True
) -> tuple[list[float], list[float]]:
    """Return loss and seconds of every step; `run` is the compiled `network`."""
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3)
    losses, seconds = [], []
    for epoch in range(epochs):
        right = []
        for batch in batches(digits, epoch):
            started = perf_counter()
            optimizer.zero_grad()
            scores = run(batch.pictures)
            loss = nn.functional.cross_entropy(scores, batch.answers)
            loss.backward()
            optimizer.step()
            seconds.append(perf_counter() - started)
            losses.append(loss.item())
            right.append(share(scores.argmax(1).numpy(), batch))
        if tell:
            recent = np.mean(losses[-len(right) :])
            print(f"Epoch {epoch}, Loss = {recent:.4f}, Accuracy = {np.mean(right):.4f}")
    return losses, seconds


def batches(digits: Digits, epoch: int) -> Iterator[Digits]:
    """Yield batches in random order, without an incomplete last one."""
    order = torch.randperm(len(digits.answers), generator=torch.Generator().manual_seed(epoch))
    for start in range(0, len(order) - BATCH + 1, BATCH):
        some = order[start : start + BATCH]
        yield Digits(digits.pictures[some], digits.answers[some])


def share(answers: np.ndarray, digits: Digits) -> float:
    """Return the share of correct answers, 0 to 1."""
    return float((answers == digits.answers.numpy()).mean())


def describe(compiled: Callable[[Tensor], Tensor]) -> str:
    """Return the share of each graph on accelerators."""
    lines = []
    for graph in nna.torch.report(compiled).graphs:
        accelerated, total = graph.flops
        lines.append(f"{graph.kind}: {accelerated / max(total, 1):.1%} of FLOPs off the CPU")
    return "\n".join(lines)


def compare(losses: list[float], seconds: list[float], other_losses: list[float], other_seconds: list[float]) -> None:
    """Compare the device with PyTorch."""
    largest_gap = max(abs(loss - other) for loss, other in zip(losses[:100], other_losses, strict=False))
    ratio = median(seconds) / median(other_seconds)
    print(f"PyTorch by itself: losses of the first {min(len(losses), 100)} steps are at most {largest_gap:.1e} apart")
    print(f"a step takes {ratio:.1f} times as long as there")


def read(network: nn.Module, chosen: argparse.Namespace, digits: Digits) -> np.ndarray:
    """Return answers int64[N] of the network as an ONNX model, on the same devices."""
    written = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings and logs of the exporter
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        program = torch.onnx.export(
            network.eval(), (digits.pictures,), dynamic_shapes=({0: "batch"},), dynamo=True, verbose=False
        )
    program.save(written)
    if chosen.save:
        chosen.save.write_bytes(written.getvalue())
    with nna.InferenceSession(written.getvalue(), devices=chosen.device.split(",")) as session:
        (scores,) = session.run(None, {session.get_inputs()[0].name: digits.pictures.numpy()})
    answers: np.ndarray = scores.argmax(1)
    return answers


if __name__ == "__main__":
    main()
