import numpy as np
import onnx
import onnx.parser
import pytest

from nnadapter.onnx import stamp_down
from partition import Reason, Unsupported
from tests.onnx.test_extract import run

LIMITS = {"": 26, "ai.onnx.ml": 5}
IR = 13


def parse(text, opset=28, ir_version=14, header=""):
    return onnx.parser.parse_model(f'<ir_version: {ir_version}, opset_import: ["" : {opset}{header}]>\n{text}')


def test_newest_opset_runs_on_an_older_runtime():
    model = parse("g (float[2] x) => (float[2] y) {a = Relu(x) y = Add(a, x)}")
    before = model.SerializeToString()
    lowered = stamp_down(model, LIMITS, IR)
    assert (lowered.opset_import[0].version, lowered.ir_version) == (26, 13)
    assert lowered.graph == model.graph
    assert model.SerializeToString() == before
    np.testing.assert_array_equal(run(lowered, {"x": np.array([-1, 2], np.float32)})["y"], [-1, 4])


def test_model_within_limits_is_the_same_object():
    model = parse("g (float[2] x) => (float[2] y) {y = Relu(x)}", opset=20, ir_version=9)
    assert stamp_down(model, LIMITS, IR) is model


def test_only_the_ir_version_is_lowered():
    model = parse("g (float[2] x) => (float[2] y) {y = Relu(x)}", opset=20)
    lowered = stamp_down(model, LIMITS, IR)
    assert (lowered.ir_version, lowered.opset_import) == (13, model.opset_import)


NESTED = """g (bool c, float[2] x) => (float[2] y) {
  y = If (c) <then_branch = t () => (float[2] t1) {[late] t1 = Celu(x)},
              else_branch = e () => (float[2] e1) {e1 = Relu(x)}> }"""
CALLED = """g (float[2] x) => (float[2] y) {y = f.act(x)}
<domain: "f", opset_import: ["" : 28]> act (p) => (q) {[late] q = Celu(p)}"""


@pytest.mark.parametrize("text", ["g (float[2] x) => (float[2] y) {[late] y = Celu(x)}", NESTED, CALLED])
def test_newer_schema_is_named(text):
    refusal = stamp_down(parse(text, header=', "f" : 1'), LIMITS, IR)
    assert isinstance(refusal, Unsupported)
    assert refusal.reason is Reason.UNSUPPORTED_VERSION
    assert refusal.detail == "node 'late' (Celu) needs opset 28, expected at most opset 26"


def test_functions_are_lowered_and_uncalled_ones_removed():
    text = CALLED.replace("[late] q = Celu(p)", "q = Relu(p)")
    text += '<domain: "f", opset_import: ["" : 28]> other (p) => (q) {q = Celu(p)}'
    lowered = stamp_down(parse(text, header=', "f" : 1'), LIMITS, IR)
    assert [(function.name, function.opset_import[0].version) for function in lowered.functions] == [("act", 26)]
    np.testing.assert_array_equal(run(lowered, {"x": np.array([-1, 2], np.float32)})["y"], [0, 2])


def test_other_domains_are_unchanged():
    model = parse("g (float[2] x) => (float[2] y) {y = v.Mystery(x)}", header=', "v" : 99')
    lowered = stamp_down(model, LIMITS, IR)
    assert {each.domain: each.version for each in lowered.opset_import} == {"": 26, "v": 99}


def test_both_spellings_of_the_default_domain():
    model = parse("g (float[2] x) => (float[2] y) {y = Relu(x)}")
    model.opset_import[0].domain = "ai.onnx"
    assert stamp_down(model, LIMITS, IR).opset_import[0].version == 26
    assert stamp_down(parse("g (float[2] x) => (float[2] y) {y = Relu(x)}"), {"ai.onnx": 25}, IR).ir_version == 13


def test_unknown_operator():
    refusal = stamp_down(parse("g (float[2] x) => (float[2] y) {y = Mystery(x)}"), LIMITS, IR)
    assert refusal.reason is Reason.UNSUPPORTED_OPERATION
    assert "a node of type Mystery is unknown" in refusal.detail
