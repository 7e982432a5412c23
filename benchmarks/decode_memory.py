"""What a language model whose cache grows takes of memory over many steps, beside ONNX Runtime and OpenVINO alone.

    python benchmarks/decode_memory.py [--form gpt|llama] [--layers 4 --width 256] [--steps 200] [-d DEVICE ...]

Each way has a process of its own. Counted is what no file is mapped to, after free memory was given back: from before
the session to behind its first run, whose cache is empty, and from there to behind the last step.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib.util
import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import onnx

sys.path.insert(0, str(Path(__file__).parents[1]))

import nnadapter as nna
from benchmarks.decode import FORMS, Run, decode, onnxruntime_alone, openvino_alone, sizes_of
from benchmarks.resident import MEGABYTE, anonymous_bytes
from benchmarks.timing import table

ALONE = {"ONNX Runtime": onnxruntime_alone, "OpenVINO": openvino_alone}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--form", choices=FORMS, default="gpt")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("-d", "--device", action="extend", nargs="+", dest="devices")
    parser.add_argument("--alone", help="measure one way in this process")
    arguments = parser.parse_args()
    if arguments.alone:
        print(json.dumps(held(arguments.alone, arguments)))
        return
    ways = [*ALONE, *(arguments.devices or ("cpu", "openvino", "fake_npu"))]
    if importlib.util.find_spec("openvino") is None:
        ways = [way for way in ways if "openvino" not in way.lower()]
    rows = [[way, *(f"{nbytes / MEGABYTE:.1f}" for nbytes in in_process(way))] for way in ways]
    print(table(["", "to the first step, MB", f"{arguments.steps} steps, MB more"], rows))


def in_process(way: str) -> list[int]:
    """What `held` gives, by a process of its own with the same arguments."""
    done = subprocess.run([sys.executable, *sys.argv, "--alone", way], check=True, capture_output=True, text=True)
    figures: list[int] = json.loads(done.stdout.splitlines()[-1])
    return figures


def held(way: str, arguments: argparse.Namespace) -> list[int]:
    """Bytes until the first step is done, and from there to the last."""
    sizes = sizes_of(arguments)
    model = FORMS[arguments.form](sizes)
    counts = [_bytes()]
    with ExitStack() as kept:
        run = ALONE[way](model) if way in ALONE else _of_session(kept, model, way)

        def step(feed: Any) -> Any:
            results = run(feed)
            if len(counts) == 1:
                counts.append(_bytes())
            return results

        decode(step, sizes, arguments.steps)
        counts.append(_bytes())
    return [counts[1] - counts[0], counts[2] - counts[1]]


def _of_session(kept: ExitStack, model: onnx.ModelProto, device: str) -> Run:
    options = nna.Options(fallback="allow")
    session = kept.enter_context(nna.InferenceSession(model, devices=device, options=options))
    return lambda feed: session.run(None, feed)


def _bytes() -> int:
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # what is free, and was not given back, is nobody's
    return anonymous_bytes()


if __name__ == "__main__":
    main()
