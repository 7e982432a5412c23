from __future__ import annotations

import onnx
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as native

from nnadapter.onnx import (
    MICROSOFT,
    bounds_of,
    further_schema,
    further_schemas,
    is_further,
    newest_since_version,
    schema_defaults,
    since_version,
)

SCHEMAS = {(each.domain, each.name, each.since_version): each for each in native.get_all_operator_schema()}
DESCRIBED = [(domain, op_type) for domain in ("", MICROSOFT) for op_type in further_schemas(domain)]


@pytest.mark.parametrize(("domain", "op_type"), DESCRIBED)
def test_schemas_equal_onnxruntime(domain, op_type):
    ours, theirs = further_schema(domain, op_type), SCHEMAS[domain, op_type, 1]
    assert bounds_of(ours.inputs) == (theirs.min_input, theirs.max_input)
    assert bounds_of(ours.outputs) == (theirs.min_output, theirs.max_output)
    assert ours.types == {name: kind_of(each) for name, each in theirs.attributes.items()}
    assert set(ours.required) == {name for name, each in theirs.attributes.items() if each.required}
    defaults = {name: each for name, each in theirs.attributes.items() if each._default_value}
    assert ours.defaults.keys() == defaults.keys()
    for name, each in defaults.items():
        stated = onnx.helper.get_attribute_value(onnx.AttributeProto.FromString(each._default_value))
        expected = stated.decode() if isinstance(stated, bytes) else stated
        assert ours.defaults[name] == (pytest.approx(expected) if isinstance(expected, float) else expected)


def kind_of(attribute):
    return getattr(onnx.AttributeProto, str(attribute.type).rpartition(".")[2])


def test_versions_and_defaults_of_such_an_op():
    assert since_version(MICROSOFT, "FusedMatMul", 1) == newest_since_version(MICROSOFT, "FusedMatMul") == 1
    assert schema_defaults(MICROSOFT, "FusedMatMul", 1)["alpha"] == 1.0
    assert is_further(MICROSOFT, "FusedMatMul", 1)
    assert not is_further("", "MatMul", 13)


def test_unknown_ops_have_no_schema():
    assert since_version(MICROSOFT, "NoSuchOp", 1) is None and further_schema("acme", "Relu") is None
