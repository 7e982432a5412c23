"""PyTorch models through torch.compile: whether each finishes and is right, and how much of it runs on the device.

Results are compared with PyTorch's own. PyTorch captures LSTM and GRU because `allow_rnn` is set (docs/pytorch.md).

With `--shapes` models are called with five shapes in three ways: `torch.compile(dynamic=True)`, dimensions marked by
`mark_dynamic`, and PyTorch's automatic ones. `generate` has a Llama write text with a growing cache and with one of a
fixed size. `captured` and `compiled` count the calls after the third, which should add none.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

import nnadapter as nna
from benchmarks.harness import Results, select
from benchmarks.models.pytorch_models import Made, models, tokens

_SHAPES = ((2, 12), (3, 17), (5, 30), (4, 9), (7, 21))
"""Rows and length."""
_KNOWN = 3
"""Calls until everything has been captured."""
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
"""Model -> its dynamic dimensions -> a function from rows and length to inputs."""
_COLUMNS = (
    "graphs",
    "breaks",
    "operators",
    "in sessions",
    "nodes",
    "off the CPU",
    "FLOPs off the CPU %",
    "error",
    "first result s",
)
_WAYS = ("dynamic=True", "mark_dynamic", "automatic")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("names", nargs="*", metavar="MODEL")
    parser.add_argument("-d", "--device", default="fake_npu")
    parser.add_argument("--shapes", action="store_true", help="call models with five shapes")


def run(options: argparse.Namespace, results: Results) -> None:
    """Run every model, with one shape or with several."""
    warnings.simplefilter("ignore")
    torch._dynamo.config.allow_rnn = True
    if options.shapes:
        _run_shapes(options, results)
    else:
        _run_models(options, results)


def _run_models(options: argparse.Namespace, results: Results) -> None:
    model_by_name, table = models(), results.table()
    for name in select(options.names, model_by_name):
        table.add(_row(name, model_by_name[name](), options.device))
    finished = [row for row in table.rows if not row["failure"]]
    one_graph = sum(
        (row["graphs"], row["breaks"]) == (1, 0) and row["in sessions"] == row["operators"] for row in finished
    )
    on_device = sum(row["off the CPU"] == row["nodes"] for row in finished)
    worst = max((row["error"] for row in finished), default=0.0)
    results.note(
        f"{len(finished)} of {len(table.rows)} finish, {one_graph} as one graph without a break and entirely in "
        f"sessions, {on_device} with all nodes on the device; largest error {worst:.1e}"
    )
    if len(finished) < len(table.rows):
        results.fail(f"{len(table.rows) - len(finished)} models do not finish")


def _run_shapes(options: argparse.Namespace, results: Results) -> None:
    table = results.table()
    for name in select(options.names, (*_MAKERS, "generate")):
        if name == "generate":
            for cache in ("dynamic", "static"):
                first = {"model": "Llama", "dynamic": cache, "way": "generate"}
                table.add({**first, **_generated(cache, options.device)})
            continue
        for dimensions, make in _MAKERS[name].items():
            for way in _WAYS:
                first = {"model": name, "dynamic": dimensions, "way": way}
                table.add({**first, **_called(name, make, way, options.device)})


def _row(name: str, factory: Made, device: str) -> dict[str, Any]:
    """Run one model in PyTorch and through torch.compile."""
    row: dict[str, Any] = {"model": name, **dict.fromkeys(_COLUMNS), "failure": ""}
    torch._dynamo.reset()
    module, inputs = factory
    call = torch.compile(module, backend=nna.torch.nnadapter, options={"devices": [device], "fallback": "allow"})
    try:
        with torch.no_grad():
            expected = tensors_of(module(**inputs))
            began = time.perf_counter()
            results = tensors_of(call(**inputs))
        seconds = time.perf_counter() - began
        error = relative_error(results, expected)
    except Exception as failure:  # noqa: BLE001  a row has it
        message = next(iter(str(failure).strip().splitlines()), "")
        return {**row, "failure": f"{type(failure).__name__}: {message[:120]}"}
    report = nna.torch.report(call)
    nodes = [graph.nodes for graph in report.graphs]
    return row | {
        "graphs": len(report.graphs),
        "breaks": len(report.breaks),
        "operators": sum(graph.operators for graph in report.graphs),
        "in sessions": sum(graph.delegated for graph in report.graphs),
        "nodes": sum(running for _, running in nodes),
        "off the CPU": sum(accelerated for accelerated, _ in nodes),
        "FLOPs off the CPU %": 100 * report.flops_coverage,
        "error": error,
        "first result s": seconds,
    }


def relative_error(actual: Sequence[Any], expected: Sequence[Any]) -> float:
    """Return the largest difference of two rows of tensors, relative to the largest expected value of each."""
    assert len(actual) == len(expected), f"{len(actual)} tensors, expected {len(expected)}"
    pairs = zip(actual, expected, strict=True)
    return max((_difference(result.detach().double(), other.detach().double()) for result, other in pairs), default=0.0)


def _difference(actual: Any, expected: Any) -> float:
    assert actual.shape == expected.shape, f"a tensor {list(actual.shape)}, expected {list(expected.shape)}"
    scale = max(float(expected.abs().max()), 1e-6) if expected.numel() else 1.0
    return float((actual - expected).abs().max()) / scale if expected.numel() else 0.0


def tensors_of(results: Any) -> list[Any]:
    """Return all tensors of a model's results, in order, without caches."""
    if isinstance(results, torch.Tensor):
        return [results]
    if isinstance(results, dict):
        return [tensor for value in results.values() for tensor in tensors_of(value)]
    if isinstance(results, (tuple, list)):
        return [tensor for value in results for tensor in tensors_of(value)]
    return []


