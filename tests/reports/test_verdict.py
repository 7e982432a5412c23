"""The verdict on a plan: a comparison with the CPU alone, or the reason why there is none."""

from __future__ import annotations

import dataclasses

import pytest

import nnadapter as nna
from nnadapter.report import verdict
from tests.models import CHAIN, SANDWICH, parse
from tests.reports.made import made_report, priced


@pytest.mark.parametrize(
    ("all_cpu", "kind", "words"),
    [
        (0.010, "good", "runs 2.5 times as fast as on the CPU alone: 4.00 ms against 10.00 ms, guessed"),
        (0.003, "bad", "takes 1.3 times as long as on the CPU alone: 4.00 ms against 3.00 ms, guessed"),
        (0.0041, "open", "is as fast as on the CPU alone"),
    ],
)
def test_verdict_compares_the_plan_with_the_cpu(all_cpu, kind, words):
    found = verdict(priced(made_report(12), all_cpu=all_cpu))
    assert (found.kind, words in found.headline) == (kind, True) and found.headline.startswith("With npu the model ")
    assert any("costs of cpu are not measured" in line for line in found.more)


def test_verdict_without_costs_suggests_calibration():
    found = verdict(nna.partition_report(parse(SANDWICH), ("fake_npu", {"switched_off": "Sin"}), {"x": (2, 4)}))
    assert found.kind == "open" and "`nnadapter calibrate fake_npu`" in found.headline
    assert "Refused: Sin (switched_off; 1 node, 8 FLOP, causes 2 switches)." in found.more[0]


def test_most_costly_refusal_comes_first():
    device = ("fake_npu", {"clock": "simulated", "switched_off": "Sin,Cos"})
    report = nna.partition_report(parse(SANDWICH), device, {"x": (2, 4)})
    cheaper = tuple(
        dataclasses.replace(each, seconds=1.0 if each.op_type == "Cos" else 0.5) for each in report.refusal_costs
    )
    first = verdict(dataclasses.replace(report, refusal_costs=cheaper)).more[0]
    assert first.index("Cos (") < first.index("Sin (")


def test_verdict_of_a_cpu_plan():
    assert verdict(nna.partition_report(parse(CHAIN), "cpu")).headline == "Nothing runs off the CPU."
