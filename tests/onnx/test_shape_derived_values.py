"""Values derived from shapes alone, compared with the names that preparation folds at concrete shapes."""

from __future__ import annotations

import onnx.parser

from nnadapter.onnx import has_open_inputs, size_names

HEAD = '<ir_version: 10, opset_import: ["" : 17]> g'


def names(text):
    return size_names(onnx.parser.parse_model(f"{HEAD} {text}"))


def test_shape_derived_values_are_listed():
    text = """(float[n, 4] x) => (float[m] y) <int64 one = {1}, int64[1] axes = {0}> {
        s = Shape (x) n = Gather (s, one) m = Mul (n, one) r = Unsqueeze (m, axes) y = Reshape (x, r)
    }"""
    assert names(text) == {"s", "n", "m", "r"}


def test_contents_of_inputs_are_no_sizes():
    assert names("(int64[2] x) => (int64[2] y) <int64 one = {1}> { y = Add (x, one) }") == frozenset()


def test_inner_graph_that_reads_an_input_is_not_shape_derived():
    text = """(float[n] x) => (float[n] y) <bool c = {1}> {
        y = If (c) <
            then_branch = t () => (float[n] p) { p = Neg (x) }, else_branch = e () => (float[n] q) { q = Abs (x) }
        >
    }"""
    assert names(text) == frozenset()


def test_dynamic_inputs_are_detected():
    for text, is_open in (("float[2, 3]", False), ("float[n, 3]", True), ("float", False), ("seq(float[n])", False)):
        model = onnx.parser.parse_model(f"{HEAD} ({text} x) => ({text} y) {{ y = Identity (x) }}")
        assert has_open_inputs(model) is is_open, text