def _called(name: str, make: Callable[[int, int], Inputs], way: str, device: str) -> dict[str, Any]:
    torch._dynamo.reset()
    module, _ = models()[name]()
    call = _compiled(module, device, dynamic=True if way == "dynamic=True" else None)
    counts, errors = [], []
    for shape in _SHAPES:
        inputs = make(*shape)
        if way == "mark_dynamic":
            _mark(inputs, make)
        with torch.no_grad():
            errors.append(relative_error(tensors_of(call(**inputs)), tensors_of(module(**inputs))))
        counts.append(_counts(call))
    return _counted(counts, max(errors), None)


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


def _generated(cache: str, device: str) -> dict[str, Any]:
    """Generate from texts of four lengths, and count wrong tokens."""
    import transformers

    torch._dynamo.reset()
    torch.manual_seed(0)
    configuration = transformers.LlamaConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=128,
        vocab_size=120, max_position_embeddings=128, pad_token_id=0, bos_token_id=1, eos_token_id=None,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(configuration).eval()
    plain, counts, wrong = model.forward, [], 0
    call = _compiled(plain, device)
    for length in (5, 9, 14, 11):
        prompt, written = tokens(2, length), []
        for forward in (call, plain):
            model.forward = forward
            options = {"max_new_tokens": 12, "do_sample": False, "cache_implementation": cache, "disable_compile": True}
            written.append(model.generate(prompt, attention_mask=torch.ones_like(prompt), **options))
        wrong += int((written[0] != written[1]).sum())
        counts.append(_counts(call))
    return _counted(counts, None, wrong)


def _compiled(module: Any, device: str, **options: Any) -> Any:
    return torch.compile(
        module, backend=nna.torch.nnadapter, options={"devices": [device], "fallback": "allow"}, **options
    )


def _counts(call: Any) -> tuple[int, int, int]:
    """Return how many graphs and sessions there are, and how many plans were compiled."""
    graphs = nna.torch.report(call).graphs
    plans = [session.plans.compiled for graph in graphs for session in graph.sessions if session.plans is not None]
    return len(graphs), len(plans), sum(plans)


def _counted(counts: Sequence[tuple[int, int, int]], error: float | None, wrong_tokens: int | None) -> dict[str, Any]:
    known_counts, (graphs, sessions, plans) = counts[min(_KNOWN, len(counts)) - 1], counts[-1]
    return {
        "graphs": graphs,
        "sessions": sessions,
        "plans": plans,
        "captured": graphs - known_counts[0],
        "compiled": plans - known_counts[2],
        "error": error,
        "wrong tokens": wrong_tokens,
    }
