"""PyTorch models whose sizes change from call to call: what is captured and compiled, and whether it is right.

    python benchmarks/pytorch_sizes.py [MODEL...] [-d fake_npu]

Every model is called with five shapes, in three ways: torch.compile(dynamic=True), dimensions marked by `mark_dynamic`,
and PyTorch's automatic ones, where the first shape is what it is. `generate` lets a Llama write on with a growing cache
and with one of fixed size. `captured` and `compiled` are counted in the calls behind the third, which should add none.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

sys.path.insert(0, str(Path(__file__).parents[1]))

import nnadapter as nna
from benchmarks.choosing import named
from benchmarks.models.pytorch_models import models, tokens
from benchmarks.pytorch import apart, tensors_of
from benchmarks.timing import table

_SHAPES = ((2, 12), (3, 17), (5, 30), (4, 9), (7, 21))
"""Rows and length."""
_KNOWN = 3
"""After so many calls all has been captured."""
Inputs = dict[str, torch.Tensor]
_TEXT = {"batch and length": lambda rows, length: {"input_ids": tokens(rows, length)}}
_MAKERS: Mapping[str, Mapping[str, Callable[[int, int], Inputs]]] = {
    "BERT": _TEXT,
    "GPT-2": {"length": lambda _, length: {"input_ids": tokens(2, length)}, **_TEXT},
    "Llama": {"batch": lambda rows, _: {"input_ids": tokens(rows, 12)}, **_TEXT},
    "T5": {
        "both lengths": lambda _, length: {
            "input_ids": tokens(2, length),
            "decoder_input_ids": tokens(2, length // 2 + 2),
        }
    },
    "ViT": {"batch": lambda rows, _: {"pixel_values": torch.randn(rows, 3, 32, 32)}},
    "U-Net": {"batch and size": lambda rows, length: {"x": torch.randn(rows, 3, 2 * length, 4 * length)}},
    "ResNet": {"batch and size": lambda rows, length: {"x": torch.randn(rows, 3, 32 + length, 32 + 3 * length)}},
    "MLP mixer": {"batch": lambda rows, _: {"x": torch.randn(rows, 3, 32, 32)}},
    "LSTM": {"batch and length": lambda rows, length: {"x": tokens(rows, length)}},
}
"""Model -> what is open -> what makes inputs of rows and length."""
_WAYS = ("dynamic=True", "mark_dynamic", "automatic")
_HEAD = ("model", "open", "way", "graphs", "sessions", "plans", "captured", "compiled", "error")


def main() -> None:
    """Print a row for each model and way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="MODEL")
    parser.add_argument("-d", "--device", default="fake_npu")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch._dynamo.config.allow_rnn = True
    names = named(parser, arguments.names, (*_MAKERS, "generate"))
    print(table(_HEAD, []))
    for name in names:
        cases = _generating(arguments.device) if name == "generate" else _calling(name, arguments.device)
        for row in cases:
            print("| " + " | ".join(map(str, row)) + " |", flush=True)


def _calling(name: str, device: str) -> Sequence[Sequence[object]]:
    return [
        [name, what, way, *_called(name, make, way, device)] for what, make in _MAKERS[name].items() for way in _WAYS
    ]


def _called(name: str, make: Callable[[int, int], Inputs], way: str, device: str) -> list[object]:
    torch._dynamo.reset()
    module, _ = models()[name]()
    run = _compiled(module, device, dynamic=True if way == "dynamic=True" else None)
    counts, errors = [], []
    for shape in _SHAPES:
        inputs = make(*shape)
        if way == "mark_dynamic":
            _mark(inputs, make)
        with torch.no_grad():
            errors.append(apart(tensors_of(run(**inputs)), tensors_of(module(**inputs))))
        counts.append(_counts(run))
    return _row(counts, max(errors))


def _mark(inputs: Inputs, make: Callable[[int, int], Inputs]) -> None:
    """Mark the dimensions that differ between two shapes."""
    other = make(*_SHAPES[-1])
    first = make(*_SHAPES[0])
    for name, value in inputs.items():
        for axis in range(value.dim()):
            if first[name].shape[axis] != other[name].shape[axis]:
                torch._dynamo.mark_dynamic(value, axis)


def _generating(device: str) -> list[list[object]]:
    return [["Llama", cache, "generate", *_generated(cache, device)] for cache in ("dynamic", "static")]


def _generated(cache: str, device: str) -> list[object]:
    """Two texts written on, the second longer: tokens are compared, and what the second captures and compiles."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    configuration = transformers.LlamaConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=128,
        vocab_size=120, max_position_embeddings=128, pad_token_id=0, bos_token_id=1, eos_token_id=None,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(configuration).eval()
    plain, counts, wrong = model.forward, [], 0
    run = _compiled(plain, device)
    for length in (5, 9, 14, 11):
        given, written = tokens(2, length), []
        for forward in (run, plain):
            model.forward = forward
            options = {"max_new_tokens": 12, "do_sample": False, "cache_implementation": cache, "disable_compile": True}
            written.append(model.generate(given, attention_mask=torch.ones_like(given), **options))
        wrong += int((written[0] != written[1]).sum())
        counts.append(_counts(run))
    return _row(counts, f"{wrong} tokens")


def _compiled(module: Any, device: str, **others: Any) -> Any:
    return torch.compile(
        module, backend=nna.torch.nnadapter, options={"devices": [device], "fallback": "allow"}, **others
    )


def _counts(run: Any) -> tuple[int, int, int]:
    """Graphs, their sessions, and the plans that these made: each is compiled once."""
    graphs = nna.torch.report(run).graphs
    plans = [session.plans.made for graph in graphs for session in graph.sessions if session.plans is not None]
    return len(graphs), len(plans), sum(plans)


def _row(counts: Sequence[tuple[int, int, int]], error: object) -> list[object]:
    known, last = counts[min(_KNOWN, len(counts)) - 1], counts[-1]
    shown = f"{error:.1e}" if isinstance(error, float) else error
    return [*last, last[0] - known[0], last[2] - known[2], shown]


if __name__ == "__main__":
    main()
