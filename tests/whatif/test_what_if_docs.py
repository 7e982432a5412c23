"""docs/what-if.md says what the code does."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

import nnadapter as nna
from nnadapter.report import what_if_facts

PAGE = (Path(__file__).parents[2] / "docs" / "what-if.md").read_text(encoding="utf-8")
ROWS = {
    "`current_totals`": what_if_facts.PlanTotals,
    "`features`": what_if_facts.FeatureFacts,
    "`road_map`": what_if_facts.RoadStep,
    "`models`": what_if_facts.ModelFacts,
    "`failed`": what_if_facts.FailedModel,
}


def listed(row):
    keys = PAGE.split("## The keys of the JSON form")[1]
    (cell,) = re.findall(rf"^\| {row}(?:, [^|]*)? \| ([^|:]*)", keys, re.MULTILINE)
    return re.findall(r"`(\w+)`", cell)


@pytest.mark.parametrize(("row", "kind"), ROWS.items(), ids=ROWS)
def test_keys_of_a_part(row, kind):
    assert listed(row) == [entry.name for entry in fields(kind)]


def test_keys_of_the_top():
    assert listed("top") == ["schema_version", *(entry.name for entry in fields(what_if_facts.WhatIfFacts))]


@pytest.mark.sweep
def test_the_example_is_real():
    import rapidocr

    models = Path(rapidocr.__file__).parent / "models"
    if not list(models.glob("PP-OCRv6_det_small.onnx")):
        pytest.skip("this rapidocr ships other models")
    device = ("fake_npu", {"switched_off": "Erf,Resize,HardSigmoid", "clock": "simulated"})
    real = str(nna.what_if(models, device)).splitlines()
    (shown,) = re.findall(r"^```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert [line for line in shown.splitlines() if line not in real] == []
