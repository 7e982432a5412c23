"""Training of PyTorch models through torch.compile: gradients, losses, coverage and time compared with PyTorch's own.

Two copies of each model get the same seeds and data, and learn random targets by AdamW. The optimizer itself runs in
PyTorch. Steps take turns, and times are medians. PyTorch captures LSTM and GRU because `allow_rnn` is set.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import nnadapter as nna
from benchmarks.harness import Results, seconds_of, select
from benchmarks.models.pytorch_models import Made, models
from benchmarks.pytorch import tensors_of

_NAMES = (
    "ResNet", "MobileNetV3", "DenseNet", "DeepLab", "U-Net", "LSTM", "GRU", "graph net", "MLP mixer", "BERT", "GPT-2",
    "Llama", "T5", "Whisper", "ViT", "CLIP",
)  # fmt: skip
"""Models that are trained by default."""
_COLUMNS = (
    "gradient error",
    "loss",
    "loss error",
    "forward FLOPs %",
    "backward FLOPs %",
    "operators in PyTorch",
    "step ms",
    "over PyTorch",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("names", nargs="*", metavar="MODEL")
    parser.add_argument("-d", "--device", default="fake_npu")
    parser.add_argument("--steps", type=int, default=20)


def run(options: argparse.Namespace, results: Results) -> None:
    """Train every model."""
    warnings.simplefilter("ignore")
    torch._dynamo.config.allow_rnn = True
    model_by_name, table = models(), results.table()
    for name in select(options.names, model_by_name) if options.names else _NAMES:
        table.add(_row(name, model_by_name[name](), options.device, options.steps))
    failed = [row["model"] for row in table.rows if row["failure"]]
    if failed:
        results.fail(f"{', '.join(failed)} do not finish")


def _row(name: str, factory: Made, device: str, steps: int) -> dict[str, Any]:
    """Train one model both ways.

    Errors are relative: of gradients in the first step to the largest of all, of the last loss to PyTorch's.
    """
    row: dict[str, Any] = {"model": name, **dict.fromkeys(_COLUMNS), "failure": ""}
    torch._dynamo.reset()
    module, inputs = factory
    module.train()
    twin = copy.deepcopy(module)
    call = torch.compile(module, backend=nna.torch.nnadapter, options={"devices": [device], "fallback": "allow"})
    try:
        learners = [Learner(module, call, inputs), Learner(twin, twin, inputs)]
        first = [learner.gradients() for learner in learners]
        losses, seconds = zip(*(_steps(learners, number) for number in range(steps)), strict=True)
    except Exception as failure:  # noqa: BLE001  a row has it
        message = next(iter(str(failure).strip().splitlines()), "")
        return {**row, "failure": f"{type(failure).__name__}: {message[:120]}"}
    graphs = nna.torch.report(call).graphs
    loss, expected = losses[-1]
    ours, peer = (statistics.median(durations) for durations in zip(*seconds, strict=True))
    return row | {
        "gradient error": _gradient_error(*first),
        "loss": loss,
        "loss error": abs(loss - expected) / abs(expected),
        "forward FLOPs %": 100 * _share(graphs, "forward"),
        "backward FLOPs %": 100 * _share(graphs, "backward"),
        "operators in PyTorch": sum(graph.operators - graph.delegated for graph in graphs),
        "step ms": 1e3 * ours,
        "over PyTorch": ours / peer,
    }


class Learner:
    """A model that learns random targets, and its optimizer."""

    def __init__(self, module: nn.Module, run: Callable[..., Any], inputs: dict[str, Any]) -> None:
        self._module, self._run, self._inputs = module, run, inputs
        self._optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)

    def loss(self, seed: int) -> Tensor:
        """Return the loss of all results against random targets; the seed is for dropout."""
        torch.manual_seed(seed)
        results = [result for result in tensors_of(self._run(**self._inputs)) if result.requires_grad]
        chance = torch.Generator().manual_seed(1)
        return torch.stack(
            [(result - torch.randn(result.shape, generator=chance)).square().mean() for result in results]
        ).sum()

    def gradients(self) -> list[Tensor]:
        """Return the gradients of all parameters, before any step."""
        self.loss(0).backward()
        return [parameter.grad.clone() for parameter in self._module.parameters() if parameter.grad is not None]

    def step(self, seed: int) -> float:
        """Take a step, and return the loss before it."""
        self._optimizer.zero_grad()
        loss = self.loss(seed)
        loss.backward()
        self._optimizer.step()
        return loss.item()


def _steps(learners: Sequence[Learner], number: int) -> tuple[list[float], list[float]]:
    """Return the losses and seconds of one step of each."""
    losses: list[float] = []
    seconds = [seconds_of(lambda learner=learner: losses.append(learner.step(number))) for learner in learners]  # type: ignore[misc]
    return losses, seconds


def _gradient_error(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    scale = max(float(gradient.abs().max()) for gradient in expected)
    return max(float((result - other).abs().max()) for result, other in zip(actual, expected, strict=True)) / scale


def _share(graphs: Sequence[Any], kind: str) -> float:
    """Return the share of FLOPs on the device, of graphs of a kind."""
    counts = [graph.flops for graph in graphs if graph.kind == kind]
    return sum(accelerated for accelerated, _ in counts) / max(sum(total for _, total in counts), 1)
