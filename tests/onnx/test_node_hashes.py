"""Hashes of nodes, which ignore names and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from nnadapter.candidates import prepare
from nnadapter.onnx.preparation import attribute_bytes, structure_of, tensor_bytes
from tests.models import HEAD, parse

ROOT = Path(__file__).parents[2]
MODEL = f"""{HEAD} named (float[2, 3] x) => (float[2, 3] y)
<float[3, 3] w = {{1, 2, 3, 4, 5, 6, 7, 8, 9}}, int64[2] shape = {{2, 3}}> {{
    a = MatMul(x, w)
    b = Reshape(a, shape)
    c = LeakyRelu <alpha = 0.5> (b)
    y = Add(a, c)
}}"""


def structure(text):
    prepared = prepare(parse(text))
    return structure_of(prepared.graph, prepared.nodes, prepared.constants)


def changed(old, new):
    """Return the nodes of MODEL with another content hash, and with another ancestry hash, after this edit."""
    assert old in MODEL
    before, after = structure(MODEL), structure(MODEL.replace(old, new))
    return tuple(
        "".join(letter for letter, one, other in zip("abcy", *hashes, strict=True) if one != other)
        for hashes in ((before.content_hashes, after.content_hashes), (before.ancestry_hashes, after.ancestry_hashes))
    )


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("named", "other", ("", "")),
        ("    a = ", "    [first] a = ", ("", "")),
        ("c = Leaky", "[second] c = Leaky", ("", "")),
        ("{1, 2,", "{9, 9,", ("", "")),
        ("0.5", "0.25", ("c", "cy")),
        ("Add(a, c)", "Add(c, a)", ("", "y")),
        ("Add(a, c)", "Sub(a, c)", ("y", "y")),
        ("{2, 3}>", "{-1, 3}>", ("b", "bcy")),
        ("MatMul(x, w)", "MatMul(w, w)", ("a", "abcy")),
        ("MatMul(x, w)", "Mul(x, x)", ("a", "abcy")),
        ('"" : 17', '"" : 15', ("c", "cy")),
    ],
)  # fmt: skip
def test_edits_change_the_expected_hashes(old, new, expected):
    assert changed(old, new) == expected


def test_hashes_are_stable():
    assert structure(MODEL).ancestry_hashes == GOLDEN


GOLDEN = (
    "73edde934dc0304f5d62c3f34f759b64",
    "d013955feb258eb60da2e29a08ac275b",
    "33f5188410b520aa427fa1af8c65c416",
    "76116daaee2d57532cf0e57349f69b32",
)


@pytest.mark.slow
def test_hashes_are_equal_in_another_process():
    code = "from tests.onnx.test_node_hashes import *; print(structure(MODEL).ancestry_hashes)"
    environment = {**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": str(ROOT)}
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert process.stdout.strip() == str(structure(MODEL).ancestry_hashes)


def blocks(count):
    lines = []
    for index in range(count):
        before = f"y{index - 1}" if index else "x"
        lines += [f"a{index} = Neg({before})", f"b{index} = Exp(a{index})", f"c{index} = Sin(b{index})"]
        lines.append(f"y{index} = Add({before}, c{index})")
    body = "\n".join(lines)
    return f"{HEAD} blocks (float[2, 3] x) => (float[2, 3] y{count - 1}) {{ {body} }}"


def test_repeated_blocks_have_equal_hashes():
    prepared = prepare(parse(blocks(8)))
    hashes = structure_of(prepared.graph, prepared.nodes).ancestry_hashes
    per_block = [hashes[start : start + 4] for start in range(0, 32, 4)]
    assert per_block[5] == per_block[6] == per_block[7] and len(set(per_block[7])) == 4
    assert per_block[0] != per_block[1]


SPLIT = f"""{HEAD} g (float[4, 3] x) => (float[2, 3] y) {{
    two = Constant <value_ints = [2, 2]> ()
    p, q = Split <axis = 0> (x, two)
    y = Neg(p)
}}"""


def test_hash_depends_on_the_output_index():
    one, other = structure(SPLIT), structure(SPLIT.replace("Neg(p)", "Neg(q)"))
    assert (
        one.content_hashes == other.content_hashes
        and one.ancestry_hashes[:-1] == other.ancestry_hashes[:-1]
        and one.ancestry_hashes[-1] != other.ancestry_hashes[-1]
    )


def branching(names, op_type="Exp", captured="x"):
    inner, result = names
    branch = helper.make_graph(
        [helper.make_node(op_type, [captured], [inner]), helper.make_node("Mul", [inner, f"{inner} w"], [result])],
        "branch",
        [],
        [helper.make_tensor_value_info(result, TensorProto.FLOAT, [2])],
        [numpy_helper.from_array(np.ones(2, np.float32), f"{inner} w")],
    )
    node = helper.make_node("If", ["p"], ["y"], then_branch=branch, else_branch=branch)
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "z")]
    inputs.append(helper.make_tensor_value_info("p", TensorProto.BOOL, []))
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])])
    prepared = prepare(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    return structure_of(prepared.graph, prepared.nodes).ancestry_hashes


def test_names_inside_subgraphs_do_not_matter():
    assert branching(("a", "b")) == branching(("c", "d")) != branching(("a", "b"), "Sin")


@pytest.mark.parametrize(
    "values",
    [
        [{}, {"a": 1}, {"b": 1}, {"a": 1.0}, {"a": "1"}, {"a": (1,)}, {"a": (1, 1)}, {"a": 11}, {"a": ()}],
        [{"a": 0.0}, {"a": -0.0}, {"a": float("nan")}, {"a": float("inf")}],
        [{"a": ("x", "yz")}, {"a": ("xy", "z")}, {"a": "xyz"}],
        [{"a": np.zeros(2, "f4")}, {"a": np.zeros((1, 2), "f4")}, {"a": np.zeros(2, "i4")}, {"a": np.ones(2, "f4")}],
        [{"a": np.array(["x", "yz"], object)}, {"a": np.array([b"xy", b"z"], object)}, {"a": np.array([], object)}],
        [{"a": helper.make_tensor_type_proto(1, [2])}, {"a": helper.make_tensor_type_proto(1, [3])}],
    ],
)
def test_different_attributes_have_different_bytes(values):
    assert len({attribute_bytes(value) for value in values}) == len(values)
    assert [attribute_bytes(dict(value)) for value in values] == [attribute_bytes(value) for value in values]


def test_attribute_order_and_byte_order_do_not_matter():
    assert attribute_bytes({"a": 1, "b": 2}) == attribute_bytes({"b": 2, "a": 1})
    assert tensor_bytes(np.arange(3, dtype=">i4")) == tensor_bytes(np.arange(3, dtype="<i4"))
    assert tensor_bytes(np.zeros((2, 3), np.float32, "F")) == tensor_bytes(np.zeros((2, 3), np.float32))


@pytest.mark.parametrize(
    "dtype", [TensorProto.BFLOAT16, TensorProto.INT4, TensorProto.FLOAT8E4M3FN, TensorProto.STRING]
)
def test_every_data_type_has_bytes(dtype):
    values = [b"a", b"b"] if dtype == TensorProto.STRING else [1, 2]
    tensor = onnx.numpy_helper.to_array(helper.make_tensor("t", dtype, [2], values))
    assert tensor_bytes(tensor) == tensor_bytes(tensor.copy()) != tensor_bytes(tensor[:1])


def test_names_do_not_change_the_hashes():
    model = parse(MODEL)
    for index, node in enumerate(model.graph.node):
        node.name = f"other {index}"
        node.input[:] = [f"{name}'" for name in node.input]
        node.output[:] = [f"{name}'" for name in node.output]
    for named in (*model.graph.input, *model.graph.output, *model.graph.initializer):
        named.name += "'"
    prepared = prepare(model)
    assert structure_of(prepared.graph, prepared.nodes, prepared.constants) == structure(MODEL)
