"""Time of a report as a model grows, and the time of the import compared with onnxruntime's.

A small report that does not count comes first, because the first one of a process imports modules. The exponent is the
growth since the row before: 1 is linear.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
from collections.abc import Mapping
from functools import partial

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import nnadapter as nna
from benchmarks.harness import Results, interleaved, seconds_of

_SIZES = (1_250, 2_500, 5_000, 10_000, 20_000)
_WARM = 50
"""Nodes of the report that does not count."""
_ACTIVATIONS = ("Relu", "Sigmoid", "Neg", "Exp", "Tanh")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--device", default="fake_npu")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of the device")
    parser.add_argument("--policy", default="priority", choices=("priority", "latency"))
    parser.add_argument("--rounds", type=int, default=5, help="of the imports")
    parser.add_argument("--most", type=int, default=_SIZES[-1], help="nodes of the largest model")


def run(options: argparse.Namespace, results: Results) -> None:
    """Measure reports, then imports."""
    sizes = sorted({*(size for size in _SIZES if size <= options.most), options.most})
    device_options = dict(option.split("=", 1) for option in options.option)
    report = partial(_report_seconds, device=options.device, options=device_options, policy=options.policy)
    report(_diamonds(_WARM, 0.2))
    table = results.table()
    for refused in (0.0, 0.2):
        previous: tuple[int, float] | None = None
        for size in sizes:
            seconds = report(_diamonds(size, refused))
            exponent = math.log(seconds / previous[1]) / math.log(size / previous[0]) if previous else None
            table.add(
                {"nodes": size, "refused branches %": 100 * refused, "report s": seconds, "growth exponent": exponent}
            )
            previous = size, seconds
    imports = interleaved({name: partial(_import, name) for name in ("nnadapter", "onnxruntime")}, options.rounds)
    row = {f"import {name}, s": seconds for name, seconds in imports.items()}
    results.table().add({**row, "ratio": imports["nnadapter"] / imports["onnxruntime"]})


def _diamonds(size: int, refused: float) -> onnx.ModelProto:
    """Return a chain of diamonds with some matrix products; a share of the branches has a Sinh, which is refused."""
    generator = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    last = "x"
    while len(nodes) < size:
        name = str(len(nodes))
        first, second = (_ACTIVATIONS[generator.integers(len(_ACTIVATIONS))] for _ in range(2))
        nodes.append(helper.make_node(first, [last], [f"a{name}"]))
        nodes.append(helper.make_node("Sinh" if generator.random() < refused else second, [last], [f"b{name}"]))
        nodes.append(helper.make_node("Add", [f"a{name}", f"b{name}"], [f"c{name}"]))
        last = f"c{name}"
        if len(nodes) % 10 == 0:
            nodes.append(helper.make_node("MatMul", [last, "w"], [f"m{name}"]))
            last = f"m{name}"
    graph = helper.make_graph(
        nodes,
        "diamonds",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8])],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, [1, 8])],
        [numpy_helper.from_array(np.eye(8, dtype=np.float32), "w")],
    )
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)])


def _report_seconds(model: onnx.ModelProto, device: str, options: Mapping[str, str], policy: str) -> float:
    """Return the seconds from a model in memory to the report as text; the device gets no Sinh."""
    chosen = nna.Options(policy=policy, rules=nna.Rules(bans=(nna.Ban(device=device, op_type="Sinh"),)))
    return seconds_of(lambda: str(nna.partition_report(model, devices=[(device, dict(options))], options=chosen)))


def _import(name: str) -> None:
    """Import a package in a new interpreter."""
    subprocess.run([sys.executable, "-c", f"import {name}"], check=True)
