"""Branch decisions in reports of sessions, of models without a run, and of compiled files."""

from __future__ import annotations

import json

import numpy as np
import pytest

import nnadapter as nna
from nnadapter.errors import InvalidInputError
from nnadapter.report import compare_reports, report_from
from tests.compiled_models.files import changed
from tests.models import parse
from tests.running.test_branch_decisions import FEEDS, FLAG, RATE, SIZES, rows

ALLOW = nna.Options(fallback="allow")
SLOW, FAST, OTHER = (
    "Equal(rate, 8000) is true",
    "Equal(rate, 8000) is false and Equal(rate, 16000) is true",
    "Equal(rate, 8000) is false and Equal(rate, 16000) is false",
)


def of(text, device="fake_npu", shapes=None, **values):
    return nna.partition_report(parse(text), device, shapes or {"x": (2, 3)}, input_values=values)


def test_session_report_has_the_latest_branch_decisions():
    with nna.InferenceSession(parse(RATE), devices="fake_npu", options=ALLOW) as session:
        assert session.report().branch_decisions_text == SLOW
        for feed, expected in zip(FEEDS[RATE], (SLOW, FAST, OTHER, FAST, OTHER), strict=True):
            session.run(None, feed)
            assert session.report().branch_decisions_text == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [({}, SLOW), ({"rate": 16000}, FAST), ({"rate": np.array(7)}, OTHER), ({"rate": [8000][0]}, SLOW)],
)
def test_input_values_select_the_reported_plan(values, expected):
    found = of(RATE, **values)
    assert found.branch_decisions_text == expected and found.coverage.nodes == 1
    assert any("--input rate=VALUE" in note for note in found.notes) is (not values)


def test_input_shapes_select_the_reported_plan():
    assert of(SIZES).branch_decisions_text == "Greater(Gather(Shape(x), 0), 2) is false"
    assert of(SIZES, shapes={"x": (3, 3)}).branch_decisions_text == "Greater(Gather(Shape(x), 0), 2) is true"


def test_every_format_has_the_branch_decisions():
    found = of(FLAG, c=False)
    assert "chosen     where c is false" in str(found)
    assert "| chosen | where `c is false` |" in found.to_markdown()
    assert '"choice":"c is false"' in found.to_html().replace(": ", ":")
    assert json.loads(found.to_json())["branch_decisions"] == [{"condition": "c", "value": False, "nodes": ["If_1"]}]
    assert report_from(found.to_dict()).branch_decisions == found.branch_decisions
    (differs,) = compare_reports(found, of(FLAG, c=True)).conditions
    assert (differs.name, differs.old_value, differs.new_value) == ("choice", "c is false", "c is true")


def test_report_has_the_original_model_without_delegated_branches():
    found = of(FLAG, ("fake_npu", {"switched_off": "Add,Neg"}))
    assert not found.branch_decisions and "If" in {node.op_type for node in found.nodes}
    assert any("the original model runs" in note for note in found.notes)
    assert not of(FLAG, "cpu").branch_decisions and not of(FLAG, "cpu").notes[1:]


@pytest.mark.parametrize("values", [{"nothing": 1}, {"rate": "fast"}, {"rate": [1, 2]}])
def test_invalid_input_values_are_refused(values):
    with pytest.raises(InvalidInputError):
        of(RATE, **values)


def test_report_of_a_compiled_file_has_branch_decisions(tmp_path):
    nna.compile(parse(FLAG), tmp_path / "f", devices=["fake_npu"])
    with nna.InferenceSession(tmp_path / "f") as session:
        for value in (True, False):
            session.run(None, {"x": rows(2), "c": np.array([value])})
            assert session.report().branch_decisions_text == f"c is {'true' if value else 'false'}"
            found = nna.partition_report(tmp_path / "f", input_values={"c": value})
            assert found.branch_decisions_text == session.report().branch_decisions_text
    with pytest.raises(InvalidInputError, match="has no input"):
        nna.partition_report(tmp_path / "f", input_values={"d": True})


def test_compiled_file_falls_back_to_its_general_plan(tmp_path):
    text = FLAG.replace("q = Neg(a)", "w = Constant<value = float[2, 3] {1, 2, 3, 4, 5, 6}>() q = Add(a, w)")
    shapes = {"x": (4, 3), "c": (1,)}
    nna.compile(parse(text), tmp_path / "f", devices=["fake_npu"], input_shapes=shapes, options=ALLOW)
    for value, told in ((True, "c is true"), (False, "")):
        assert nna.partition_report(tmp_path / "f", input_values={"c": value}).branch_decisions_text == told


def test_branch_decision_without_a_plan_is_an_error(tmp_path):
    nna.compile(parse(FLAG), tmp_path / "f", devices=["fake_npu"])
    changed(tmp_path / "f", lambda message: message.plans.__delitem__(1))
    assert nna.partition_report(tmp_path / "f", input_values={"c": True}).branch_decisions_text == "c is true"
    with pytest.raises(InvalidInputError, match="no plan if c is false"):
        nna.partition_report(tmp_path / "f", input_values={"c": False})
