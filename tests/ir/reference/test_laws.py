"""Completeness and truth of the reference of every operation."""

from __future__ import annotations

import ast

import numpy as np

from nnadapter.ir import SCHEMAS
from nnadapter.ir.definition import ONNX_OPS, doc_of, entry_of, to_dict, to_text
from nnadapter.ir.operations import FAMILIES
from tests.every import for_every


def test_every_operation_is_in_one_family():
    told = [(family, type_) for family, rows in FAMILIES.items() for type_ in (row.type for row in rows)]
    assert sorted(type_ for _, type_ in told) == sorted(SCHEMAS)
    for family, type_ in told:
        assert SCHEMAS[type_].infer.__module__.startswith("nnadapter.ir.operations"), family
    assert set(ONNX_OPS) <= set(SCHEMAS)


@for_every(type_=SCHEMAS)
def test_inputs_attributes_and_outputs_are_documented(type_):
    schema, meaning = SCHEMAS[type_], doc_of(SCHEMAS[type_])
    assert list(meaning.outputs) == list(schema.outputs)
    assert set(meaning.inputs) == {role.name for role in schema.inputs}
    assert set(meaning.attributes) == {attribute.name for attribute in schema.attributes}
    for text in (meaning.summary, *meaning.traps, *meaning.inputs.values(), *meaning.attributes.values()):
        assert text.strip() == text and text.endswith((".", "].", ")")), text
    assert meaning.formula and all(text.endswith(".") for text in meaning.outputs.values())


@for_every(type_=SCHEMAS)
def test_every_entry_has_a_runnable_example_and_valid_code(type_):
    entry = entry_of(type_)
    assert entry.example is not None and entry.flops and entry.source
    for operand_type, array in entry.example.outputs:
        assert (array is None) is (type_ == "CUSTOM")
        assert array is None or (array.shape == operand_type.dimensions and array.dtype.name == operand_type.dtype)
    ast.parse(entry.definition)
    assert (entry.definition == "") is (type_ == "CUSTOM")
    text = to_text(entry)
    assert all(f"  {row['name']} (" in text for row in (*entry.inputs, *entry.attributes))


def test_definition_of_an_entry_includes_its_helpers():
    names = {"np": np, "Array": np.ndarray}
    exec("from __future__ import annotations\n" + entry_of("AVERAGE_POOL_3D").definition, names)
    assert {"_average_pool", "_sum_pool", "padded_windows", "_count"} <= names.keys()
    assert entry_of("LP_POOL_2D").definition.splitlines()[-1].startswith("LP_POOL = _pool(lambda x: 0")
    assert entry_of("REDUCE_SUM").definition.endswith("# made by _reduce with function = numpy.sum")
    assert entry_of("ABS").definition == "numpy.absolute"


def test_example_is_printed_with_results():
    example = to_dict(entry_of("SLICE"))["example"]
    assert example["outputs"] == [{"name": "output", "type": "float32[1, 4]", "value": "[[4., 3., 2., 1.]]"}]
    assert example["attributes"]["ends"] == "(1, -5)"
    assert "past_state: absent" in to_text(entry_of("LINEAR_ATTENTION"))
    assert "outputs[1]: float32[1, 3] [[3., 4., 5.]]" in to_text(entry_of("SPLIT"))
