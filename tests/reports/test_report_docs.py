"""docs/reports.md says what the code does."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import click
import pytest

from nnadapter.cli import main
from nnadapter.engine import PlanCounts
from nnadapter.planning import UnmatchedEntry, overlap
from nnadapter.report import facts

PAGE = (Path(__file__).parents[2] / "docs" / "reports.md").read_text(encoding="utf-8")
REPORT = main.get_command(None, "report")
ROWS = {
    "coverage": facts.Coverage,
    "segments": facts.SegmentFacts,
    "segments.inputs": facts.TensorFacts,
    "nodes": facts.NodeFacts,
    "nodes.refusals": facts.RefusalFacts,
    "nodes.bodies": facts.BodyFacts,
    "plans": PlanCounts,
    "weights": facts.WeightFacts,
    "cost": facts.CostFacts,
    "cost.candidates": facts.CandidateFacts,
    "rules": facts.RuleFacts,
    "plan_file": facts.PlanFileFacts,
    "plan_file.unmatched_entries": UnmatchedEntry,
    "refusal_costs": facts.RefusalCost,
    "boundaries": overlap.Boundaries,
    "boundaries.operations": overlap.BoundaryOperation,
    "boundaries.operations.source": overlap.ValuePlace,
    "boundaries.device_resident": overlap.DeviceResidentValue,
    "boundaries.host_waits": overlap.HostWait,
    "transfers": facts.TransferFacts,
    "branch_decisions": facts.BranchDecisionFacts,
    "segments.cache": facts.CacheFacts,
}


def listed(row):
    keys = PAGE.split("## The keys of the JSON form")[1]
    (cell,) = re.findall(rf"^\| {row}(?:, [^|]*)? \| ([^|:]*)", keys, re.MULTILINE)
    return re.findall(r"`(\w+)`", cell)


@pytest.mark.parametrize(("row", "kind"), ROWS.items(), ids=ROWS)
def test_keys_of_a_part(row, kind):
    assert listed(f"`{row}`") == [entry.name for entry in fields(kind)]


def test_keys_of_the_report():
    assert listed("report") == ["schema_version", *(entry.name for entry in fields(facts.ReportFacts))]


def test_formats_are_those_of_the_command():
    (option,) = [parameter for parameter in REPORT.params if parameter.name == "form"]
    assert isinstance(option.type, click.Choice)
    section = PAGE.split("## Formats")[1].split("###")[0]
    assert re.findall(r"^\| `(\w[\w-]*)`", section, re.MULTILINE) == list(option.type.choices)


def test_gates_are_those_of_the_command():
    section = PAGE.split("## Gates")[1].split("##")[0]
    flags = {flag for parameter in REPORT.params for flag in parameter.opts}
    gates = re.findall(r"^\| `(--[\w-]+)", section, re.MULTILINE)
    assert len(gates) == 3 and set(gates) <= flags


def test_the_picture_is_small():
    picture = Path(__file__).parents[2] / "docs" / "pictures" / "report.png"
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size < 200_000
