"""Tokens per second of a language model whose cache grows by one at each step, beside ONNX Runtime and OpenVINO alone.

    python benchmarks/decode.py [--form gpt|llama] [--layers 4 --width 256] [--steps 100] [--rounds 3] [--kept]
                                [-d DEVICE ...]

Of ONNX Runtime there are two sessions, made before ours and after them, and their mean counts: sessions made alike
differ. Every round decodes `--steps` tokens from an empty cache, each with the session that the others have used. The
first round does not count; what it took more, compiling above all, and how many plans were made, stands apart. So does
what a run takes the second time at a length of the cache, beside the first time, and how many segments the prompt has,
whose cache is empty. With `--kept` the cache stays where it was made, by `io_binding`, with ONNX Runtime too; then
it is told how many bytes the last step copied between the host and a device with memory of its own.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

sys.path.insert(0, str(Path(__file__).parents[1]))

import nnadapter as nna
from benchmarks.models.language_models import Sizes, cache_names, first_feed, language_model, llama_model
from benchmarks.timing import interleaved, table

PROMPT = (1, 2, 3)
CONTROL = "ONNX Runtime, again"
FORMS = {"gpt": language_model, "llama": llama_model}
OPENVINO = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
Feed = Mapping[str, Any]
Run = Callable[[Feed], Sequence[Any]]
"""A feed -> the outputs in the model's order."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--form", choices=FORMS, default="gpt")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kept", action="store_true")
    parser.add_argument("-d", "--device", action="extend", nargs="+", dest="devices")
    arguments = parser.parse_args()
    sizes = sizes_of(arguments)
    model = FORMS[arguments.form](sizes)
    sessions = {
        name: nna.InferenceSession(model, devices=name, options=nna.Options(fallback="allow"))
        for name in arguments.devices or ("cpu", "openvino", "fake_npu", "null")
    }
    runs: dict[str, Run] = {"ONNX Runtime": onnxruntime_alone(model)}
    if importlib.util.find_spec("openvino"):
        runs["OpenVINO"] = openvino_alone(model)
    runs |= {name: lambda feed, session=session: session.run(None, feed) for name, session in sessions.items()}  # type: ignore[misc]
    runs[CONTROL] = onnxruntime_alone(model)
    candidates = {name: (lambda run=run: decode(run, sizes, arguments.steps)) for name, run in runs.items()}
    if arguments.kept:
        bound = {name: (session, name) for name, session in sessions.items()}
        for name in ("ONNX Runtime", CONTROL):
            alone = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
            bound[name] = (alone, "cpu")
        candidates |= {
            name: lambda session=session, device=device: decode_kept(session, device, sizes, arguments.steps)  # type: ignore[misc]
            for name, (session, device) in bound.items()
        }
    first = {name: seconds_of(candidate) for name, candidate in candidates.items()}
    later = interleaved(candidates, arguments.rounds, pause=0.2)
    theirs = (later["ONNX Runtime"] + later[CONTROL]) / 2
    rows = [
        [
            name,
            f"{arguments.steps / later[name]:.0f}",
            f"{theirs / later[name]:.3f}",
            f"{repeated_over_new(runs[name], sizes, arguments.steps):.2f}",
            f"{first[name] - later[name]:.2f}",
            plans_of(sessions.get(name)),
            bytes_of(sessions.get(name)),
            segments_of(sessions.get(name), sizes),
        ]
        for name in runs
    ]
    head = [
        "",
        "tokens/s",
        "times ONNX Runtime",
        "repeated shape, times a new one",
        "first round, s more",
        "plans made",
    ]
    print(table([*head, "bytes copied", "segments of the prompt"], rows))


def sizes_of(arguments: argparse.Namespace) -> Sizes:
    """Those of a model, of which the form of Llama shares what it keeps between two heads."""
    heads = 4
    kept = heads // 2 if arguments.form == "llama" else heads
    return Sizes(layers=arguments.layers, width=arguments.width, heads=heads, kept=kept)


def decode(run: Run, sizes: Sizes, steps: int) -> None:
    """Make so many tokens, each the likeliest."""
    names, feed = list(cache_names(sizes)), first_feed(sizes, PROMPT)
    for _ in range(steps):
        logits, *cache = run(feed)
        feed = {
            "ids": np.array([[logits[0, -1].argmax()]], np.int64),
            **{f"past.{name}": value for name, value in zip(names, cache, strict=True)},
        }


def decode_kept(session: Any, device: str, sizes: Sizes, steps: int) -> None:
    """The same with a cache that stays on `device`."""
    names, binding = list(cache_names(sizes)), session.io_binding()
    for name, array in first_feed(sizes, PROMPT).items():
        binding.bind_cpu_input(name, array)
    for _ in range(steps):
        binding.bind_output("logits", "cpu")
        for name in names:
            binding.bind_output(f"present.{name}", device)
        session.run_with_iobinding(binding)
        logits, *cache = binding.get_outputs()
        binding.bind_cpu_input("ids", np.array([[logits.numpy()[0, -1].argmax()]], np.int64))
        for name, value in zip(names, cache, strict=True):
            binding.bind_ortvalue_input(f"past.{name}", value)


def repeated_over_new(run: Run, sizes: Sizes, steps: int) -> float:
    """How long a step takes the second time, beside the first time: what a shape that nobody has seen costs."""
    new, repeated = [], []

    def twice(feed: Feed) -> Sequence[Any]:
        new.append(seconds_of(lambda: run(feed)))
        repeated.append(seconds_of(lambda: run(feed)))
        return run(feed)

    decode(twice, sizes, steps)
    return float(np.median(np.divide(repeated, new)))


def onnxruntime_alone(model: onnx.ModelProto) -> Run:
    """ONNX Runtime on the CPU."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return lambda feed: session.run(None, feed)


def openvino_alone(model: onnx.ModelProto) -> Run:
    """OpenVINO with the sizes that the model leaves open; outputs are copied, since the next run overwrites them.

    It computes in float32, as the device does unless told otherwise: on processors with bfloat16 it would take that.
    """
    import openvino

    core = openvino.Core()
    compiled = core.compile_model(core.read_model(model.SerializeToString()), "CPU", OPENVINO)
    request, outputs = compiled.create_infer_request(), [port.name for port in model.graph.output]

    def run(feed: Feed) -> Sequence[Any]:
        request.infer(dict(feed), share_inputs=True, share_outputs=True)
        return [np.array(request.get_tensor(name).data) for name in outputs]

    return run


def seconds_of(candidate: Callable[[], object]) -> float:
    """What one call takes."""
    started = time.perf_counter()
    candidate()
    return time.perf_counter() - started


def plans_of(session: nna.InferenceSession | None) -> str:
    """How many plans a session made; nothing where there are none."""
    counts = session.report().plans if session is not None and session.devices != ["cpu"] else None
    return "" if counts is None else str(counts.made)


def bytes_of(session: nna.InferenceSession | None) -> str:
    """What the last run copied between the host and devices with memory of their own; nothing where there is none."""
    provenance = session.provenance if session is not None else None
    return str(sum(each.nbytes for each in provenance.transfers)) if provenance is not None else ""


def segments_of(session: nna.InferenceSession | None, sizes: Sizes) -> str:
    """How many segments the model has where its cache is empty; nothing where there are none."""
    if session is None:
        return ""
    session.run(None, first_feed(sizes, PROMPT))
    return str(len(session.report().segments))


if __name__ == "__main__":
    main()
