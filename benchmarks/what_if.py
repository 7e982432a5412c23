"""Predictions of what-if compared with the effect of really supporting an op.

For each model some ops are switched off on fake_npu with a simulated clock, so that costs are known. What-if ranks
them. Then each op is switched on, and a report gives cost and segments. The benchmark fails if the two orders
contradict each other by more than one percent of the model's cost. If what-if predicts the same saving for two ops and
the savings differ, the orders are `not told apart`.

A model is an ONNX file, a folder of such files, or one of RapidOCR's models: `det`, `rec` or `cls`, which are the
default.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np
import rapidocr

import nnadapter as nna
from benchmarks.harness import Results, seconds_of

_RAPIDOCR = {
    "det": ("Erf", "Resize", "HardSigmoid"),
    "rec": ("Erf", "Softmax", "HardSigmoid"),
    "cls": ("HardSigmoid", "Softmax", "GlobalAveragePool"),
}
"""Part of the name of a model of RapidOCR, and the ops that are switched off."""
_OFTEN = ("Erf", "Resize", "HardSigmoid", "Softmax", "MatMul", "Sigmoid", "Transpose", "LayerNormalization", "Concat")
"""Ops of other models; the first three that occur are switched off."""
_POLICIES = ("priority", "latency")
_SAME = 0.01
"""Share of a model's cost within which two ops are worth the same."""
_NOISE = 1e-9
"""Seconds of difference below which there is no order."""


@dataclass(frozen=True, slots=True)
class Case:
    """A model and the ops that are switched off."""

    name: str
    model: str
    ops: tuple[str, ...]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("models", nargs="*", default=list(_RAPIDOCR), metavar="MODEL")


def run(options: argparse.Namespace, results: Results) -> None:
    """Predict, switch on, and compare the orders."""
    errors, verdicts = [], Counter[str]()
    orders, table = [], results.table()
    for case in (case for name in options.models for case in _cases_of(name)):
        for policy in _POLICIES:
            predicted, real = _predict(case, policy), _switch_on(case, policy)
            ranks = [_ranks(saved) for saved in (predicted, real)]
            cost = _cost(case, case.ops, policy)[0]
            verdict = _verdict(predicted, real, _SAME * cost)
            verdicts[verdict] += 1
            orders.append(
                {"model": case.name, "policy": policy, "orders": verdict, "what-if s": _seconds(case, policy)}
            )
            errors += [abs(predicted[op][0] - real[op][0]) / cost for op in predicted]
            for op in sorted(predicted, key=lambda op: ranks[0][op]):
                row = {"model": case.name, "policy": policy, "op": op}
                for name, saved, rank in (("predicted", predicted, ranks[0]), ("real", real, ranks[1])):
                    row |= {f"{name} saving ms": 1e3 * saved[op][0], f"{name} saving, segments": saved[op][1]}
                    row[f"{name} rank"] = rank[op]
                table.add(row)
    table = results.table()
    for order in orders:
        table.add(order)
    results.note(
        "predicted saving against the real one, as a share of the model's cost: "
        f"median {np.median(errors):.2%}, largest {max(errors):.2%}"
    )
    if verdicts["CONTRADICT"]:
        results.fail(f"{verdicts['CONTRADICT']} orders contradict each other")


def _device(ops: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Return the device with some ops switched off."""
    return "fake_npu", {"clock": "simulated", "switched_off": ",".join(ops)}


def _predict(case: Case, policy: str) -> dict[str, tuple[float, int]]:
    """Return the seconds and segments that each op saves, as predicted by what-if."""
    prediction = nna.what_if(case.model, _device(case.ops), options={"policy": policy})
    by_op = {feature.op_type: feature for feature in prediction.features}
    return {op: (by_op[op].seconds_saved or 0.0, by_op[op].segments_saved) for op in case.ops if op in by_op}


def _switch_on(case: Case, policy: str) -> dict[str, tuple[float, int]]:
    """Return the seconds and segments that each op saves, from reports without and with it."""
    initial_cost = _cost(case, case.ops, policy)
    savings = {}
    for op in case.ops:
        reduced_cost = _cost(case, [other for other in case.ops if other != op], policy)
        savings[op] = initial_cost[0] - reduced_cost[0], initial_cost[1] - reduced_cost[1]
    return savings


def _cost(case: Case, off: Sequence[str], policy: str) -> tuple[float, int]:
    """Return the seconds and segments of the real report."""
    report = nna.partition_report(case.model, _device(off), options={"policy": policy, "fallback": "allow"})
    if report.cost is None:
        raise ValueError(f"costs are not known: {report.cost_note}")
    return report.cost.seconds, len(report.segments)


def _seconds(case: Case, policy: str) -> float:
    """Return the seconds of what-if, with reading the model."""
    return seconds_of(partial(nna.what_if, case.model, _device(case.ops), options={"policy": policy}))


def _verdict(predicted: dict[str, tuple[float, int]], real: dict[str, tuple[float, int]], same: float) -> str:
    """Compare the orders of all pairs of ops with real savings that differ by more than `same` seconds."""
    worst = "agree"
    for first, second in combinations(predicted, 2):
        predicted_gain, is_so = (saved[first][0] - saved[second][0] for saved in (predicted, real))
        if abs(is_so) > same and predicted_gain * is_so < 0 and abs(predicted_gain) > _NOISE:
            return "CONTRADICT"
        if abs(is_so) > same and abs(predicted_gain) <= _NOISE:
            worst = "not told apart"
    return worst


def _ranks(saved: dict[str, tuple[float, int]]) -> dict[str, int]:
    """Return the rank of each op, the largest saving first."""
    return {op: rank for rank, op in enumerate(sorted(saved, key=lambda op: saved[op], reverse=True), 1)}


def _cases_of(name: str) -> list[Case]:
    """Return the models of a name with the ops that are switched off: of files, three that they have."""
    if name in _RAPIDOCR:
        folder = Path(rapidocr.__file__).parent / "models"
        return [Case(path.name, str(path), _RAPIDOCR[name]) for path in sorted(folder.glob(f"*{name}*.onnx"))]
    cases, path = [], Path(name)
    for file in sorted(path.rglob("*.onnx")) if path.is_dir() else [path]:
        ops = [op for op in _OFTEN if _is_one_feature(str(file), op)][:3]
        if len(ops) > 1:
            cases.append(Case(file.name, str(file), tuple(ops)))
    return cases


def _is_one_feature(model: str, op: str) -> bool:
    """Return whether the switch of an op refuses nodes of that op alone; MatMul's may refuse Gemm as well."""
    return [feature.op_type for feature in nna.what_if(model, _device([op])).features] == [op]
