"""How long a report takes as a model grows, and how long the import takes beside onnxruntime's.

    python benchmarks/report.py [--device fake_npu] [--rounds 5] [--most 100000]
    python benchmarks/report.py --policy latency --option clock=simulated

A small report that does not count comes first: the first of a process imports what it needs.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).parents[1]))

import nnadapter as nna
from benchmarks.timing import interleaved, table

SIZES = (1_250, 2_500, 5_000, 10_000, 20_000)
_WARM = 50
"""Nodes of the report that does not count."""
ACTIVATIONS = ("Relu", "Sigmoid", "Neg", "Exp", "Tanh")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="fake_npu")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of the device")
    parser.add_argument("--policy", default="priority", choices=("priority", "latency"))
    parser.add_argument("--rounds", type=int, default=5, help="of the imports")
    parser.add_argument("--most", type=int, default=SIZES[-1], help="nodes of the largest model")
    arguments = parser.parse_args()
    sizes = sorted({*(size for size in SIZES if size <= arguments.most), arguments.most})
    options = dict(option.split("=", 1) for option in arguments.option)
    taken_by = partial(report_seconds, device=arguments.device, options=options, policy=arguments.policy)
    taken_by(chain_and_branch(_WARM, 0.2))
    rows = []
    for refused in (0.0, 0.2):
        seconds = [taken_by(chain_and_branch(size, refused)) for size in sizes]
        grown = [
            math.log(b / a) / math.log(d / c) for (a, b), (c, d) in zip(pairwise(seconds), pairwise(sizes), strict=True)
        ]
        exponents = ["", *(f"{each:.2f}" for each in grown)]
        rows += [
            [size, f"{refused:.0%}", f"{taken:.2f}", exponent]
            for size, taken, exponent in zip(sizes, seconds, exponents, strict=True)
        ]
    print(table(["nodes", "refused branches", "report s", "growth exponent"], rows))
    taken = interleaved({name: partial(imported, name) for name in ("nnadapter", "onnxruntime")}, arguments.rounds)
    print(f"\nimport nnadapter: {taken['nnadapter'] / taken['onnxruntime']:.2f} times import onnxruntime")


def chain_and_branch(size: int, refused: float) -> onnx.ModelProto:
    """A chain of diamonds with a matrix product now and then; `refused` is the share of branches nobody takes."""
    generator = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    last = "x"
    while len(nodes) < size:
        name = str(len(nodes))
        first, second = (ACTIVATIONS[generator.integers(len(ACTIVATIONS))] for _ in range(2))
        nodes.append(helper.make_node(first, [last], [f"a{name}"]))
        nodes.append(helper.make_node("Sinh" if generator.random() < refused else second, [last], [f"b{name}"]))
        nodes.append(helper.make_node("Add", [f"a{name}", f"b{name}"], [f"c{name}"]))
        last = f"c{name}"
        if len(nodes) % 10 == 0:
            nodes.append(helper.make_node("MatMul", [last, "w"], [f"m{name}"]))
            last = f"m{name}"
    graph = helper.make_graph(
        nodes,
        "chain_and_branch",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8])],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, [1, 8])],
        [numpy_helper.from_array(np.eye(8, dtype=np.float32), "w")],
    )
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)])


def report_seconds(
    model: onnx.ModelProto, device: str, options: Mapping[str, str] = MappingProxyType({}), policy: str = "priority"
) -> float:
    """Seconds from a model in memory to the report as text; the CPU gets what nobody shall take."""
    chosen = nna.Options(policy=policy, rules=nna.Rules(bans=(nna.Ban(device=device, op_type="Sinh"),)))
    started = time.perf_counter()
    str(nna.partition_report(model, devices=[(device, dict(options))], options=chosen))
    return time.perf_counter() - started


def imported(name: str) -> None:
    """Import a package in a new interpreter."""
    subprocess.run([sys.executable, "-c", f"import {name}"], check=True)


if __name__ == "__main__":
    main()
