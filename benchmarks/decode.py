"""Tokens per second of a language model with a growing cache, compared with ONNX Runtime and OpenVINO alone.

ONNX Runtime has two sessions, created before ours and after them, and their mean counts, because equal sessions differ
in speed. Every round decodes `--steps` tokens from an empty cache, with the same session each time. The first round
does not count. The table shows:

- how much longer the first round takes than later ones, mostly for compiling, and how many plans are compiled;
- the time of a second run at a length of the cache over the time of the first;
- the number of segments of the prompt, with an empty cache.

With `--kept` the cache stays on the device that computes it, by `io_binding`, with ONNX Runtime too. The table then
shows how many bytes the last step copies between the host and a device with memory of its own.

With `--memory` each way runs in a process of its own, and the table shows its memory instead: anonymous memory after
free memory was given back, from before the session to after its first run, and from there to after the last step.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime

import nnadapter as nna
from benchmarks.harness import MEGABYTE, Results, in_process, interleaved, retained_bytes, seconds_of
from benchmarks.models.language_models import Sizes, cache_names, first_feed, language_model, llama_model

_PROMPT = (1, 2, 3)
_CONTROL = "ONNX Runtime, again"
_FORMS = {"gpt": language_model, "llama": llama_model}
_OPENVINO = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
Feed = Mapping[str, Any]
Run = Callable[[Feed], Sequence[Any]]
"""A feed -> the outputs in the model's order."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--form", choices=_FORMS, default="gpt")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--steps", type=int, help="100 by default, 200 for --memory")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kept", action="store_true", help="keep the cache on the device")
    parser.add_argument("--memory", action="store_true", help="measure memory instead of time")
    parser.add_argument("-d", "--device", action="extend", nargs="+", dest="devices")


def run(options: argparse.Namespace, results: Results) -> None:
    """Measure time, or memory with `--memory`."""
    if options.memory:
        _measure_memory(options, results)
    else:
        _measure_time(options, results)


def _measure_time(options: argparse.Namespace, results: Results) -> None:
    sizes, steps = _sizes(options.form, options.layers, options.width), options.steps or 100
    model = _FORMS[options.form](sizes)
    sessions = {
        name: nna.InferenceSession(model, devices=name, options=nna.Options(fallback="allow"))
        for name in options.devices or ("cpu", "openvino", "fake_npu", "null")
    }
    runs: dict[str, Run] = {"ONNX Runtime": _onnxruntime_alone(model)}
    if importlib.util.find_spec("openvino"):
        runs["OpenVINO"] = _openvino_alone(model)
    runs |= {name: lambda feed, session=session: session.run(None, feed) for name, session in sessions.items()}  # type: ignore[misc]
    runs[_CONTROL] = _onnxruntime_alone(model)
    candidates = {name: (lambda call=call: decode(call, sizes, steps)) for name, call in runs.items()}
    if options.kept:
        bound = {name: (session, name) for name, session in sessions.items()}
        for name in ("ONNX Runtime", _CONTROL):
            ort_session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
            bound[name] = (ort_session, "cpu")
        candidates |= {
            name: lambda session=session, device=device: _decode_on_device(session, device, sizes, steps)  # type: ignore[misc]
            for name, (session, device) in bound.items()
        }
    first = {name: seconds_of(candidate) for name, candidate in candidates.items()}
    later = interleaved(candidates, options.rounds, pause=0.2)
    peer = (later["ONNX Runtime"] + later[_CONTROL]) / 2
    table = results.table()
    for name in runs:
        session = sessions.get(name)
        table.add(
            {
                "decoder": name,
                "tokens/s": steps / later[name],
                "times ONNX Runtime": peer / later[name],
                "repeated length over new": _repeated_over_new(runs[name], sizes, steps),
                "first round, s more": first[name] - later[name],
                "plans": _plan_count(session),
                "bytes copied": _copied_bytes(session),
                "segments of the prompt": _prompt_segments(session, sizes),
            }
        )


