"""Whether what-if predicts what switching an op on really gives.

For each model some ops are switched off on fake_npu, whose clock is simulated so that costs are known. What-if ranks
them. Then each is really switched on, and a report of the whole pipeline tells cost and segments. Both orders are
printed; the exit code is 1 where they contradict each other by more than one per cent of what the model costs. Where
what-if says of two ops that they save the same, and they do not, they are not told apart.

    python benchmarks/what_if.py [MODEL_OR_FOLDER ...]    # RapidOCR's models if none is given
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import nnadapter as nna
from benchmarks.timing import table

MODELS = (
    ("det", ("Erf", "Resize", "HardSigmoid")),
    ("rec", ("Erf", "Softmax", "HardSigmoid")),
    ("cls", ("HardSigmoid", "Softmax", "GlobalAveragePool")),
)
"""Part of the name of a model of RapidOCR, and what is switched off."""
OFTEN = ("Erf", "Resize", "HardSigmoid", "Softmax", "MatMul", "Sigmoid", "Transpose", "LayerNormalization", "Concat")
"""Ops that are switched off in other models, the first three that occur."""
POLICIES = ("priority", "latency")
_SAME = 0.01
"""Share of a model's cost within which two ops are worth the same."""
_NOISE = 1e-9
"""Seconds within which nothing is said of an order."""


@dataclass(frozen=True, slots=True)
class Case:
    """A model and the ops that are switched off."""

    name: str
    model: str
    ops: tuple[str, ...]


def main() -> int:
    """Predict, switch on, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*")
    cases = given_models(parser.parse_args().models) or ocr_models()
    rows, errors, verdicts = [], [], Counter[str]()
    for case in cases:
        for policy in POLICIES:
            predicted, real, seconds = predict(case, policy), really(case, policy), tried(case, policy)
            orders = [in_order(saved) for saved in (predicted, real)]
            whole = cost(case, case.ops, policy)[0]
            found = verdict(predicted, real, _SAME * whole)
            verdicts[found] += 1
            rows += [
                [case.name, policy, op, told(predicted[op]), told(real[op]), orders[0][op], orders[1][op]]
                for op in sorted(predicted, key=lambda op: orders[0][op])
            ]
            errors += [abs(predicted[op][0] - real[op][0]) / whole for op in predicted]
            print(f"{case.name}, {policy}: orders {found}, what-if took {seconds:.2f} s")
    head = ["model", "policy", "op", "predicted: saves", "switched on: saves", "predicted rank", "real rank"]
    print(f"\n{table(head, rows)}\n")
    print(f"orders: {', '.join(f'{number} {found}' for found, number in verdicts.items())}")
    print(
        "predicted saving against the real one, as a share of the model's cost: "
        f"median {np.median(errors):.2%}, largest {max(errors):.2%}"
    )
    return 1 if verdicts["CONTRADICT"] else 0


def device(ops: Sequence[str]) -> tuple[str, dict[str, str]]:
    """The device with some ops switched off."""
    return "fake_npu", {"clock": "simulated", "switched_off": ",".join(ops)}


def predict(case: Case, policy: str) -> dict[str, tuple[float, int]]:
    """Seconds and segments that each op saves, as what-if says."""
    found = nna.what_if(case.model, device(case.ops), options={"policy": policy})
    by_op = {feature.op_type: feature for feature in found.features}
    return {op: (by_op[op].seconds_saved or 0.0, by_op[op].segments_saved) for op in case.ops if op in by_op}


def really(case: Case, policy: str) -> dict[str, tuple[float, int]]:
    """Seconds and segments that each op saves, from reports without and with it."""
    before = cost(case, case.ops, policy)
    found = {}
    for op in case.ops:
        after = cost(case, [other for other in case.ops if other != op], policy)
        found[op] = before[0] - after[0], before[1] - after[1]
    return found


def cost(case: Case, off: Sequence[str], policy: str) -> tuple[float, int]:
    """Seconds and segments of the real report."""
    report = nna.partition_report(case.model, device(off), options={"policy": policy, "fallback": "allow"})
    if report.cost is None:
        raise SystemExit(f"costs are not known: {report.cost_note}")
    return report.cost.seconds, len(report.segments)


def tried(case: Case, policy: str) -> float:
    """Seconds that what-if takes, the model read and all."""
    started = time.perf_counter()
    nna.what_if(case.model, device(case.ops), options={"policy": policy})
    return time.perf_counter() - started


def verdict(predicted: dict[str, tuple[float, int]], real: dict[str, tuple[float, int]], same: float) -> str:
    """Whether two ops stand in one order as predicted and in the other in truth, apart by more than `same` seconds."""
    worst = "agree"
    for first, second in combinations(predicted, 2):
        said, is_so = (saved[first][0] - saved[second][0] for saved in (predicted, real))
        if abs(is_so) > same and said * is_so < 0 and abs(said) > _NOISE:
            return "CONTRADICT"
        if abs(is_so) > same and abs(said) <= _NOISE:
            worst = "not told apart"
    return worst


def in_order(saved: dict[str, tuple[float, int]]) -> dict[str, int]:
    """The rank of each op, the largest saving first."""
    return {op: rank for rank, op in enumerate(sorted(saved, key=lambda op: saved[op], reverse=True), 1)}


def told(saved: tuple[float, int]) -> str:
    """Seconds and segments for the table."""
    return f"{saved[0] * 1e3:.3f} ms, {saved[1]} segments"


def ocr_models() -> list[Case]:
    """RapidOCR's."""
    import rapidocr

    folder = Path(rapidocr.__file__).parent / "models"
    found = [(path, ops) for part, ops in MODELS for path in sorted(folder.glob(f"*{part}*.onnx"))]
    return [Case(path.name, str(path), ops) for path, ops in found]


def given_models(names: Sequence[str]) -> list[Case]:
    """Those that are given, each with three ops that it has."""
    cases = []
    for name in names:
        path = Path(name)
        for file in sorted(path.rglob("*.onnx")) if path.is_dir() else [path]:
            ops = [op for op in OFTEN if is_one_feature(str(file), op)][:3]
            if len(ops) > 1:
                cases.append(Case(file.name, str(file), tuple(ops)))
    return cases


def is_one_feature(model: str, op: str) -> bool:
    """Whether the switch of an op refuses nodes of that op alone; that of MatMul may refuse Gemm as well."""
    return [feature.op_type for feature in nna.what_if(model, device([op])).features] == [op]


if __name__ == "__main__":
    sys.exit(main())
