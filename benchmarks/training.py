"""Training of PyTorch models through torch.compile: gradients, losses, coverage and time beside PyTorch's own.

    python benchmarks/training.py [MODEL...] [-d fake_npu] [--steps 20] [--json FILE]

Two copies of each model get the same seeds and data, and learn random targets by AdamW; the optimizer itself runs in
PyTorch. Steps take turns, and times are medians. PyTorch captures LSTM and GRU because this script tells it to.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1]))

import nnadapter as nna
from benchmarks.choosing import named
from benchmarks.models.pytorch_models import Made, models
from benchmarks.pytorch import tensors_of
from benchmarks.timing import table

NAMES = (
    "ResNet", "MobileNetV3", "DenseNet", "DeepLab", "U-Net", "LSTM", "GRU", "graph net", "MLP mixer", "BERT", "GPT-2",
    "Llama", "T5", "Whisper", "ViT", "CLIP",
)  # fmt: skip
"""What is trained where no names are given."""
_HEAD = (
    "model",
    "gradients apart",
    "loss",
    "loss apart",
    "forward FLOPs",
    "backward FLOPs",
    "stayed",
    "step, ms",
    "over PyTorch",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What came of one model."""

    model: str
    gradients: float = 0.0
    """The largest difference of a gradient in the first step, as a share of the largest gradient of all."""
    loss: float = 0.0
    """After all steps."""
    apart: float = 0.0
    """Its difference from PyTorch's, as a share of it."""
    forward: float = 0.0
    """The share of FLOPs on the device, 0 to 1."""
    backward: float = 0.0
    stayed: int = 0
    """Operators that stayed in PyTorch."""
    seconds: float = 0.0
    """Of a step."""
    ratio: float = 0.0
    """The same over PyTorch's."""
    failure: str = ""


def main() -> None:
    """Print a row for each model, as it comes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="MODEL")
    parser.add_argument("-d", "--device", default="fake_npu")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--json", type=Path, help="write the rows here as well")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch._dynamo.config.allow_rnn = True
    known, rows = models(), []
    names = named(parser, arguments.names, known) if arguments.names else NAMES
    print(table(_HEAD, []))
    for name in names:
        rows.append(row_of(name, known[name](), arguments.device, arguments.steps))
        print("| " + " | ".join(_shown(rows[-1])) + " |", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=2))


def row_of(name: str, made: Made, device: str, steps: int) -> Row:
    """Train one model both ways."""
    torch._dynamo.reset()
    module, inputs = made
    module.train()
    twin = copy.deepcopy(module)
    run = torch.compile(module, backend=nna.torch.nnadapter, options={"devices": [device], "fallback": "allow"})
    try:
        learners = [Learner(module, run, inputs), Learner(twin, twin, inputs)]
        first = [learner.gradients() for learner in learners]
        losses, seconds = zip(*(_steps(learners, number) for number in range(steps)), strict=True)
    except Exception as failure:  # noqa: BLE001  a row says so
        said = next(iter(str(failure).strip().splitlines()), "")
        return Row(model=name, failure=f"{type(failure).__name__}: {said[:120]}")
    graphs = nna.torch.report(run).graphs
    taken, whole = losses[-1]
    ours, theirs = (statistics.median(each) for each in zip(*seconds, strict=True))
    return Row(
        model=name,
        gradients=_apart(*first),
        loss=taken,
        apart=abs(taken - whole) / abs(whole),
        forward=_share(graphs, "forward"),
        backward=_share(graphs, "backward"),
        stayed=sum(graph.operators - graph.delegated for graph in graphs),
        seconds=ours,
        ratio=ours / theirs,
    )


class Learner:
    """A model that learns random targets, and its optimizer."""

    def __init__(self, module: nn.Module, run: Callable[..., Any], inputs: dict[str, Any]) -> None:
        self._module, self._run, self._inputs = module, run, inputs
        self._optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)

    def loss(self, seed: int) -> Tensor:
        """How far all results are from targets of chance; the seed is that of dropout."""
        torch.manual_seed(seed)
        results = [each for each in tensors_of(self._run(**self._inputs)) if each.requires_grad]
        chance = torch.Generator().manual_seed(1)
        return torch.stack(
            [(each - torch.randn(each.shape, generator=chance)).square().mean() for each in results]
        ).sum()

    def gradients(self) -> list[Tensor]:
        """The gradients of all parameters, before any step."""
        self.loss(0).backward()
        return [each.grad.clone() for each in self._module.parameters() if each.grad is not None]

    def step(self, seed: int) -> float:
        """Take a step, and return the loss before it."""
        self._optimizer.zero_grad()
        loss = self.loss(seed)
        loss.backward()
        self._optimizer.step()
        return loss.item()


def _steps(learners: Sequence[Learner], number: int) -> tuple[list[float], list[float]]:
    """A step of each: losses and seconds."""
    losses, seconds = [], []
    for learner in learners:
        began = time.perf_counter()
        losses.append(learner.step(number))
        seconds.append(time.perf_counter() - began)
    return losses, seconds


def _apart(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    scale = max(float(each.abs().max()) for each in expected)
    return max(float((one - other).abs().max()) for one, other in zip(found, expected, strict=True)) / scale


def _share(graphs: Sequence[Any], kind: str) -> float:
    """The share of FLOPs on the device, of graphs of a kind."""
    counts = [graph.flops for graph in graphs if graph.kind == kind]
    return sum(taken for taken, _ in counts) / max(sum(whole for _, whole in counts), 1)


def _shown(row: Row) -> list[str]:
    if row.failure:
        return [row.model, row.failure, *[""] * 7]
    apart = (f"{row.gradients:.1e}", f"{row.loss:.4f}", f"{row.apart:.1e}")
    return [
        row.model,
        *apart,
        f"{row.forward:.1%}",
        f"{row.backward:.1%}",
        str(row.stayed),
        f"{1e3 * row.seconds:.1f}",
        f"{row.ratio:.1f}",
    ]


if __name__ == "__main__":
    main()
