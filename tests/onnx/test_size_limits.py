"""Size limits on serialized models, checked before parsing."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from benchmarks.models.hostile_models import graph, info, model, node, tagged, weight, with_fields
from nnadapter import limits
from nnadapter.errors import InvalidModelError
from nnadapter.onnx import check_size, varint_bytes, wire_format


def test_table_of_messages_equals_onnx():
    found: dict[str, dict[int, str]] = {}
    waiting = [onnx.ModelProto.DESCRIPTOR]
    while waiting:
        message = waiting.pop()
        inner = {field.number: field.message_type for field in message.fields if field.message_type is not None}
        if message.name not in found and inner:
            found[message.name] = {number: each.name for number, each in inner.items()}
            waiting += inner.values()
    found["TypeProto"].pop(7, None)  # opaque types have names alone
    # newer than the installed onnx
    newer = {"NodeDeviceConfigurationProto", "ShardingSpecProto", "ShardedDimProto"} - found.keys()
    assert {name: dict(inner) for name, inner in wire_format._INNER.items() if name not in newer} == found
    fields = {field.name: field for field in onnx.ModelProto.DESCRIPTOR.fields}
    assert fields["functions"].number << 3 | 2 == wire_format._FUNCTIONS


def _attributes(count):
    written = tagged(5, tagged(1, b"a") + b"\xa0\x01\x02\x18\x01") * count
    return with_fields(tagged(1, tagged(1, b"x") + tagged(2, b"y") + tagged(4, b"Relu") + written))


def _dimensions(count):
    shape = tagged(2, tagged(1, b"\x08\x01") * count)
    value = tagged(1, b"v") + tagged(2, tagged(1, b"\x08\x01" + shape))
    return with_fields(tagged(13, value))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (lambda: with_fields(b"\x0a\x00" * (limits.NODES + 1)), r"more than 262,144 nodes in a graph"),
        (lambda: with_fields(tagged(1, tagged(1, b"x") * (limits.VALUES_OF_NODE + 1))), "65,536 inputs of a node"),
        (lambda: _attributes(limits.ATTRIBUTES * 8), "more than 1,024 attributes of a node"),
        (lambda: _dimensions(limits.DIMENSIONS * 20), "more than 1,024 dimensions of a type"),
        (lambda: with_fields(tagged(1, tagged(3, b"n" * (limits.NAME_BYTES + 1)))), "a name of 65,537 bytes"),
        (lambda: b"\x08\x01" * (1 << 16), "more than 32,768 fields of one kind in a message"),
        (lambda: with_fields(tagged(1, b"\x2a\x00" * 20_000) * 110), "more than 1,048,576 messages of a few bytes"),
    ],
)
def test_models_beyond_a_limit_are_refused(tmp_path, contents, message, monkeypatch):
    monkeypatch.setattr(limits, "FIELDS", 1 << 15)
    monkeypatch.setattr(limits, "MESSAGES", 1 << 20)
    whole = contents()
    with pytest.raises(InvalidModelError, match=f"^the model has .*{message}"):
        check_size(whole, "the model")
    path = tmp_path / "model.onnx"
    path.write_bytes(whole)
    with pytest.raises(InvalidModelError, match=message):
        check_size(path, "model 'model.onnx'")


def test_large_ordinary_models_pass():
    """Weights, long lists of numbers in attributes and a tensor attribute stay within the limits."""
    trees = helper.make_node(
        "Trees", ["x"], ["y"], ids=range(200_000), values=np.ones(100_000).tolist(), names=["LEAF"] * 100_000,
        table=weight("t", np.ones(50_000), TensorProto.FLOAT), domain="own",
    )  # fmt: skip
    result = model(graph([trees], weights=[weight("w", np.ones(100_000), TensorProto.FLOAT)]))
    assert check_size(result.SerializeToString(), "the model") is False


def test_functions_are_found_after_other_fields():
    body = helper.make_function("own", "F", ["a"], ["b"], [node("Relu", "a", "b")], [helper.make_opsetid("", 17)])
    result = model(graph([helper.make_node("F", ["x"], ["y"], domain="own")]), [body])
    assert check_size(result.SerializeToString(), "the model") is True
    result.graph.value_info.extend(info(f"v{number}") for number in range(10_000))
    assert check_size(result.SerializeToString(), "the model") is True


@pytest.mark.parametrize("contents", [bytes(100_000), b"\x08\x08\x3b", b"\x3a" + varint_bytes(1 << 31), b"hello"])
def test_invalid_messages_raise_index_error(contents):
    with pytest.raises(IndexError):
        check_size(contents, "the model")


def test_unreadable_paths_pass(tmp_path):
    (tmp_path / "empty").touch()
    for path in (tmp_path, tmp_path / "none", tmp_path / "empty", "a\0b"):
        assert check_size(path, "the model") is False