def _sizes(form: str, layers: int, width: int) -> Sizes:
    """Return the sizes of a model; two heads share keys and values in a model like Llama."""
    heads = 4
    return Sizes(layers=layers, width=width, heads=heads, kept=heads // 2 if form == "llama" else heads)


def decode(call: Run, sizes: Sizes, steps: int) -> None:
    """Generate so many tokens, each the most likely one."""
    names, feed = list(cache_names(sizes)), first_feed(sizes, _PROMPT)
    for _ in range(steps):
        logits, *cache = call(feed)
        feed = {
            "ids": np.array([[logits[0, -1].argmax()]], np.int64),
            **{f"past.{name}": value for name, value in zip(names, cache, strict=True)},
        }


def _decode_on_device(session: Any, device: str, sizes: Sizes, steps: int) -> None:
    """Generate so many tokens with a cache that stays on `device`."""
    names, binding = list(cache_names(sizes)), session.io_binding()
    for name, array in first_feed(sizes, _PROMPT).items():
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


def _repeated_over_new(call: Run, sizes: Sizes, steps: int) -> float:
    """Return the median ratio of the second run at a length to the first."""
    first_times, repeated = [], []

    def twice(feed: Feed) -> Sequence[Any]:
        first_times.append(seconds_of(lambda: call(feed)))
        repeated.append(seconds_of(lambda: call(feed)))
        return call(feed)

    decode(twice, sizes, steps)
    return float(np.median(np.divide(repeated, first_times)))


def _onnxruntime_alone(model: onnx.ModelProto) -> Run:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return lambda feed: session.run(None, feed)


def _openvino_alone(model: onnx.ModelProto) -> Run:
    """Return a run by OpenVINO with dynamic shapes. Outputs are copied, since the next run overwrites them.

    OpenVINO computes in float32 as the device does by default. On processors with bfloat16 it would choose that.
    """
    import openvino

    core = openvino.Core()
    compiled = core.compile_model(core.read_model(model.SerializeToString()), "CPU", _OPENVINO)
    request, outputs = compiled.create_infer_request(), [port.name for port in model.graph.output]

    def infer(feed: Feed) -> Sequence[Any]:
        request.infer(dict(feed), share_inputs=True, share_outputs=True)
        return [np.array(request.get_tensor(name).data) for name in outputs]

    return infer


def _plan_count(session: nna.InferenceSession | None) -> int | None:
    counts = session.report().plans if session is not None and session.devices != ["cpu"] else None
    return None if counts is None else counts.compiled


def _copied_bytes(session: nna.InferenceSession | None) -> int | None:
    """Return the copies of the last run between the host and devices with memory of their own."""
    provenance = session.provenance if session is not None else None
    return None if provenance is None else sum(transfer.nbytes for transfer in provenance.transfers)


def _prompt_segments(session: nna.InferenceSession | None, sizes: Sizes) -> int | None:
    if session is None:
        return None
    session.run(None, first_feed(sizes, _PROMPT))
    return len(session.report().segments)


_ALONE = {"ONNX Runtime": _onnxruntime_alone, "OpenVINO": _openvino_alone}


def _measure_memory(options: argparse.Namespace, results: Results) -> None:
    steps = options.steps or 200
    ways = [*_ALONE, *(options.devices or ("cpu", "openvino", "fake_npu"))]
    if importlib.util.find_spec("openvino") is None:
        ways = [way for way in ways if "openvino" not in way.lower()]
    table = results.table()
    for way in ways:
        first, later = in_process(memory_of_decoding, way, options.form, options.layers, options.width, steps)
        row = {"to the first step, MB": first / MEGABYTE, f"{steps} steps, MB more": later / MEGABYTE}
        table.add({"decoder": way, **row})


def memory_of_decoding(way: str, form: str, layers: int, width: int, steps: int) -> list[int]:
    """Return the bytes that this process gains until the first step is done, and from there to the last."""
    sizes = _sizes(form, layers, width)
    model = _FORMS[form](sizes)
    counts = [retained_bytes()]
    if way in _ALONE:
        call = _ALONE[way](model)
    else:
        session = nna.InferenceSession(model, devices=way, options=nna.Options(fallback="allow"))
        call = lambda feed: session.run(None, feed)  # noqa: E731

    def step(feed: Feed) -> Sequence[Any]:
        outputs = call(feed)
        if len(counts) == 1:
            counts.append(retained_bytes())
        return outputs

    decode(step, sizes, steps)
    counts.append(retained_bytes())
    return [counts[1] - counts[0], counts[2] - counts[1]]
