"""What plans hold, as counted for `Options.max_plan_bytes` and as the system counts it.

    python benchmarks/plan_memory.py [--cases openvino cpu ...] [--networks ...] [--plans 1 5 20] [--json FILE]

Every plan is for other sizes: a limit on segments keeps sizes from being left open. Each case has a process of its own,
and another one where the same session runs on `null`: what that holds is no plan's. `cpu` is fake_npu without any of
the operations that have weights, `acme_fixed` the example of a driver in C as it compiles for fixed sizes. The last
column is for `max_plan_bytes` of half of what the most plans hold.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).parents[1]))

import nnadapter as nna
from benchmarks.fixed_sizes import install
from benchmarks.models.networks import networks
from benchmarks.resident import MEGABYTE, anonymous_bytes
from benchmarks.timing import table

WEIGHTED = ("Conv", "ConvTranspose", "MatMul", "Gemm")
CASES: Mapping[str, Any] = {
    "openvino": "openvino",
    "cpu": [("fake_npu", {"switched_off": WEIGHTED})],
    "fake_npu": "fake_npu",
    "acme_fixed": "acme_fixed",
    "null": "null",
}
NETWORKS = ("perceptron, 64 rows", "residual", "plain 3x3", "mobile", "segmentation")
OPTIONS = {"fallback": "allow", "rules": nna.Rules(limits=nna.Limits(max_segments=1000)), "max_plans": 1000}

_LEAST = 1_000_000
"""Bytes below which what a process holds says nothing of what was counted."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=tuple(CASES))
    parser.add_argument("--networks", nargs="+", choices=networks(), default=NETWORKS)
    parser.add_argument("--plans", nargs="+", type=int, default=(1, 5, 20))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--limit", type=int, default=1 << 40, help="max_plan_bytes")
    parser.add_argument("--alone", action="store_true", help="measure one case in this process")
    arguments = parser.parse_args()
    if arguments.alone:
        print(json.dumps(held(arguments.cases[0], arguments.networks[0], arguments.plans, arguments.limit)))
        return
    rows = [compared(case, name, arguments.plans) for name in arguments.networks for case in arguments.cases]
    head = ("network", "device", "plans", "counted MB", "held MB", "times", "limit MB", "held MB")
    print(table(head, [line for row in rows for line in _lines(row)]))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2))


def compared(case: str, network: str, plans: Sequence[int]) -> dict[str, Any]:
    """A case beside the same on `null`, and once more with half of the room that it takes."""
    counted, resident = zip(*in_process(case, network, plans), strict=True)
    base = [nbytes for _, nbytes in in_process("null", network, plans)]
    limit = counted[-1] // 2
    limited = in_process(case, network, plans[-1:], limit)[0][1] - base[-1]
    grown = [nbytes - least for nbytes, least in zip(resident, base, strict=True)]
    return {
        "case": case,
        "network": network,
        "plans": list(plans),
        "counted": list(counted),
        "held": grown,
        "limit": limit,
        "limited": limited,
    }


def held(case: str, network: str, plans: Sequence[int], limit: int) -> list[tuple[int, int]]:
    """After so many plans each, what they are counted for, and what the process has in memory of its own."""
    if case == "acme_fixed":
        install(Path(tempfile.mkdtemp()))
    model, shape = _open(networks()[network]())
    took: list[tuple[int, int]] = []
    with nna.InferenceSession(model, devices=CASES[case], options={**OPTIONS, "max_plan_bytes": limit}) as session:
        before = _resident()
        for number in range(max(plans)):
            session.run(None, {"x": np.zeros(shape(number), np.float32)})
            if number + 1 in plans:
                report = session.report().plans
                took.append((0 if report is None else report.memory_bytes, _resident() - before))
    return took


def _open(model: onnx.ModelProto) -> tuple[onnx.ModelProto, Callable[[int], tuple[int, ...]]]:
    """A network whose first size of a picture, or number of rows, is open; and the shape of its n-th input."""
    dimensions = model.graph.input[0].type.tensor_type.shape.dim
    sizes = [dimension.dim_value for dimension in dimensions]
    axis, step = (2, 16) if len(sizes) == 4 else (0, 1)
    dimensions[axis].dim_param = "size"
    for position, value in enumerate(model.graph.output[0].type.tensor_type.shape.dim):
        value.dim_param = f"made_{position}"

    def shape(number: int) -> tuple[int, ...]:
        return (*sizes[:axis], sizes[axis] + step * number, *sizes[axis + 1 :])

    return model, shape


def _resident() -> int:
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # what is free, and was not given back, is nobody's
    return anonymous_bytes()


def in_process(case: str, network: str, plans: Sequence[int], limit: int = 1 << 40) -> list[tuple[int, int]]:
    """See `held`, in a process of its own."""
    command = [sys.executable, __file__, "--alone", "--cases", case, "--networks", network, "--limit", str(limit)]
    done = subprocess.run([*command, "--plans", *map(str, plans)], capture_output=True, text=True, check=True)
    return [(counted, resident) for counted, resident in json.loads(done.stdout.splitlines()[-1])]


def _lines(row: Mapping[str, Any]) -> list[list[object]]:
    limits = ["", ""] * (len(row["plans"]) - 1) + [_megabytes(row["limit"]), _megabytes(row["limited"])]
    return [
        [
            row["network"],
            row["case"],
            plans,
            _megabytes(counted),
            _megabytes(grown),
            f"{counted / grown:.2f}" if grown >= _LEAST else "",
            *limits[2 * position : 2 * position + 2],
        ]
        for position, (plans, counted, grown) in enumerate(zip(row["plans"], row["counted"], row["held"], strict=True))
    ]


def _megabytes(nbytes: float) -> str:
    return f"{nbytes / MEGABYTE:.1f}"


if __name__ == "__main__":
    main()
