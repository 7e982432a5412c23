"""A language model that chooses by an input whether there is a cache, as exporters merge two decoders into one file.

    python benchmarks/merged_decoder.py [--layers 4 --width 256] [--steps 100] [--rounds 3] [-d DEVICE ...]

All of it stands inside of `If(use_cache)`: one branch joins what is new to the cache, the other makes one. Weights lie
outside, and both read them. Milliseconds per token on each device, beside the plain decoder and ONNX
Runtime; the same steps in turn. Then what plans were made.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

sys.path.insert(0, str(Path(__file__).parents[1]))

import nnadapter as nna
from benchmarks.language_model import Sizes, cache_names, first_feed, language_model
from benchmarks.timing import interleaved, table

PROMPT = (1, 2, 3)
CHOOSES = "use_cache"


def merged_decoder(sizes: Sizes, seed: int = 0) -> onnx.ModelProto:
    """Return `language_model` with one more input: whether the cache is read. Where it is not, it may hold anything."""
    plain = language_model(sizes, seed)
    graph, opset = plain.graph, plain.opset_import
    chooses = helper.make_tensor_value_info(CHOOSES, TensorProto.BOOL, [1])
    branches = {
        "then_branch": _branch(graph, "with", graph.node),
        "else_branch": _branch(graph, "without", _new(graph)),
    }
    node = helper.make_node("If", [CHOOSES], [value.name for value in graph.output], "choose", **branches)
    outer = helper.make_graph([node], "merged", [*graph.input, chooses], graph.output, graph.initializer)
    return helper.make_model(outer, opset_imports=opset, ir_version=plain.ir_version)


def _branch(graph: onnx.GraphProto, name: str, nodes: Sequence[onnx.NodeProto]) -> onnx.GraphProto:
    """Nodes as a graph of their own, which captures the inputs and weights of the other one."""
    made = {value for node in nodes for value in node.output}
    own = []
    for node in nodes:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        for values in (copy.input, copy.output):
            values[:] = [f"{name}.{value}" if value in made else value for value in values]
        own.append(copy)
    outputs = []
    for value in graph.output:
        info = onnx.ValueInfoProto()
        info.CopyFrom(value)
        info.name = f"{name}.{value.name}"
        outputs.append(info)
    return helper.make_graph(own, name, [], outputs)


def _new(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The nodes where nothing is cached: what is joined to the cache is all there is, and the cache has no size."""
    past = {value.name for value in graph.input if value.name.startswith("past.")}
    nodes = []
    for node in graph.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        if past.intersection(node.input):
            left = [value for value in node.input if value not in past]
            copy = (
                helper.make_node("Identity", left, node.output, node.name)
                if left
                else helper.make_node("Constant", [], node.output, node.name, value_ints=[0, 0, 0, 0])
            )
        nodes.append(copy)
    return nodes


def decode(session: Any, sizes: Sizes, steps: int, others: Mapping[str, Any]) -> None:
    """Make so many tokens; `others` are fed with the prompt, and with True in their place behind it."""
    names, feed = list(cache_names(sizes)), {**first_feed(sizes, PROMPT), **others}
    for _ in range(steps):
        logits, *cache = session.run(None, feed)
        feed = {
            "ids": np.array([[logits[0, -1].argmax()]], np.int64),
            **{f"past.{name}": value for name, value in zip(names, cache, strict=True)},
            **{name: np.ones_like(value) for name, value in others.items()},
        }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("-d", "--device", action="extend", nargs="+", dest="devices")
    arguments = parser.parse_args()
    sizes = Sizes(layers=arguments.layers, width=arguments.width)
    plain, merged = language_model(sizes), merged_decoder(sizes)
    choosing = {CHOOSES: np.array([False])}
    sessions: dict[str, tuple[Any, Mapping[str, Any]]] = {
        "ONNX Runtime, plain": (onnxruntime.InferenceSession(plain.SerializeToString()), {}),
        "ONNX Runtime, merged": (onnxruntime.InferenceSession(merged.SerializeToString()), choosing),
    }
    for device in arguments.devices or ("cpu", "fake_npu", "openvino"):
        options = nna.Options(fallback="allow")
        sessions[f"{device}, plain"] = nna.InferenceSession(plain, devices=device, options=options), {}
        sessions[f"{device}, merged"] = nna.InferenceSession(merged, devices=device, options=options), choosing
    runs = {
        name: (lambda session=session, others=others: decode(session, sizes, arguments.steps, others))  # type: ignore[misc]
        for name, (session, others) in sessions.items()
    }
    for run in runs.values():
        run()
    seconds = interleaved(runs, arguments.rounds, pause=0.2)
    rows = [
        [name, f"{1e3 * seconds[name] / arguments.steps:.3f}", *_plans(session)]
        for name, (session, _) in sessions.items()
    ]
    print(table(["", "ms per token", "plans made", "runs on"], rows))


def _plans(session: Any) -> tuple[str, str]:
    if not isinstance(session, nna.InferenceSession):
        return "", ""
    plans, provenance = session.report().plans, session.provenance
    devices = [step.device for step in provenance.steps] if provenance is not None else []
    return str(plans.made if plans is not None else ""), ", ".join(devices)


if __name__ == "__main__":
    main()
