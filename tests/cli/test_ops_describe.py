"""`nnadapter ops --describe OPERATION`."""

from __future__ import annotations

import json

import pytest

from nnadapter.ir.definition import entry_of, to_text


@pytest.mark.parametrize("type_", ["CONV_2D", "SLICE", "ATTENTION", "QUANTIZE", "CUSTOM"])
def test_operation_is_described(call, type_):
    assert call(f"ops --describe {type_}").stdout == to_text(entry_of(type_)) + "\n"


def test_operation_is_described_as_json(call):
    data = json.loads(call("ops --describe CONV_2D --json").stdout)
    assert [row["name"] for row in data["inputs"]] == ["input", "filter", "bias"]
    assert data["example"]["outputs"][0]["type"] == "float32[1, 1, 2, 2]"


def test_misspelled_operation_has_suggestions(call):
    result = call("ops --describe CONV2D", exit_code=2)
    assert result.stderr == "Error: unknown operation 'CONV2D'; did you mean 'CONV_2D' or 'CONV_3D'?\n"


@pytest.mark.parametrize("words", ["ops", "ops fake_npu --describe ABS"])
def test_ops_requires_either_a_device_or_an_operation(call, words):
    assert "either DEVICE" in call(words, exit_code=2).stderr


@pytest.mark.parametrize(("name", "type_"), [("conv_2d", "CONV_2D"), ("Erf", "ERF"), ("GatherND", "GATHER_ND")])
def test_operation_is_found_by_name_in_any_case(call, name, type_):
    assert call(f"ops --describe {name}").stdout.startswith(f"{type_}(")


def test_onnx_op_with_several_operations_lists_them(call):
    told = call("ops --describe Conv", exit_code=2).stderr
    assert told == "Error: 'Conv' is an ONNX op, which becomes CONV_2D, CONV_3D; name one of them\n"
