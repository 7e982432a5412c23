"""Descriptions of external operations, taken from their rows."""

from __future__ import annotations

import dataclasses
from types import MappingProxyType

import numpy as np
import pytest

from nnadapter.errors import InvalidModelError
from nnadapter.ir import SCHEMAS, Example, OperationDoc
from nnadapter.ir import operations as table
from nnadapter.ir.definition import entry_of, to_dict, to_text

TWICE = dataclasses.replace(SCHEMAS["ABS"], type="TWICE", source="acme")
MEANING = OperationDoc(
    summary="Twice the number.",
    formula="2 * x",
    inputs={"input": "Numbers."},
    outputs={"output": "As the input."},
    example=Example((np.array([1, 2], np.float32),)),
)


@pytest.fixture
def bring(monkeypatch):
    def bring(row):
        monkeypatch.setattr(table, "SCHEMAS", MappingProxyType({**SCHEMAS, row.type: row}))

    return bring


def test_external_operation_is_described_by_its_doc(bring):
    bring(dataclasses.replace(TWICE, doc=MEANING))
    entry = entry_of("TWICE")
    assert (entry.family, entry.formula, entry.flops) == ("", "2 * x", "1 for each element of the output")
    assert "input (any number): Numbers." in to_text(entry)
    assert entry.example.outputs[0][1] is None  # the row has no definition


def test_external_example_is_computed_by_its_definition(bring):
    bring(dataclasses.replace(TWICE, doc=MEANING, definition=lambda x: 2 * x))
    assert "-> output: float32[2] [2., 4.]" in to_text(entry_of("TWICE"))


def test_a_definition_without_source_is_named(bring):
    bring(dataclasses.replace(TWICE, doc=MEANING, definition=eval("lambda x: 2 * x")))
    assert entry_of("TWICE").definition == f"{__name__}.<lambda>"


@pytest.mark.parametrize("module", ["nowhere", "math", None])
def test_definition_without_module_source_is_named(bring, module):
    made = {}
    exec("def twice(x): return x + x", {}, made)
    made["twice"].__module__ = module
    bring(dataclasses.replace(TWICE, doc=MEANING, definition=made["twice"]))
    assert entry_of("TWICE").definition == (f"{module}.twice" if module else "twice")


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"definition": lambda x: 1 / 0}, "fails with its own example: ZeroDivisionError"),
        ({"definition": lambda x: x[:1]}, "fails with its own example: .* returned results of shapes"),
        ({"doc": "twice"}, "doc is str, expected an nnadapter.ir.OperationDoc"),
    ],
)
def test_errors_of_external_rows_are_reported(bring, wrong, told):
    bring(dataclasses.replace(TWICE, **{"doc": MEANING, **wrong}))
    with pytest.raises(InvalidModelError, match=told):
        entry_of("TWICE")


def test_undocumented_operation_is_described_by_its_schema(bring):
    bring(TWICE)
    entry = entry_of("TWICE")
    assert to_text(entry).startswith("TWICE(input) -> output\nThis operation has no documentation.")
    assert to_dict(entry)["example"] is None and "source: acme" in to_text(entry)
