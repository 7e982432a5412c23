"""Nodes checked against their schemas; the oracle is onnx's checker, which ONNX Runtime uses too."""

from __future__ import annotations

import re

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import checker, defs, helper

from nnadapter.onnx import contradiction_of
from tests.every import for_every

SCHEMAS = [
    schema
    for schema in defs.get_all_schemas_with_history()
    if schema.domain in ("", "ai.onnx.ml") and not schema.deprecated
]
VALUES = [0, 1.5, "text", [1, 2], [0.5], ["a"], helper.make_tensor("t", 1, [1], [1.0])]


def is_valid(node, schema):
    context = checker.C.CheckerContext()
    context.ir_version = onnx.IR_VERSION
    context.opset_imports = {schema.domain: schema.since_version}
    try:
        checker.check_node(node, context)
    except checker.ValidationError:
        return False
    return True


@st.composite
def nodes(draw):
    """Draw a node of some schema, with few errors or none."""
    schema = draw(st.sampled_from(SCHEMAS))
    few = st.sampled_from([0, 0, 1, -1])
    inputs = [draw(st.sampled_from(["x", "x", "x", ""])) for _ in range(max(0, schema.min_input + draw(few)))]
    outputs = [f"y{index}" for index in range(max(0, schema.min_output + draw(few)))]
    node = helper.make_node(schema.name, inputs, outputs, domain=schema.domain)
    names = [*sorted(schema.attributes), "strange", "__own"]
    for name in draw(st.lists(st.sampled_from(names), max_size=3)):
        node.attribute.append(helper.make_attribute(name, draw(st.sampled_from(VALUES))))
    return node, schema


@pytest.mark.slow
@given(nodes())
def test_agrees_with_the_onnx_checker(drawn):
    node, schema = drawn
    assert (contradiction_of(node, schema.since_version) == "") == is_valid(node, schema)


@for_every(schema=SCHEMAS)
def test_every_number_of_outputs(schema):
    for count in range(schema.min_output, min(schema.max_output, 8) + 1):
        outputs = [f"y{index}" for index in range(count)]
        node = helper.make_node(schema.name, ["x"] * schema.min_input, outputs, domain=schema.domain)
        missing = contradiction_of(node, schema.since_version)
        assert "outputs" not in missing or not is_valid(node, schema)
        assert missing or is_valid(node, schema)


@for_every(schema=SCHEMAS)
def test_undefined_attribute_is_a_contradiction(schema):
    node = helper.make_node(schema.name, ["x"] * schema.min_input, ["y"] * schema.min_output, domain=schema.domain)
    node.attribute.append(helper.make_attribute("strange", 1))
    assert (contradiction_of(node, schema.since_version) == "") == is_valid(node, schema)


@pytest.mark.parametrize(
    ("node", "since", "words"),
    [
        (
            helper.make_node("Clip", ["x"], ["y"], min=3.0),
            13,
            "'min' is not defined by Clip of schema version 13, which has",
        ),
        (helper.make_node("Elu", ["x"], ["y"], alpha=3), 6, "'alpha' of Elu of schema version 6 is of type INT; exp"),
        (helper.make_node("Cast", ["x"], ["y"]), 13, "'to' of Cast of schema version 13 is missing"),
        (helper.make_node("Softplus", ["x", "x"], ["y"]), 1, "has 2 inputs; expected 1$"),
        (helper.make_node("Clip", [], ["y"]), 13, "has 0 inputs; expected 1 to 3$"),
        (helper.make_node("Concat", [], ["y"], axis=0), 13, "has 0 inputs; expected 1 or more$"),
        (helper.make_node("BatchNormalization", ["x"] * 5, ["y", "z"]), 15, "has 2 outputs; expected 1 or 3$"),
        (helper.make_node("Relu", ["x"], ["y", "z"]), 14, "has 2 outputs; expected 1$"),
        (helper.make_node("Add", ["x", ""], ["y"]), 14, "input 1 of Add of schema version 14 is absent"),
    ],
)
def test_contradiction_names_the_error(node, since, words):
    assert re.search(words, contradiction_of(node, since))


def test_nodes_without_schema_have_no_contradiction():
    assert contradiction_of(helper.make_node("Nonsense", [], [], domain="my", a=1), 0) == ""
    assert contradiction_of(helper.make_node("Nonsense", [], [], domain="my", a=1), 3) == ""
