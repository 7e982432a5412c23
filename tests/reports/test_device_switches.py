"""Device switches that refusals cause, compared with reports of a device that takes the nodes."""

from __future__ import annotations

import pytest

import nnadapter as nna
from tests.whatif.test_what_if import chain, real

CHAINS = [("Erf", "Sin", "Erf", "Sin", "Erf"), ("Sin", "Neg", "Erf"), ("Neg", "Neg", "Sin", "Softmax"), ("Erf",)]


def between(report):
    return sum(segment.transfer_seconds + segment.launch_seconds for segment in report.segments)


@pytest.mark.parametrize("kinds", CHAINS)
def test_refusal_cost_equals_the_saving_without_the_refusal(kinds):
    model, off = chain(kinds), sorted(set(kinds))
    report = real(model, *off)
    assert {each.op_type for each in report.refusal_costs} == set(off)
    for cost in report.refusal_costs:
        then = real(model, *(name for name in off if name != cost.op_type))
        assert cost.switches == report.switches - then.switches
        assert cost.seconds == pytest.approx(between(report) - between(then))


@pytest.mark.parametrize("kinds", CHAINS)
def test_what_if_predicts_the_same_switches(kinds):
    """If nodes take equally long on both devices, the saving is the transfers; segments decrease with switches."""
    off = sorted(set(kinds))
    report = real(chain(kinds), *off)
    features = {each.op_type: each for each in nna.what_if(chain(kinds), ("fake_npu", {
        "clock": "simulated", "switched_off": ",".join(off)})).features}  # fmt: skip
    assert {each.op_type: each.switches for each in report.refusal_costs} == {
        name: feature.segments_saved for name, feature in features.items()
    }


def test_without_costs_switches_are_counted():
    report = nna.partition_report(chain(("Sin", "Neg", "Sin")), ("fake_npu", {"switched_off": "Sin"}))
    (cost,) = report.refusal_costs
    assert cost.switches == report.switches and cost.seconds is None
    assert f"switched_off  causes {report.switches} switches" in str(report)


def test_refusals_of_lower_priority_devices_cost_nothing():
    report = nna.partition_report(chain(("Sin",)), ["null", ("fake_npu", {"switched_off": "Sin"})])
    assert report.refusals() and not report.refusal_costs
