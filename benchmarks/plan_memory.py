"""Memory of plans: the count of `Options.max_plan_bytes` compared with the system's.

Every plan is for another shape, because a limit on segments prevents plans with dynamic shapes. Each case runs in a
process of its own. The same session on `null` in another process gives the memory that no plan holds, which is
subtracted. `cpu` is fake_npu without the operations that have weights. `acme_fixed` is the example of a driver in C,
compiled for static shapes. The last columns are for a `max_plan_bytes` of half the memory of the most plans.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import nnadapter as nna
from benchmarks.harness import MEGABYTE, Results, in_process, retained_bytes
from benchmarks.models.networks import networks
from benchmarks.static_shapes import install

_WEIGHTED = ("Conv", "ConvTranspose", "MatMul", "Gemm")
_CASES: Mapping[str, Any] = {
    "openvino": "openvino",
    "cpu": [("fake_npu", {"switched_off": _WEIGHTED})],
    "fake_npu": "fake_npu",
    "acme_fixed": "acme_fixed",
    "null": "null",
}
_NETWORKS = ("perceptron, 64 rows", "residual", "plain 3x3", "mobile", "segmentation")
_OPTIONS = {"fallback": "allow", "rules": nna.Rules(limits=nna.Limits(max_segments=1000)), "max_plans": 1000}
_NO_LIMIT = 1 << 40
_LEAST = 1_000_000
"""Smallest count that the memory of the process can confirm."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--cases", nargs="+", choices=_CASES, default=tuple(_CASES))
    parser.add_argument("--networks", nargs="+", choices=networks(), default=_NETWORKS)
    parser.add_argument("--plans", nargs="+", type=int, default=(1, 5, 20))


def run(options: argparse.Namespace, results: Results) -> None:
    """Compare every network in every case."""
    table = results.table()
    for network in options.networks:
        for case in options.cases:
            for row in _compare(case, network, options.plans):
                table.add(row)


def _compare(case: str, network: str, plans: Sequence[int]) -> list[dict[str, Any]]:
    """Return a row for each number of plans; the last has the memory under half of the limit."""
    counted, resident = zip(*plan_bytes_in_process(case, network, plans), strict=True)
    base = [nbytes for _, nbytes in plan_bytes_in_process("null", network, plans)]
    limit = counted[-1] // 2
    limited = plan_bytes_in_process(case, network, plans[-1:], limit)[0][1] - base[-1]
    rows = []
    for count, nbytes, total, least in zip(plans, counted, resident, base, strict=True):
        added = total - least
        rows.append(
            {
                "network": network,
                "device": case,
                "plans": count,
                "counted MB": nbytes / MEGABYTE,
                "held MB": added / MEGABYTE,
                "counted / held": nbytes / added if added >= _LEAST else None,
                "limit MB": None,
                "held under the limit MB": None,
            }
        )
    rows[-1] |= {"limit MB": limit / MEGABYTE, "held under the limit MB": limited / MEGABYTE}
    return rows


def plan_bytes_in_process(
    case: str, network: str, plans: Sequence[int], limit: int = _NO_LIMIT
) -> list[tuple[int, int]]:
    """Return the result of `plan_bytes` in a process of its own."""
    return [(counted, growth) for counted, growth in in_process(plan_bytes, case, network, list(plans), limit)]


def plan_bytes(case: str, network: str, plans: Sequence[int], limit: int) -> list[tuple[int, int]]:
    """Return, after so many plans each, the bytes counted for them and the growth of this process."""
    if case == "acme_fixed":
        install(Path(tempfile.mkdtemp()))
    model, shape = _with_dynamic_size(networks()[network]())
    sizes: list[tuple[int, int]] = []
    with nna.InferenceSession(model, devices=_CASES[case], options={**_OPTIONS, "max_plan_bytes": limit}) as session:
        initial = retained_bytes()
        for number in range(max(plans)):
            session.run(None, {"x": np.zeros(shape(number), np.float32)})
            if number + 1 in plans:
                report = session.report().plans
                sizes.append((0 if report is None else report.memory_bytes, retained_bytes() - initial))
    return sizes


def _with_dynamic_size(model: onnx.ModelProto) -> tuple[onnx.ModelProto, Callable[[int], tuple[int, ...]]]:
    """Return a network with a dynamic height of its pictures, or number of rows, and the shape of its n-th input."""
    dimensions = model.graph.input[0].type.tensor_type.shape.dim
    sizes = [dimension.dim_value for dimension in dimensions]
    axis, step = (2, 16) if len(sizes) == 4 else (0, 1)
    dimensions[axis].dim_param = "size"
    for position, value in enumerate(model.graph.output[0].type.tensor_type.shape.dim):
        value.dim_param = f"output_{position}"

    def shape(number: int) -> tuple[int, ...]:
        return (*sizes[:axis], sizes[axis] + step * number, *sizes[axis + 1 :])

    return model, shape
