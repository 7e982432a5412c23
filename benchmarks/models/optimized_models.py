"""Networks as ONNX Runtime's optimizers write them: the one of its sessions, and the one for transformers.

The optimizers read and write files, so each model is made in a folder and read back.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from benchmarks.models.encoders import bert
from benchmarks.models.language_models import Sizes, group_query_model, language_model, llama_model
from benchmarks.models.networks import networks
from benchmarks.models.quantized_models import mobilenet, resnet, transformer

_LENGTH = 16
_SMALL = Sizes(layers=2, width=64, heads=4, words=500, positions=64)
_SHARED = Sizes(layers=2, width=64, heads=4, kept=2, words=500, positions=64)
Feeds = dict[str, np.ndarray[Any, Any]]
Network = Callable[[], onnx.ModelProto]


@dataclass(frozen=True, slots=True, eq=False)
class Optimized:
    """A model as a tool wrote it."""

    name: str
    model: onnx.ModelProto
    feeds: Feeds


def optimized(names: Sequence[str] = ()) -> Iterator[Optimized]:
    """Yield every model, or those with names that contain one of `names`."""
    for name, make in MODELS.items():
        if not names or any(part in name for part in names):
            model = make()
            yield Optimized(name, model, feeds_of(model))


def feeds_of(model: onnx.ModelProto, seed: int = 0) -> Feeds:
    """Return seeded noise for the inputs of a model; masks are 1, and dynamic dimensions are small."""
    random, initializers = np.random.default_rng(seed), {tensor.name for tensor in model.graph.initializer}
    sizes = {"batch": 1, "length": 3, "past": 5, "total": 8}
    feeds = {}
    for value_info in model.graph.input:
        if value_info.name in initializers:
            continue
        type_ = value_info.type.tensor_type
        shape = [size.dim_value or sizes.get(size.dim_param, 2) for size in type_.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(type_.elem_type)
        if dtype.kind == "f":
            drawn = random.standard_normal(shape)
        else:
            drawn = np.ones(shape) if "mask" in value_info.name else random.integers(0, 2, shape)
        feeds[value_info.name] = drawn.astype(dtype)
    return feeds


def extended(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model as a session writes it at the level EXTENDED."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimized.onnx"
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.optimized_model_filepath = str(path)
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return onnx.load(path)


def for_transformers(model: onnx.ModelProto, model_type: str, sizes: Sizes = _SMALL) -> onnx.ModelProto:
    """Return a model as the optimizer for transformers writes it for a model type."""
    from onnxruntime.transformers.optimizer import optimize_model

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(model, path)
        optimized_model = optimize_model(
            str(path), model_type=model_type, num_heads=sizes.heads, hidden_size=sizes.width, opt_level=0
        )
        result: onnx.ModelProto = optimized_model.model
        return result


def _networks() -> dict[str, Network]:
    network_by_name: dict[str, Network] = dict(networks())
    network_by_name["BERT"] = partial(bert, _SMALL, _LENGTH)
    network_by_name["GPT-2"] = partial(language_model, _SMALL)
    network_by_name["Llama"] = partial(llama_model, _SHARED)
    network_by_name["ResNet"] = partial(resnet, [1, 1], is_deep=False, size=32)
    network_by_name["MobileNet"] = partial(mobilenet, 32)
    return network_by_name


def _models() -> dict[str, Network]:
    models: dict[str, Network] = {
        f"{name}, extended": partial(_applied, extended, network) for name, network in _networks().items()
    }
    kinds: dict[str, tuple[str, Network]] = {
        "BERT": ("bert", partial(bert, _SMALL, _LENGTH)),
        "GPT-2": ("gpt2", partial(language_model, _SMALL)),
    }
    for kind, dynamo in (("vit", False), ("vit", True), ("bert", False), ("bert", True)):
        exporter = "dynamo" if dynamo else "TorchScript"
        kinds[f"PyTorch's {kind} by {exporter}"] = kind, partial(_exported, kind, dynamo=dynamo)
    kinds["encoder"] = "bert", partial(transformer, 2, _SMALL.width, _SMALL.heads, _LENGTH)
    kinds["Llama"] = "gpt2", partial(llama_model, _SHARED)
    for name, (kind, network) in kinds.items():
        models[f"{name}, for transformers"] = partial(_applied, partial(for_transformers, model_type=kind), network)
    for name, options in {"": {}, ", packed": {"packed": True}, ", window": {"window": 4}}.items():
        models[f"generative{name}"] = partial(group_query_model, _SHARED, **options)
    return models


def _exported(kind: str, *, dynamo: bool) -> onnx.ModelProto:
    from benchmarks.models.pytorch_models import exported  # takes seconds, and the others do without it

    with tempfile.TemporaryDirectory() as folder:
        return exported(kind, Path(folder) / "model.onnx", dynamo=dynamo)


def _applied(tool: Callable[[onnx.ModelProto], onnx.ModelProto], network: Network) -> onnx.ModelProto:
    return tool(network())


MODELS: Mapping[str, Network] = _models()
"""The maker of each model, by name."""
